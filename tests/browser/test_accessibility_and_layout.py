"""Accessibility, keyboard, phone layout, long logs, and the size of the initial load."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from magent2.bus.connect import connect
from magent2.bus.operations import Append
from magent2.bus.records import NewRecord
from tests.support import browser as support
from tests.support.browser import AXE, PAGE_INDEX, PHONE, PageServer, PageUser, open_page, write_outbox

pytestmark = pytest.mark.browser

ROOT_PATH = "/team"  # as behind a proxy that serves the page under a path
INITIAL_MAX_BYTES = 180 * 1024  # of JavaScript, gzipped
LONG_LOG_EVENTS = 20_000
FRAMES = """async (turns) => {
  const box = document.querySelector('[role=log]');
  const times = [];
  let last = performance.now();
  for (let turn = 0; turn < turns; turn += 1) {
    box.scrollTop -= 400;
    await new Promise(requestAnimationFrame);
    const now = performance.now();
    times.push(now - last);
    last = now;
  }
  times.sort((a, b) => a - b);
  const at = (part) => times[Math.floor(turns * part)];
  return {p50: at(0.5), p95: at(0.95), rows: box.querySelectorAll('[data-index]').length};
}"""


def violations(page: Page, where: str, rules: list[str] | None) -> list[str]:
    """The violations that axe finds in a part of the page, one line each."""
    options = {"resultTypes": ["violations"], **({} if rules is None else {"runOnly": rules})}
    found = page.evaluate("([where, options]) => axe.run(where, options)", [where, options])
    return [f"{one['id']}: {node['html'][:160]}" for one in found["violations"] for node in one["nodes"]]


@pytest.fixture(params=["light", "dark"])
def themed_user(
    request: pytest.FixtureRequest, chromium: Browser, server: PageServer
) -> Iterator[tuple[PageUser, list[str] | None]]:
    """A user, and the axe rules to run: with the dark theme only the colours differ."""
    server.close_gate()
    with open_page(chromium, server, color_scheme=request.param, bypass_csp=True) as user:
        user.page.add_init_script(path=AXE)
        yield user, None if request.param == "light" else ["color-contrast"]


def test_axe_finds_no_violations_in_any_view(themed_user: tuple[PageUser, list[str] | None]) -> None:
    user, rules = themed_user
    page, found = user.page, {}
    page.goto(user.server.url)
    expect(page.get_by_label("Token or key")).to_be_visible()
    found["token"] = violations(page, "html", rules)
    user.sign_in()
    expect(page.get_by_role("button", name="Watch a tool call")).to_be_visible()
    found["empty"] = violations(page, "html", rules)
    user.send("weather in Oslo")
    expect(user.answers()).to_have_count(1)
    user.send("# Title\n\n- one\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```python\nprint(1)\n```")
    expect(user.answers()).to_have_count(2)
    user.send("held: one two three four")
    expect(user.log.get_by_text("Streaming")).to_be_visible()
    user.log.get_by_role("button", name="weather").click()
    found["chat"] = violations(page, "html", rules)
    page.get_by_role("button", name="New conversation").click()
    user.send(f"use start_agent {json.dumps({'agent': 'support', 'task': 'refund order 7'})}")
    expect(user.log.get_by_text("Needs approval")).to_be_visible()
    found["subagent"] = violations(page, "main", rules)
    user.log.get_by_role("link", name="Open to decide").click()
    expect(user.log.get_by_text("Needs approval")).to_be_visible()
    found["approval"] = violations(page, "main", rules)
    page.get_by_role("button", name="New conversation").click()
    user.send("down: for a while")
    user.log.get_by_role("button", name="Stop retrying").click()  # more failures would suspend the calls of other tests
    expect(user.log.get_by_text("Stopped.")).to_be_visible()
    found["failure"] = violations(page, "html", rules)
    write_outbox(user.server, "light" if rules is None else "dark")
    details = page.get_by_role("complementary", name="Details")
    for tab in ("Tools", "Timeline", "Usage", "Events", "Graph", "Dead letters", "Outbox"):
        details.get_by_role("tab", name=tab).click()
        expect(details.get_by_text("Loading…")).to_have_count(0)
        if tab == "Tools":
            details.get_by_text("echo_context", exact=True).click()
        if tab == "Outbox":
            details.get_by_role("button", name="Drop").first.click()
        found[tab] = violations(page, "aside", rules)
    page.get_by_role("button", name="Keyboard shortcuts").click()
    found["help"] = violations(page, "dialog", rules)

    assert {view: lines for view, lines in found.items() if lines} == {}


def test_the_page_can_be_used_with_the_keyboard_alone(user: PageUser) -> None:
    keys = user.page.keyboard
    user.page.locator("body").focus()
    keys.press("?")
    expect(user.page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    keys.press("Escape")
    expect(user.page.get_by_role("dialog")).to_have_count(0)
    keys.press("/")
    expect(user.message_box).to_be_focused()
    keys.type("held: one two three four")
    keys.press("Enter")
    expect(user.log.get_by_text("Streaming")).to_be_visible()
    keys.press("Control+.")
    expect(user.log.get_by_text("Stopped.")).to_be_visible()
    keys.press("Control+k")
    expect(user.page.get_by_label("Search conversations")).to_be_focused()
    keys.press("Control+Shift+O")
    expect(user.page.get_by_role("heading", name="What should the team do?")).to_be_visible()
    expect(user.message_box).to_be_focused()


def test_a_phone_shows_one_panel_at_a_time_without_horizontal_scrolling(chromium: Browser, server: PageServer) -> None:
    server.open_gate()
    with open_page(chromium, server, viewport=PHONE, has_touch=True, is_mobile=True) as user:
        user.sign_in()
        user.send("weather in Oslo, " + "a very long word " * 12 + "x" * 200)
        expect(user.answers()).to_have_count(1)

        assert user.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        expect(user.page.get_by_role("navigation", name="Conversations")).to_have_count(0)
        user.page.get_by_role("button", name="Conversations").click()
        user.page.get_by_role("navigation").get_by_role("link").first.click()
        expect(user.page.get_by_role("navigation", name="Conversations")).to_have_count(0)
        user.page.get_by_role("button", name="Details").click()
        expect(user.page.get_by_role("complementary", name="Details")).to_be_visible()


def test_the_message_box_is_as_wide_as_a_phone_during_a_run(chromium: Browser, server: PageServer) -> None:
    server.close_gate()
    with open_page(chromium, server, viewport=PHONE, has_touch=True, is_mobile=True) as user:
        user.sign_in()
        user.send("held: one two three")
        expect(user.page.get_by_label("While the agent works")).to_be_visible()

        box = user.message_box.bounding_box()

        assert box is not None
        assert box["width"] > 0.75 * PHONE["width"]
        assert user.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        server.open_gate()


BROKEN_WORDS = """cells => cells.flatMap(cell => {
  const range = document.createRange();
  range.selectNodeContents(cell);
  return range.getClientRects().length > 1 ? [cell.textContent] : [];
})"""
TABLE = (
    "| Department | Responsible | Availability | Description |\n|---|---|---|---|\n"
    "| Administration | Bartholomew | immediately | Documentation |\n"
)


def test_a_table_on_a_phone_scrolls_and_breaks_no_word(chromium: Browser, server: PageServer) -> None:
    server.open_gate()
    with open_page(chromium, server, viewport=PHONE, has_touch=True, is_mobile=True) as user:
        user.sign_in()
        user.send(TABLE)
        expect(user.answers().get_by_role("table")).to_be_visible()

        assert user.answers().locator("th, td").evaluate_all(BROKEN_WORDS) == []
        assert user.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_screen_readers_are_told_about_answers_and_handoffs(user: PageUser) -> None:
    user.server.open_gate()
    user.send("hello")
    told = user.page.locator(".sr-only[aria-live=polite]")

    expect(told).to_contain_text("general: hello")
    user.send("talk to sales")
    expect(told).to_contain_text("Handed off to sales.")


def test_a_log_of_twenty_thousand_events_opens_at_its_end_and_scrolls(user: PageUser) -> None:
    write_long_log(user.server)
    user.page.goto(f"{user.server.url}/#/c/long")
    expect(user.log.get_by_text(f"message {LONG_LOG_EVENTS - 1}", exact=True)).to_be_in_viewport()

    frames = user.page.evaluate(FRAMES, 60)

    print(json.dumps({"long_log_frame_p50_ms": frames["p50"], "long_log_frame_p95_ms": frames["p95"]}))
    assert 0 < frames["rows"] < 100  # only visible rows are in the document
    user.page.get_by_role("button", name="Jump to latest").click()
    expect(user.log.get_by_text(f"message {LONG_LOG_EVENTS - 1}", exact=True)).to_be_in_viewport()


def write_long_log(server: PageServer) -> None:
    bus = connect(server.bus_url)
    at = "2026-11-01T00:00:00Z"
    for start in range(0, LONG_LOG_EVENTS, 1_000):
        records = tuple(
            NewRecord("stream:long", {"event": "user_message", "conversation_id": "long", "created_at": at,
                                      "message_id": f"m{n}", "sender": "user:me", "recipient": "chat:long",
                                      "text": f"message {n}"})
            for n in range(start, start + 1_000)
        )  # fmt: skip
        bus.call(Append(records=records))
    bus.close()


def test_the_initial_load_is_small_and_excludes_graph_and_highlighting() -> None:
    support.skip_if_excluded()
    support.chromium()
    index = PAGE_INDEX.read_text()
    names = re.findall(r'(?:src|href)="\./(page/[^"]+\.js)"', index)
    first = sum(len(gzip.compress((PAGE_INDEX.parent / name).read_bytes())) for name in names)
    late = [path.name for path in (PAGE_INDEX.parent / "page").glob("*.js") if f"page/{path.name}" not in names]

    print(json.dumps({"initial_js_gzip_bytes": first}))
    assert first <= INITIAL_MAX_BYTES
    assert any(name.startswith("GraphPanel") for name in late)
    assert any(name.startswith("HighlightedCode") for name in late)
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|https?://", index)
