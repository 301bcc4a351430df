"""The wheel, installed with pip into an empty environment, serves an agent and the page."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from magent2 import __version__
from tests.support.distribution import build_wheel

INSTALL_DEADLINE_S = 1200.0
COMMAND_DEADLINE_S = 120.0


@pytest.mark.soak
def test_a_wheel_that_pip_has_installed_serves_the_page_and_answers(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path / "dist")
    bin_ = tmp_path / "venv" / "bin"
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True, timeout=COMMAND_DEADLINE_S)
    subprocess.run(
        [str(bin_ / "pip"), "install", "--quiet", "--disable-pip-version-check", str(wheel)],
        check=True,
        timeout=INSTALL_DEADLINE_S,
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    bare = {"PATH": f"{bin_}:/usr/bin:/bin", "HOME": str(elsewhere), "MAGENT2_DATA_DIR": str(elsewhere / "data")}

    def magent2(*words: str) -> str:
        command = [str(bin_ / "magent2"), *words]
        return subprocess.run(
            command, cwd=elsewhere, env=bare, check=True, capture_output=True, text=True, timeout=COMMAND_DEADLINE_S
        ).stdout

    assert magent2("--version").strip().endswith(__version__)
    server = subprocess.Popen(
        [str(bin_ / "magent2"), "serve", "--port", "0"], cwd=elsewhere, env=bare, stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        said = ""
        while "/send" not in said:
            line = server.stdout.readline()
            assert line, said
            said += line
        (url,) = re.findall(r"^gateway  (\S+)/$", said, re.MULTILINE)
        page = httpx2.get(f"{url}/")
        parts = re.findall(r'(?:src|href)="(?:\./)?(page/[^"]+)"', page.text)
        assert "page     " not in said  # the line that says that the page is missing
        assert parts
        assert [httpx2.get(f"{url}/{part}").status_code for part in parts] == [200] * len(parts)
        assert magent2("send", "general", "hello", "--wait", "--url", url) == "hello\n"
    finally:
        server.terminate()
        server.communicate(timeout=COMMAND_DEADLINE_S)
    assert server.returncode == 0
