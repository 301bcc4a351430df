"""An nginx process for tests, with the configuration file of the project."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.forked_processes import ROOT
from tests.support.ports import quiet_port
from tests.support.waiting import eventually

SHIPPED = ROOT / "deploy" / "nginx.conf"
PLACES = f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin"
MISSING = "nginx is not on PATH; install it with `apt-get install nginx-light`, or leave these tests out: SKIP=nginx"
END_DEADLINE_S = 30.0

# The part of a distribution's nginx.conf around the files of conf.d, in a writable folder.
AROUND = """
{user}
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/magent2.conf;
}}
"""


def find_nginx() -> str:
    if "nginx" in os.environ.get("SKIP", "").split(","):
        pytest.skip("SKIP=nginx leaves the tests with nginx out")
    program = shutil.which("nginx", path=PLACES)
    if program is None:
        pytest.fail(MISSING)
    return program


def _user() -> str:
    """The user of the worker processes. Started as root, nginx would choose one without access to the test's folder."""
    return "user root;" if os.geteuid() == 0 else ""


class Nginx:
    """A server process with the project's file; only addresses and file paths are changed."""

    def __init__(self, folder: Path, gateway_port: int) -> None:
        self.program = find_nginx()
        self.folder = folder
        self.port = quiet_port()
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "magent2.conf").write_text(self._adapted(gateway_port))
        (folder / "nginx.conf").write_text(AROUND.format(folder=folder, user=_user()))

    def _adapted(self, gateway_port: int) -> str:
        text = SHIPPED.read_text()
        for shipped, here in (
            ("127.0.0.1:8700", f"127.0.0.1:{gateway_port}"),
            ("listen 80;", f"listen 127.0.0.1:{quiet_port()};"),
            ("listen 443 ssl http2;", f"listen 127.0.0.1:{self.port} ssl http2;"),
            ("/etc/nginx/magent2.pem", str(self.folder / "cert.pem")),
            ("/etc/nginx/magent2.key", str(self.folder / "key.pem")),
        ):
            assert text.count(shipped) == 1, f"{SHIPPED.name} has no {shipped!r}"
            text = text.replace(shipped, here)
        return text

    def start(self) -> None:
        command = [self.program, "-p", str(self.folder), "-c", str(self.folder / "nginx.conf"), "-g", "daemon off;"]
        (self.folder / "nginx.pid").unlink(missing_ok=True)
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        eventually(self._is_up)

    def _is_up(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            pytest.fail(f"nginx ended: {(self.folder / 'error.log').read_text()}")
        return (self.folder / "nginx.pid").exists()

    def stop(self) -> None:
        """Stop immediately; open connections are cut."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(END_DEADLINE_S)
            self._process = None
