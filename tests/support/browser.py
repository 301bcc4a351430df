"""Chromium, a running gateway, and a user of the page, for browser tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Route, expect, sync_playwright

from magent2.bus.connect import connect
from magent2.bus.log import run_sync
from magent2.bus.operations import Append
from magent2.connectors.interface import OutgoingMessage
from magent2.connectors.outbox import queue_records, state_record
from magent2.directory.connectors import Capabilities, register_connector
from tests.support.forked_processes import ROOT
from tests.support.ports import quiet_port
from tests.support.processes import Child, ProcessGroup

SERVER_MODULE = "tests.browser.children.page_server"
# The headless shell has no windows: it opens a page in half of the processor time.
CHROMIUM_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Chromium takes the last list of features, so those that Playwright disables are repeated.
DISABLED_FEATURES = (
    "AvoidUnnecessaryBeforeUnloadCheckSync",
    "DestroyProfileOnBrowserClose",
    "HttpsFirstBalancedModeAutoEnable",
    "HttpsUpgrades",
    "LensOverlay",
    "MediaRouter",
    "NetworkTimeServiceQuerying",
    "OptimizationHints",
    "PaintHolding",
    "PreconnectToSearch",
    "ThirdPartyStoragePartitioning",
    # The popups of the address bar are pages of their own. They take half of the processor time of opening a window.
    "WebUIOmniboxAimPopup",
    "WebUIOmniboxPopup",
)
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    f"--disable-features={','.join(DISABLED_FEATURES)}",
    "--js-flags=--single-threaded",  # helper threads cost a tenth more processor time
)
DEADLINE_MS = 20_000  # generous, for machines that are busy with other work
WIDE = {"width": 1360, "height": 860}
PHONE = {"width": 390, "height": 780}
AXE = ROOT / "web" / "node_modules" / "axe-core" / "axe.min.js"
PAGE_INDEX = ROOT / "magent2" / "web" / "index.html"
CREATED_AT = "2026-01-01T00:00:00+00:00"
UNREACHABLE_WEBHOOK = {
    "url": "http://127.0.0.1:9/",
    "secret": "a long secret for tests",  # pragma: allowlist secret
    "allow_private": True,
}


def skip_if_excluded() -> None:
    if "browser" in os.environ.get("SKIP", "").split(","):
        pytest.skip("SKIP=browser excludes the browser tests")


def chromium() -> str:
    """Path of the Chromium binary. Fails the test if it is missing or the page is not built."""
    found = os.environ.get("CHROMIUM") or next((path for name in CHROMIUM_NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.fail(
            "no Chromium: `scripts/ensure browser` installs one or explains how; SKIP=browser excludes these tests"
        )
    if not PAGE_INDEX.is_file():
        pytest.fail("the page is not built: run `make web`; SKIP=browser excludes these tests")
    return found


@contextmanager
def browser() -> Iterator[Browser]:
    """One Chromium process."""
    expect.set_options(timeout=DEADLINE_MS)
    path = chromium()
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield launched
        launched.close()


class PageServer:
    """A gateway with a team in a process of its own, which can be killed and restarted on the same port."""

    def __init__(self, process_group: ProcessGroup, folder: Path, root_path: str = "") -> None:
        self._root_path = root_path
        self.bus_url = f"sqlite:///{folder / 'log.db'}"
        self.folder = folder
        self._process_group = process_group
        self.child, report = self._start(quiet_port())
        self.url, self.port, self.token = str(report["url"]), int(report["port"]), str(report["token"])

    def _start(self, port: int) -> tuple[Child, dict[str, Any]]:
        child = self._process_group.spawn(
            SERVER_MODULE, url=self.bus_url, data_dir=str(self.folder), port=port, root_path=self._root_path
        )
        return child, child.next_report()

    @property
    def sign_in_url(self) -> str:
        return f"{self.url}/#token={self.token}"

    def open_gate(self) -> None:
        self._move_gate("open")

    def close_gate(self) -> None:
        self._move_gate("close")

    def _move_gate(self, command: str) -> None:
        """Returns once it is done, so that a message sent from now on finds the gate so."""
        self.child.write_line(command)
        assert self.child.next_report() == {"gate": command}

    def kill(self) -> None:
        self.child.kill()

    def restart(self) -> None:
        self.child, _ = self._start(self.port)


class PageUser:
    """A user with the page open. Uncaught errors of the page are collected."""

    def __init__(self, context: BrowserContext, server: PageServer) -> None:
        self.context = context
        self.server = server
        self.page = context.new_page()
        self.page_errors: list[str] = []
        self.page.set_default_timeout(DEADLINE_MS)
        self.page.on("pageerror", lambda error: self.page_errors.append(str(error)))

    def sign_in(self) -> PageUser:
        """Open the URL that the gateway prints and wait until the page is live."""
        self.page.goto(self.server.sign_in_url)
        self.expect_live()
        return self

    def expect_live(self) -> None:
        expect(self.page.get_by_role("banner").get_by_text("Live", exact=True)).to_be_visible()

    @property
    def message_box(self) -> Locator:
        return self.page.get_by_role("textbox", name="Message", exact=True)

    @property
    def log(self) -> Locator:
        return self.page.get_by_role("log")

    def send(self, text: str) -> None:
        self.message_box.fill(text)
        self.message_box.press("Enter")

    def hold_requests(self, pattern: str) -> list[Route]:
        """Leave matching requests unanswered until the test continues them."""
        held: list[Route] = []

        def hold(route: Route) -> None:
            held.append(route)

        self.page.route(pattern, hold)
        return held

    def expect_text(self, text: str, times: int = 1) -> None:
        expect(self.log.get_by_text(text, exact=True)).to_have_count(times)

    def answers(self) -> Locator:
        return self.log.get_by_role("article", name="general")

    @property
    def listed(self) -> Locator:
        """The entry of the current conversation in the list."""
        entries = self.page.get_by_role("navigation", name="Conversations").get_by_role("listitem")
        return entries.filter(has=self.page.locator("[aria-current=page]"))

    @property
    def session_id(self) -> str:
        return self.page.url.rpartition("/c/")[2]


@contextmanager
def open_page(browser: Browser, server: PageServer, **options: Any) -> Iterator[PageUser]:
    """Open the page in a new browser profile; fails if the page had uncaught errors."""
    context = browser.new_context(**{"viewport": WIDE, "locale": "en-GB", **options})
    user = PageUser(context, server)
    yield user
    context.close()
    assert user.page_errors == []


def write_outbox(server: PageServer, name: str = "webhook") -> None:
    """Register a connector with two messages that failed to be sent."""
    bus = connect(server.bus_url)
    connector = run_sync(bus, register_connector, name, "webhook", Capabilities(), UNREACHABLE_WEBHOOK)
    for key in ("stuck-1", "stuck-2"):
        message = OutgoingMessage(key, name, f"ann-{key}", "somewhere", "general", "hello", CREATED_AT)
        body, _ = queue_records(message, connector)
        bus.call(Append(records=(body, state_record(key, name, "dead", reason="connection refused"))))
    bus.close()
