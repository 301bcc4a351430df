"""The client and the command line over TLS: which certificates they trust, and what they say of those they do not."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from magent2.client import AsyncClient, Client
from magent2.errors import GatewayUnreachable, SettingsError, TlsFailed
from tests.support.certificates import make_certificate, make_certificate_folder
from tests.support.command_line import CommandLine

TOKEN = "t" * 32


class Health(BaseHTTPRequestHandler):
    """Answers every GET as `/health` of a gateway does."""

    def do_GET(self) -> None:
        body = b'{"status": "ok"}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Stay silent."""


class QuietServer(HTTPServer):
    def handle_error(self, *arguments: object) -> None:
        """A handshake that the client ends is what these tests are about."""


@contextmanager
def serving(certificate: Path | None) -> Iterator[int]:
    server = QuietServer(("127.0.0.1", 0), Health)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, certificate.with_name("key.pem"))
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)


def test_a_certificate_of_an_unknown_authority_is_named_at_once(certificate: Path) -> None:
    with (
        serving(certificate) as port,
        Client(f"https://localhost:{port}", TOKEN) as client,
        pytest.raises(TlsFailed, match=r"self-signed certificate.*SSL_CERT_FILE"),
    ):
        client.health()


async def test_the_asynchronous_client_names_it_too(certificate: Path) -> None:
    with serving(certificate) as port:
        async with AsyncClient(f"https://localhost:{port}", TOKEN) as client:
            with pytest.raises(TlsFailed, match=r"self-signed certificate.*SSL_CERT_FILE"):
                await client.health()


def test_ssl_cert_file_and_ssl_cert_dir_are_honoured_also_on_this_machine(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_certificate_folder(certificate)
    for name, value in (("SSL_CERT_FILE", certificate), ("SSL_CERT_DIR", folder)):
        with monkeypatch.context() as patch, serving(certificate) as port:
            patch.setenv(name, str(value))
            with Client(f"https://localhost:{port}", TOKEN) as client:
                assert client.health() == {"status": "ok"}


@pytest.mark.parametrize("name", ["SSL_CERT_FILE", "SSL_CERT_DIR"])
def test_a_setting_that_names_nothing_is_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, str(tmp_path / "nowhere"))

    with pytest.raises(SettingsError, match=rf"{name}.*nowhere"):
        Client("https://localhost:1", TOKEN)


def test_a_file_without_certificates_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty.pem").write_text("nothing\n")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "empty.pem"))

    with pytest.raises(SettingsError, match=r"SSL_CERT_FILE.*empty\.pem"):
        Client("https://localhost:1", TOKEN)


def test_a_certificate_for_another_name_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = make_certificate(tmp_path, "DNS:elsewhere.example")
    monkeypatch.setenv("SSL_CERT_FILE", str(other))

    with (
        serving(other) as port,
        Client(f"https://localhost:{port}", TOKEN) as client,
        pytest.raises(TlsFailed, match=r"not valid for 'localhost'"),
    ):
        client.health()


def test_the_wrong_scheme_is_named(certificate: Path) -> None:
    with (
        serving(None) as port,
        Client(f"https://localhost:{port}", TOKEN) as client,
        pytest.raises(TlsFailed, match=r"use http://"),
    ):
        client.health()
    with (
        serving(certificate) as port,
        Client(f"http://localhost:{port}", TOKEN, patience_s=0.0) as client,
        pytest.raises(GatewayUnreachable, match=r"if it uses TLS, use https://"),
    ):
        client.health()


def test_an_unknown_host_is_named() -> None:
    with (
        Client("http://no-such-host.invalid:1", TOKEN, patience_s=0.0) as client,
        pytest.raises(GatewayUnreachable, match=r"no-such-host\.invalid.*(not known|resolution|resolve)"),
    ):
        client.health()


def test_a_refused_connection_is_named() -> None:
    with socket.socket() as bound:  # bound and not listening: connections are refused
        bound.bind(("127.0.0.1", 0))
        with (
            Client(f"http://127.0.0.1:{bound.getsockname()[1]}", TOKEN, patience_s=0.0) as client,
            pytest.raises(GatewayUnreachable, match=r"'magent2 serve' starts one"),
        ):
            client.health()


def test_a_command_prints_the_cause_in_one_line(certificate: Path, tmp_path: Path) -> None:
    with serving(certificate) as port, CommandLine(tmp_path) as magent2:
        done = magent2.run("conversations", "ls", "--url", f"https://localhost:{port}", "--token", TOKEN)

    assert (done.code, done.out, len(done.err.splitlines())) == (1, "", 1)
    assert "self-signed certificate" in done.err
