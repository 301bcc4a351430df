"""The lines of docs/operating.md, run as they are printed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from magent2.roster.agents_file import DEFAULT_FILE, DEFAULT_TOOLS, load_agents_file
from tests.support.forked_processes import ROOT
from tests.support.http_client.new_user import NewUser, section
from tests.support.http_client.service import quiet_port
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually

PAGE = "docs/operating.md"
PORT = "8700"  # as the page prints it


@pytest.fixture
def newcomer(tmp_path: Path, forked_programs: str) -> Iterator[NewUser]:
    home = tmp_path / "home"
    home.mkdir()
    with NewUser(home, forked_programs) as newcomer:
        yield newcomer


def lines(title: str, which: int = 0) -> str:
    return [text for kind, text in section(PAGE, title) if kind == "sh"][which]


def bases_in(folder: Path) -> list[str]:
    """The parts of an append-only file that a rewrite replaces."""
    return [path.name for path in (folder / "appendonlydir").glob("*.base.*")]


def test_an_operators_day_goes_as_the_page_says(newcomer: NewUser) -> None:
    port = str(quiet_port())
    place = {"MAGENT2_PORT": port}
    serving = newcomer.start([".venv/bin/magent2", "serve"], **place)
    serving.await_gateway(port)

    watched = newcomer.enter(lines("Probes, metrics, logs").replace(PORT, port))
    swept = newcomer.enter(lines("Retention"))
    newcomer.enter(lines("Backup and restore", 0))
    restored = newcomer.enter(lines("Backup and restore", 1))
    erased = newcomer.enter(lines("Deleting a person's data", 0).replace(PORT, port))
    shown = newcomer.enter(f".venv/bin/magent2 conversations ls --json --url http://127.0.0.1:{port}")

    assert '"status":"ok"' in watched
    assert "magent2_requests_total{" in watched
    assert re.search(r"^ok +gateway", watched, re.M)
    assert "tokens" in swept
    assert "rows sha256" in restored
    assert erased.splitlines()[-1] == "erased 0 conversations, 1 API keys and 0 directory entries of user:ann"
    assert json.loads(shown) == []
    assert serving.stop() == 0

    newcomer.enter(lines("Starting over"))
    assert not (newcomer.home / ".local/share/magent2").exists()
    assert (newcomer.home / "before-reset.db").stat().st_size > 0
    newcomer.start([".venv/bin/magent2", "serve"], **place).await_gateway(port)


@pytest.mark.redis
def test_an_append_only_file_is_rewritten_by_the_line_of_the_page(newcomer: NewUser, tmp_path: Path) -> None:
    server = RedisServer(tmp_path, "--appendonly", "yes", "--save", "")
    server.start()
    before = bases_in(tmp_path)

    newcomer.enter(lines("Deleting a person's data", 1), REDIS_URL=server.url)

    eventually(lambda: bases_in(tmp_path) not in ([], before))
    server.stop()


def test_every_block_of_the_page_is_run_or_says_that_it_is_not() -> None:
    text = (ROOT / PAGE).read_text()

    assert re.findall(r"^```(\w*)$", text, re.M).count("sh") == 7
    assert set(re.findall(r"^```(\w+)$", text, re.M)) == {"sh", "text", "toml"}


def test_the_sections_of_an_agents_file_on_the_page_are_valid(tmp_path: Path) -> None:
    sections = [
        text for title in ("Model outages", "Retention") for kind, text in section(PAGE, title) if kind == "toml"
    ]
    file = tmp_path / "magent2.toml"
    file.write_text("\n".join((DEFAULT_FILE.read_text(), *sections)))

    roster = load_agents_file(file, DEFAULT_TOOLS).roster

    assert (roster.retry["max_s"], roster.retention["blobs_after_days"]) == (120, 7)


def test_what_the_page_points_at_is_there() -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", (ROOT / PAGE).read_text()):
        assert (ROOT / "docs" / link).exists(), link
