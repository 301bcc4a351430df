"""How the page is to be used: without a mouse, on a phone, by ear, with a long log, over a thin line."""

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
from tests.support.browser import AXE, BUILT, PHONE, House, Visitor, visiting, write_outbox

pytestmark = pytest.mark.browser

ROOT_PATH = "/team"  # all of this behind a proxy that put something in front of the path
INITIAL_MAX_BYTES = 180 * 1024  # of JavaScript, packed
LONG = 20_000
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
    """What axe finds in a part of the page, as lines that say where."""
    options = {"resultTypes": ["violations"], **({} if rules is None else {"runOnly": rules})}
    found = page.evaluate("([where, options]) => axe.run(where, options)", [where, options])
    return [f"{one['id']}: {node['html'][:160]}" for one in found["violations"] for node in one["nodes"]]


@pytest.fixture(params=["light", "dark"])
def viewer(
    request: pytest.FixtureRequest, chromium: Browser, house: House
) -> Iterator[tuple[Visitor, list[str] | None]]:
    """Somebody, and which of axe's rules to try: in the dark only colours are others."""
    house.close_gate()
    with visiting(chromium, house, color_scheme=request.param, bypass_csp=True) as visitor:
        visitor.page.add_init_script(path=AXE)
        yield visitor, None if request.param == "light" else ["color-contrast"]


def test_axe_finds_nothing_to_mend_in_any_view(viewer: tuple[Visitor, list[str] | None]) -> None:
    visitor, rules = viewer
    page, found = visitor.page, {}
    page.goto(visitor.house.url)
    expect(page.get_by_label("Token or key")).to_be_visible()
    found["token"] = violations(page, "html", rules)
    visitor.enter()
    expect(page.get_by_role("button", name="Watch a tool at work")).to_be_visible()
    found["empty"] = violations(page, "html", rules)
    visitor.say("weather in Oslo")
    expect(visitor.answers()).to_have_count(1)
    visitor.say("# Title\n\n- one\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```python\nprint(1)\n```")
    expect(visitor.answers()).to_have_count(2)
    visitor.say("held: one two three four")
    expect(visitor.log.get_by_text("Streaming")).to_be_visible()
    visitor.log.get_by_role("button", name="weather").click()
    found["chat"] = violations(page, "html", rules)
    page.get_by_role("button", name="New conversation").click()
    visitor.say(f"use start_agent {json.dumps({'agent': 'support', 'task': 'refund order 7'})}")
    expect(visitor.log.get_by_text("Needs a decision")).to_be_visible()
    found["subagent"] = violations(page, "main", rules)
    visitor.log.get_by_role("link", name="Open it to decide").click()
    expect(visitor.log.get_by_text("Waits for you")).to_be_visible()
    found["approval"] = violations(page, "main", rules)
    write_outbox(visitor.house, "light" if rules is None else "dark")
    details = page.get_by_role("complementary", name="Details")
    for tab in ("Tools", "Timeline", "Context and usage", "Events", "Graph", "Dead letters", "Outbox"):
        details.get_by_role("tab", name=tab).click()
        expect(details.get_by_text("Loading…")).to_have_count(0)
        if tab == "Tools":
            details.get_by_text("echo_context", exact=True).click()
        if tab == "Outbox":
            details.get_by_role("button", name="Drop").first.click()
        found[tab] = violations(page, "aside", rules)
    page.get_by_role("button", name="Keyboard help").click()
    found["help"] = violations(page, "dialog", rules)

    assert {view: lines for view, lines in found.items() if lines} == {}


def test_everything_can_be_done_with_the_keyboard(visitor: Visitor) -> None:
    keys = visitor.page.keyboard
    visitor.page.locator("body").focus()
    keys.press("?")
    expect(visitor.page.get_by_role("dialog", name="Keyboard")).to_be_visible()
    keys.press("Escape")
    expect(visitor.page.get_by_role("dialog")).to_have_count(0)
    keys.press("/")
    expect(visitor.box).to_be_focused()
    keys.type("held: one two three four")
    keys.press("Enter")
    expect(visitor.log.get_by_text("Streaming")).to_be_visible()
    keys.press("Control+.")
    expect(visitor.log.get_by_text("Stopped.")).to_be_visible()
    keys.press("Control+k")
    expect(visitor.page.get_by_label("Search conversations")).to_be_focused()
    keys.press("Control+Shift+O")
    expect(visitor.page.get_by_role("heading", name="What should the team do?")).to_be_visible()
    expect(visitor.box).to_be_focused()


def test_on_a_phone_one_thing_is_shown_at_a_time_and_nothing_sticks_out(chromium: Browser, house: House) -> None:
    house.open_gate()
    with visiting(chromium, house, viewport=PHONE, has_touch=True, is_mobile=True) as visitor:
        visitor.enter()
        visitor.say("weather in Oslo, " + "a very long word " * 12 + "x" * 200)
        expect(visitor.answers()).to_have_count(1)

        assert visitor.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        expect(visitor.page.get_by_role("navigation", name="Conversations")).to_have_count(0)
        visitor.page.get_by_role("button", name="Conversations").click()
        visitor.page.get_by_role("navigation").get_by_role("link").first.click()
        expect(visitor.page.get_by_role("navigation", name="Conversations")).to_have_count(0)
        visitor.page.get_by_role("button", name="Details").click()
        expect(visitor.page.get_by_role("complementary", name="Details")).to_be_visible()


def test_one_who_listens_is_told_what_happens(visitor: Visitor) -> None:
    visitor.house.open_gate()
    visitor.say("hello")
    told = visitor.page.locator(".sr-only[aria-live=polite]")

    expect(told).to_contain_text("general: hello")
    visitor.say("talk to sales")
    expect(told).to_contain_text("sales takes over.")


def test_a_log_of_twenty_thousand_events_opens_at_its_end_and_scrolls(visitor: Visitor) -> None:
    write_long_log(visitor.house)
    visitor.page.goto(f"{visitor.house.url}/#/c/long")
    expect(visitor.log.get_by_text(f"message {LONG - 1}", exact=True)).to_be_in_viewport()

    frames = visitor.page.evaluate(FRAMES, 60)

    print(json.dumps({"long_log_frame_p50_ms": frames["p50"], "long_log_frame_p95_ms": frames["p95"]}))
    assert 0 < frames["rows"] < 100  # only what is in sight is in the document
    visitor.page.get_by_role("button", name="Latest").click()
    expect(visitor.log.get_by_text(f"message {LONG - 1}", exact=True)).to_be_in_viewport()


def write_long_log(house: House) -> None:
    bus = connect(house.bus_url)
    at = "2026-11-01T00:00:00Z"
    for start in range(0, LONG, 1_000):
        records = tuple(
            NewRecord("stream:long", {"event": "user_message", "conversation_id": "long", "created_at": at,
                                      "message_id": f"m{n}", "sender": "user:me", "recipient": "chat:long",
                                      "text": f"message {n}"})
            for n in range(start, start + 1_000)
        )  # fmt: skip
        bus.call(Append(records=records))
    bus.close()


def test_the_first_load_is_small_and_the_graph_and_the_colours_come_later() -> None:
    support.skip_if_left_out()
    support.chromium()
    index = BUILT.read_text()
    names = re.findall(r'(?:src|href)="\./(page/[^"]+\.js)"', index)
    first = sum(len(gzip.compress((BUILT.parent / name).read_bytes())) for name in names)
    late = [path.name for path in (BUILT.parent / "page").glob("*.js") if f"page/{path.name}" not in names]

    print(json.dumps({"initial_js_gzip_bytes": first}))
    assert first <= INITIAL_MAX_BYTES
    assert any(name.startswith("GraphPanel") for name in late)
    assert any(name.startswith("coloured") for name in late)
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|https?://", index)
