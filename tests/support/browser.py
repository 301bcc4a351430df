"""Chromium, and a running gateway with the page, for the tests of the page."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, expect, sync_playwright

from magent2.bus.connect import connect
from magent2.bus.flow import run
from magent2.bus.operations import Append
from magent2.connectors.interface import Outgoing
from magent2.connectors.outbox import queued, told
from magent2.directory.connectors import Capabilities, registering
from tests.support.forked import ROOT
from tests.support.processes import Child, Crew

HOUSE = "tests.browser.children.house"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
DEADLINE_MS = 20_000  # long after anything that works has happened, also on a machine with other work
WIDE = {"width": 1360, "height": 860}
PHONE = {"width": 390, "height": 780}
AXE = ROOT / "web" / "node_modules" / "axe-core" / "axe.min.js"
BUILT = ROOT / "magent2" / "web" / "index.html"
AT = "2026-01-01T00:00:00+00:00"
NOBODY = {
    "url": "http://127.0.0.1:9/",
    "secret": "a long secret, of no use",  # pragma: allowlist secret
    "allow_private": True,
}


def skip_if_left_out() -> None:
    if "browser" in os.environ.get("SKIP", "").split(","):
        pytest.skip("SKIP=browser leaves the tests of the page out")


def chromium() -> str:
    found = os.environ.get("CHROMIUM") or next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.fail(
            "no Chromium: `scripts/ensure browser` installs one or says how; SKIP=browser leaves these tests out"
        )
    if not BUILT.is_file():
        pytest.fail("the page is not built: make web, or leave these tests out: SKIP=browser")
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


class House:
    """A running gateway with its team, which can be killed and started again at the same place."""

    def __init__(self, crew: Crew, folder: Path, root_path: str = "") -> None:
        self._root_path = root_path
        self.bus_url = f"sqlite:///{folder / 'log.db'}"
        self.folder = folder
        self._crew = crew
        self.child, said = self._start(0)
        self.url, self.port, self.token = str(said["url"]), int(said["port"]), str(said["token"])

    def _start(self, port: int) -> tuple[Child, dict[str, Any]]:
        child = self._crew.spawn(
            HOUSE, url=self.bus_url, data_dir=str(self.folder), port=port, root_path=self._root_path
        )
        return child, child.hear()

    @property
    def address(self) -> str:
        return f"{self.url}/#token={self.token}"

    def open_gate(self) -> None:
        self.child.tell("open")

    def close_gate(self) -> None:
        self.child.tell("close")

    def kill(self) -> None:
        self.child.kill()

    def restart(self) -> None:
        self.child, _ = self._start(self.port)


class Visitor:
    """Somebody at the page. What goes wrong in their console is remembered."""

    def __init__(self, context: BrowserContext, house: House) -> None:
        self.context = context
        self.house = house
        self.page = context.new_page()
        self.troubles: list[str] = []
        self.page.set_default_timeout(DEADLINE_MS)
        self.page.on("pageerror", lambda error: self.troubles.append(str(error)))

    def enter(self) -> Visitor:
        """Come in by the address that the gateway prints."""
        self.page.goto(self.house.address)
        self.expect_live()
        return self

    def expect_live(self) -> None:
        expect(self.page.get_by_role("banner").get_by_text("Live", exact=True)).to_be_visible()

    @property
    def box(self) -> Locator:
        return self.page.get_by_role("textbox", name="Message", exact=True)

    @property
    def log(self) -> Locator:
        return self.page.get_by_role("log")

    def say(self, text: str) -> None:
        self.box.fill(text)
        self.box.press("Enter")

    def expect_said(self, text: str, times: int = 1) -> None:
        expect(self.log.get_by_text(text, exact=True)).to_have_count(times)

    def answers(self) -> Locator:
        return self.log.get_by_role("article", name="general")

    @property
    def session_id(self) -> str:
        return self.page.url.rpartition("/c/")[2]


@contextmanager
def visiting(browser: Browser, house: House, **options: Any) -> Iterator[Visitor]:
    """A browser profile of its own, which had no trouble when it leaves."""
    context = browser.new_context(**{"viewport": WIDE, "locale": "en-GB", **options})
    visitor = Visitor(context, house)
    yield visitor
    context.close()
    assert visitor.troubles == []


def write_outbox(house: House, name: str = "desk") -> None:
    """A new connector, and two messages that it could not send."""
    bus = connect(house.bus_url)
    connector = run(bus, registering(name, "webhook", Capabilities(), NOBODY))
    for key in ("stuck-1", "stuck-2"):
        message = Outgoing(key, name, f"ann-{key}", "somewhere", "general", "hello", AT)
        body, _ = queued(message, connector)
        bus.call(Append(records=(body, told(key, name, "dead", reason="the line is cut"))))
    bus.close()
