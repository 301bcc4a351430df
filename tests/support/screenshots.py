"""Pictures of every view of the page: `python -m tests.support.screenshots docs/images`. Look at each of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import Browser, expect

from magent2.bus.connect import connect
from tests.support.browser import PHONE, WIDE, House, Visitor, browser, visiting, write_outbox
from tests.support.gated_model import befriend
from tests.support.processes import Crew
from tests.support.record_page_logs import PARTING, python

STORY = (
    "## What a turn is\n\nThe model's answer is **recorded** before its tools run:\n\n"
    "1. the answer, with what it has seen,\n2. each result, with what it sends,\n3. the end.\n\n"
    "| record | survives a crash |\n|---|---|\n| answer | yes |\n| tool result | yes |\n\n"
    "```python\nwith Client() as client:\n    sent = client.send('general', 'hello')\n"
    "    print(client.wait(sent).text)\n```"
)
PANELS = {"tools": "Tools", "timeline": "Timeline", "usage": "Context and usage", "events": "Events", "graph": "Graph"}
STILL = "*, ::before, ::after { animation: none !important; transition: none !important; caret-color: transparent }"

Shoot = Callable[[str], None]


def converse(visitor: Visitor) -> None:
    """A conversation that has something of everything."""
    visitor.say("weather in Oslo")
    expect(visitor.answers()).to_have_count(1)
    visitor.say("talk to sales")
    expect(visitor.log.get_by_role("article", name="sales")).to_have_count(1)
    visitor.say("search for a lamp")
    expect(visitor.log.get_by_role("region", name="Tool product_search").get_by_text("Done")).to_be_visible()
    expect(visitor.log.get_by_text("is at work")).to_have_count(0)


def steer(visitor: Visitor, shoot: Shoot) -> None:
    visitor.page.get_by_role("button", name="New conversation").click()
    visitor.say("gated: weather in Bergen")
    expect(visitor.log.get_by_text("general is at work")).to_be_visible()
    visitor.say("In Celsius, and only for tomorrow.")
    expect(visitor.log.get_by_text("Waiting", exact=True)).to_be_visible()
    visitor.box.fill("One more thing")
    shoot("steer")
    visitor.box.fill("")
    visitor.house.open_gate()
    expect(visitor.log.get_by_text("Seen", exact=True)).to_be_visible()
    expect(visitor.log.get_by_text("is at work")).to_have_count(0)


def decide(visitor: Visitor, shoot: Shoot) -> None:
    """One approval that was given, and one that waits."""
    visitor.page.get_by_role("button", name="New conversation").click()
    visitor.say("refund order 7")
    visitor.log.get_by_role("button", name="Approve").click()
    expect(visitor.answers()).to_have_count(1)
    visitor.say("refund order 8")
    expect(visitor.log.get_by_text("Waits for you")).to_be_visible()
    shoot("approval")
    visitor.page.get_by_role("button", name="Stop").click()
    expect(visitor.log.get_by_text("Stopped.")).to_be_visible()


def delegate(visitor: Visitor, shoot: Shoot) -> None:
    """A subagent that is done, and one that needs somebody."""
    visitor.page.get_by_role("button", name="New conversation").click()
    for task in ("weather in Bergen, and what to wear", "refund order 7"):
        visitor.say(f"use start_agent {json.dumps({'agent': 'support', 'task': task})}")
        expect(visitor.log.get_by_role("region", name="Subagent support").last).to_be_visible()
        expect(visitor.log.get_by_text("is at work")).to_have_count(0)
    expect(visitor.log.get_by_text("Needs a decision")).to_be_visible()
    shoot("subagent")
    visitor.log.get_by_role("link", name="Open it to decide").click()
    expect(visitor.log.get_by_text("Waits for you")).to_be_visible()
    shoot("subagent-inside")


def send_out(visitor: Visitor, shoot: Shoot) -> None:
    """A file, and a block of whose messages one failed."""
    folder = visitor.house.folder / "files" / "general"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "offer.txt").write_text("One lamp. " * 2000)
    bus = connect(visitor.house.bus_url)
    befriend(bus)
    bus.close()
    visitor.page.get_by_role("button", name="New conversation").click()
    visitor.say(python(PARTING))
    expect(visitor.answers()).to_have_count(1)
    visitor.say(f"use send_file {json.dumps({'path': 'offer.txt', 'text': 'The offer, as you asked.'})}")
    expect(visitor.answers()).to_have_count(3)
    shoot("sending")


def look_after(visitor: Visitor, shoot: Shoot) -> None:
    """What is for admins."""
    write_outbox(visitor.house)
    visitor.page.get_by_role("button", name="New conversation").click()
    visitor.say("fail: where is my parcel?")
    expect(visitor.log.get_by_text("The run failed.")).to_be_visible()
    visitor.page.get_by_role("tab", name="Dead letters").click()
    expect(visitor.page.get_by_role("list", name="Dead letters")).to_contain_text("parcel")
    shoot("letters")
    visitor.page.get_by_role("tab", name="Outbox").click()
    visitor.page.get_by_role("listitem").filter(has_text="ann-stuck-1").get_by_role("button", name="Drop").click()
    shoot("outbox")


def desktop(chromium: Browser, house: House, folder: Path, theme: str) -> None:
    house.close_gate()
    with visiting(chromium, house, color_scheme=theme, viewport=WIDE, bypass_csp=True) as visitor:
        shoot = shooting(visitor, folder, theme)
        visitor.page.goto(house.url)
        expect(visitor.page.get_by_label("Token or key")).to_be_visible()
        shoot("token")
        visitor.enter()
        expect(visitor.page.get_by_role("button", name="Watch a tool at work")).to_be_visible()
        expect(visitor.page.get_by_role("tab", name="Outbox")).to_be_visible()
        shoot("empty")
        converse(visitor)
        visitor.log.get_by_role("button", name="product_search").click()
        shoot("chat")
        for name, title in PANELS.items():
            visitor.page.get_by_role("tab", name=title).click()
            expect(visitor.page.get_by_text("Loading…")).to_have_count(0)
            if name == "tools":
                visitor.page.get_by_text("product_search", exact=True).last.click()
            shoot(name)
        visitor.page.get_by_role("tab", name="Agents").click()
        steer(visitor, shoot)
        visitor.page.get_by_role("button", name="New conversation").click()
        visitor.say(STORY)
        expect(visitor.answers().locator(".hljs-keyword").first).to_be_visible()
        shoot("markdown")
        visitor.page.get_by_role("button", name="New conversation").click()
        visitor.say("run a block")
        expect(visitor.log.get_by_role("button", name="Messages: 2 sent")).to_be_visible()
        visitor.say("run a block that fails")
        expect(visitor.answers()).to_have_count(2)
        shoot("block")
        decide(visitor, shoot)
        delegate(visitor, shoot)
        send_out(visitor, shoot)
        look_after(visitor, shoot)
        visitor.page.get_by_role("button", name="Keyboard help").click()
        shoot("help")


def phone(chromium: Browser, house: House, folder: Path, theme: str) -> None:
    house.open_gate()
    with visiting(
        chromium, house, color_scheme=theme, viewport=PHONE, is_mobile=True, has_touch=True, bypass_csp=True
    ) as visitor:
        shoot = shooting(visitor, folder, f"phone-{theme}")
        visitor.enter()
        expect(visitor.page.get_by_role("button", name="Watch a tool at work")).to_be_visible()
        shoot("empty")
        converse(visitor)
        shoot("chat")
        visitor.page.get_by_role("button", name="Conversations").click()
        shoot("conversations")
        visitor.page.get_by_role("button", name="Close", exact=True).click(position={"x": 380, "y": 400})
        visitor.page.get_by_role("button", name="Details").click()
        shoot("details")
        visitor.page.get_by_role("button", name="Close details").click()
        visitor.say("talk to support")
        expect(visitor.log.get_by_role("article", name="support")).to_have_count(1)
        visitor.say("refund order 7")
        expect(visitor.log.get_by_text("Waits for you")).to_be_visible()
        shoot("approval")


def shooting(visitor: Visitor, folder: Path, suffix: str) -> Shoot:
    def shoot(name: str) -> None:
        visitor.page.add_style_tag(content=STILL)
        visitor.page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        visitor.page.screenshot(path=folder / f"{name}-{suffix}.png")

    return shoot


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with browser() as chromium:
        for theme in ("light", "dark"):
            for shoot_all in (desktop, phone):
                with TemporaryDirectory() as scratch, Crew() as crew:
                    shoot_all(chromium, House(crew, Path(scratch)), folder, theme)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
