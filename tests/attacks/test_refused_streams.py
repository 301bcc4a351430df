"""A proxy that refuses, replaces or buffers streams does not keep answers from the page: it polls."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import SHUT_RDWR, socket
from typing import ClassVar, Literal

import pytest
from playwright.sync_api import Browser, expect

from tests.support.browser import PageServer, PageUser, open_page

pytestmark = pytest.mark.browser

Mode = Literal["pass", "502", "503", "504", "403", "problem", "html", "empty", "buffer", "down"]
REFUSALS: tuple[Mode, ...] = ("502", "503", "504", "403", "problem", "html", "empty", "buffer")
PAGE = b"<!doctype html><title>Bad gateway</title><h1>The proxy is not amused</h1>"
PROBLEM = b'{"type":"x","title":"Service unavailable","status":503,"code":"too_many_connections","detail":"later"}'
CHUNK_BYTES = 65_536
HOP_BY_HOP = ("connection", "transfer-encoding", "content-length", "keep-alive")


class Proxy(ThreadingHTTPServer):
    """An HTTP proxy in front of a gateway. `mode` says what it does with streams; `down` refuses all requests."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, upstream_port: int, mode: Mode) -> None:
        super().__init__(("127.0.0.1", 0), ProxyHandler)
        self.upstream_port = upstream_port
        self.mode: Mode = mode
        self.closing = threading.Event()
        self.streams: list[socket] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def cut_streams(self) -> None:
        for stream in self.streams:
            with suppress(OSError):  # the browser has closed it
                stream.shutdown(SHUT_RDWR)


class ProxyHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy
    answers: ClassVar[dict[str, tuple[int, str, bytes]]] = {
        "502": (502, "text/html", PAGE),
        "503": (503, "text/html", PAGE),
        "504": (504, "text/html", PAGE),
        "403": (403, "text/html", PAGE),
        "problem": (503, "application/problem+json", PROBLEM),
        "html": (200, "text/html", PAGE),
        "empty": (200, "text/event-stream", b""),
        "down": (502, "text/html", PAGE),
    }

    def handle_request(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        mode = self.server.mode
        is_stream = self.path.startswith("/api/stream")
        if mode in self.answers and (is_stream or mode == "down"):
            self.answer(*self.answers[mode])
        elif mode == "buffer" and is_stream:
            self.server.closing.wait()
        else:
            self.pass_on(body, is_stream)

    do_GET = do_POST = do_PATCH = do_DELETE = handle_request  # noqa: N815

    def answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def pass_on(self, body: bytes, is_stream: bool) -> None:
        upstream = HTTPConnection("127.0.0.1", self.server.upstream_port)
        own = f"127.0.0.1:{self.server.upstream_port}"
        headers = {**dict(self.headers.items()), "Host": own}
        if "Origin" in headers:
            headers["Origin"] = f"http://{own}"
        upstream.connect()
        if is_stream:
            self.server.streams += [self.connection, upstream.sock]
        upstream.request(self.command, self.path, body or None, headers)
        response = upstream.getresponse()
        try:
            self.pass_back(response)
        finally:
            response.close()
            upstream.close()

    def pass_back(self, response: HTTPResponse) -> None:
        self.send_response(response.status)
        for name, value in response.getheaders():
            if name.lower() not in HOP_BY_HOP:
                self.send_header(name, value)
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        while piece := response.read1(CHUNK_BYTES):
            self.wfile.write(piece)
            self.wfile.flush()

    def log_message(self, *_: object) -> None:
        """Requests are not logged."""


@contextmanager
def proxy(server: PageServer, mode: Mode) -> Iterator[Proxy]:
    started = Proxy(server.port, mode)
    started.handle_error = lambda *_: None  # type: ignore[method-assign]  # browsers drop connections
    thread = threading.Thread(target=started.serve_forever)
    thread.start()
    try:
        yield started
    finally:
        started.closing.set()
        started.cut_streams()
        started.shutdown()
        thread.join()
        started.server_close()


def badge(user: PageUser, text: str) -> None:
    expect(user.page.get_by_role("banner").get_by_text(text, exact=True)).to_be_visible()


@pytest.mark.parametrize("mode", REFUSALS)
def test_the_page_polls_where_streams_are_refused(chromium: Browser, server: PageServer, mode: Mode) -> None:
    server.open_gate()
    with proxy(server, mode) as front, open_page(chromium, server) as user:
        user.page.goto(f"{front.url}/#token={server.token}")
        badge(user, "Polling")

        user.send(f"hello by polling, {mode}")

        user.expect_text(f"hello by polling, {mode}", times=2)
        expect(user.page.get_by_text("Offline")).to_have_count(0)


def test_an_answer_continues_when_streams_are_refused_from_now_on(chromium: Browser, server: PageServer) -> None:
    server.close_gate()
    with proxy(server, "pass") as front, open_page(chromium, server) as user:
        user.page.goto(f"{front.url}/#token={server.token}")
        user.expect_live()
        user.send("held: one two three four")
        expect(user.log.get_by_text("Streaming")).to_be_visible()

        front.mode = "502"
        front.cut_streams()
        server.open_gate()

        expect(user.answers().locator("p")).to_have_text("held: one two three four")
        badge(user, "Polling")


def test_a_server_that_refuses_everything_is_shown_as_offline(chromium: Browser, server: PageServer) -> None:
    server.open_gate()
    with proxy(server, "pass") as front, open_page(chromium, server) as user:
        user.page.goto(f"{front.url}/#token={server.token}")
        user.expect_live()

        front.mode = "down"
        front.cut_streams()

        badge(user, "Offline")
        front.mode = "pass"
        user.expect_live()
