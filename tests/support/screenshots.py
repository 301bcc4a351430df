"""Take screenshots of every view of the page: `python -m tests.support.screenshots docs/images`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import Browser, expect

from magent2.bus.connect import connect
from magent2.client import Client
from tests.support.browser import PHONE, WIDE, PageServer, PageUser, browser, open_page, write_outbox
from tests.support.files import PNG
from tests.support.gated_model import befriend
from tests.support.processes import ProcessGroup
from tests.support.record_page_logs import PARTING, python

STORY = (
    "## What a turn is\n\nThe model's answer is **recorded** before its tools run:\n\n"
    "1. the answer, with what it has seen,\n2. each result, with what it sends,\n3. the end.\n\n"
    "| record | survives a crash |\n|---|---|\n| answer | yes |\n| tool result | yes |\n\n"
    "```python\nwith Client() as client:\n    sent = client.send('general', 'hello')\n"
    "    print(client.wait(sent).text)\n```"
)
SCHEDULES = (("What is new?", "Repeatedly", "0 9 * * 1-5"), ("Send the offer to Ann.", "After a time", "1d"))
PANELS = {"tools": "Tools", "timeline": "Timeline", "usage": "Usage", "events": "Events", "graph": "Graph"}
STILL = "*, ::before, ::after { animation: none !important; transition: none !important; caret-color: transparent }"

Shoot = Callable[[str], None]


def converse(user: PageUser) -> None:
    """A conversation with a tool call, a handoff and another tool call."""
    user.send("weather in Oslo")
    expect(user.answers()).to_have_count(1)
    user.send("talk to sales")
    expect(user.log.get_by_role("article", name="sales")).to_have_count(1)
    user.send("search for a lamp")
    expect(user.log.get_by_role("region", name="Tool product_search").get_by_text("Done")).to_be_visible()
    expect(user.log.get_by_text("is working")).to_have_count(0)


def steer(user: PageUser, shoot: Shoot) -> None:
    user.page.get_by_role("button", name="New conversation").click()
    user.send("gated: weather in Bergen")
    expect(user.log.get_by_text("general is working")).to_be_visible()
    user.send("In Celsius, and only for tomorrow.")
    expect(user.log.get_by_text("Waiting", exact=True)).to_be_visible()
    user.message_box.fill("One more thing")
    shoot("steer")
    user.message_box.fill("")
    user.server.open_gate()
    expect(user.log.get_by_text("Seen", exact=True)).to_be_visible()
    expect(user.log.get_by_text("is working")).to_have_count(0)


def decide(user: PageUser, shoot: Shoot) -> None:
    """One approval that was granted, and one that is pending."""
    user.page.get_by_role("button", name="New conversation").click()
    user.send("refund order 7")
    user.log.get_by_role("button", name="Approve").click()
    expect(user.answers()).to_have_count(1)
    user.send("refund order 8")
    expect(user.log.get_by_text("Needs approval")).to_be_visible()
    shoot("approval")
    user.page.get_by_role("button", name="Stop").click()
    expect(user.log.get_by_text("Stopped.")).to_be_visible()


def delegate(user: PageUser, shoot: Shoot) -> None:
    """A subagent that has finished, and one that needs approval."""
    user.page.get_by_role("button", name="New conversation").click()
    for task in ("weather in Bergen, and what to wear", "refund order 7"):
        user.send(f"use start_agent {json.dumps({'agent': 'support', 'task': task})}")
        expect(user.log.get_by_role("region", name="Subagent support").last).to_be_visible()
        expect(user.log.get_by_text("is working")).to_have_count(0)
    expect(user.log.get_by_text("Needs approval")).to_be_visible()
    shoot("subagent")
    user.log.get_by_role("link", name="Open to decide").click()
    expect(user.log.get_by_text("Needs approval")).to_be_visible()
    shoot("subagent-inside")


def send_out(user: PageUser, shoot: Shoot) -> None:
    """A sent file, and a block with one message that failed."""
    folder = user.server.folder / "files" / "general"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "offer.txt").write_text("One lamp. " * 2000)
    bus = connect(user.server.bus_url)
    befriend(bus)
    bus.close()
    user.page.get_by_role("button", name="New conversation").click()
    user.send(python(PARTING))
    expect(user.answers()).to_have_count(1)
    user.send(f"use send_file {json.dumps({'path': 'offer.txt', 'text': 'The offer, as you asked.'})}")
    expect(user.answers()).to_have_count(3)
    shoot("sending")


def attach(user: PageUser, shoot: Shoot) -> None:
    """A message with two files, and another file that is not sent yet."""
    user.page.get_by_role("button", name="New conversation").click()
    files = user.server.folder / "uploads"
    files.mkdir()
    (files / "offer.md").write_text("# Offer\n\nOne lamp.\n")
    (files / "prices.csv").write_text("id,price\nlamp-01,49\n")
    (files / "photo.png").write_bytes(PNG)
    _choose(user, files / "offer.md", files / "prices.csv")
    user.send("Compare the offer with our prices.")
    expect(user.answers()).to_have_count(1)
    _choose(user, files / "photo.png")
    user.message_box.fill("And this lamp?")
    shoot("files")
    user.message_box.fill("")
    user.page.get_by_role("list", name="Attached files").get_by_role("button").click()


def _choose(user: PageUser, *files: Path) -> None:
    with user.page.expect_file_chooser() as chooser:
        user.page.get_by_role("button", name="Attach").click()
    chooser.value.set_files(files)
    expect(user.page.get_by_role("list", name="Attached files").get_by_role("listitem")).to_have_count(len(files))


def use_up_a_budget(user: PageUser, shoot: Shoot) -> None:
    """A run that waits until its budget is raised."""
    user.page.get_by_role("button", name="New conversation").click()
    user.send("hello there")
    expect(user.answers()).to_have_count(1)
    with Client(user.server.url, user.server.token) as client:
        used = client.usage("conversation", conversation=user.session_id).total.calls
        client.set_budget("conversation", user.session_id, calls=used + 1)
    user.send("weather in Oslo")
    card = user.log.get_by_role("region", name="Budget").last
    expect(card.get_by_text("Paused")).to_be_visible()
    shoot("budget")
    card.get_by_role("button", name="Stop the run").click()
    expect(user.log.get_by_text("Stopped.")).to_be_visible()


def schedule(user: PageUser, shoot: Shoot) -> None:
    """A message for every working day, and one for tomorrow."""
    user.page.get_by_role("tab", name="Schedules").click()
    form = user.page.get_by_role("form", name="Add a schedule")
    entries = user.page.get_by_role("list", name="Schedules").get_by_role("listitem")
    for count, (text, kind, when) in enumerate(SCHEDULES, start=1):
        form.get_by_label("Message").fill(text)
        form.get_by_label("When").select_option(label=kind)
        form.locator("input").fill(when)
        form.get_by_role("button", name="Add schedule").click()
        expect(entries).to_have_count(count)
    shoot("schedules")
    user.page.get_by_role("tab", name="Agents").click()


def administer(user: PageUser, shoot: Shoot) -> None:
    """The dead letters and the outbox, which only admins see."""
    write_outbox(user.server)
    user.page.get_by_role("button", name="New conversation").click()
    user.send("fail: where is my parcel?")
    expect(user.log.get_by_text("The run failed.")).to_be_visible()
    user.page.get_by_role("tab", name="Dead letters").click()
    expect(user.page.get_by_role("list", name="Dead letters")).to_contain_text("parcel")
    shoot("letters")
    user.page.get_by_role("tab", name="Outbox").click()
    user.page.get_by_role("listitem").filter(has_text="ann-stuck-1").get_by_role("button", name="Drop").click()
    shoot("outbox")


def desktop(chromium: Browser, server: PageServer, folder: Path, theme: str) -> None:
    server.close_gate()
    with open_page(chromium, server, color_scheme=theme, viewport=WIDE, bypass_csp=True) as user:
        shoot = shooting(user, folder, theme)
        user.page.goto(server.url)
        expect(user.page.get_by_label("Token or key")).to_be_visible()
        shoot("token")
        user.sign_in()
        expect(user.page.get_by_role("button", name="Watch a tool call")).to_be_visible()
        expect(user.page.get_by_role("tab", name="Outbox")).to_be_visible()
        shoot("empty")
        converse(user)
        user.log.get_by_role("button", name="product_search").click()
        shoot("chat")
        for name, title in PANELS.items():
            user.page.get_by_role("tab", name=title).click()
            expect(user.page.get_by_text("Loading…")).to_have_count(0)
            if name == "tools":
                user.page.get_by_text("product_search", exact=True).last.click()
            shoot(name)
        user.page.get_by_role("tab", name="Agents").click()
        steer(user, shoot)
        user.page.get_by_role("button", name="New conversation").click()
        user.send(STORY)
        expect(user.answers().locator(".hljs-keyword").first).to_be_visible()
        shoot("markdown")
        user.page.get_by_role("button", name="New conversation").click()
        user.send("run a block")
        expect(user.log.get_by_role("button", name="Messages: 2 sent")).to_be_visible()
        user.send("run a block that fails")
        expect(user.answers()).to_have_count(2)
        shoot("block")
        decide(user, shoot)
        delegate(user, shoot)
        send_out(user, shoot)
        attach(user, shoot)
        schedule(user, shoot)
        use_up_a_budget(user, shoot)
        administer(user, shoot)
        user.page.get_by_role("button", name="Keyboard shortcuts").click()
        shoot("help")


def phone(chromium: Browser, server: PageServer, folder: Path, theme: str) -> None:
    server.open_gate()
    with open_page(
        chromium, server, color_scheme=theme, viewport=PHONE, is_mobile=True, has_touch=True, bypass_csp=True
    ) as user:
        shoot = shooting(user, folder, f"phone-{theme}")
        user.sign_in()
        expect(user.page.get_by_role("button", name="Watch a tool call")).to_be_visible()
        shoot("empty")
        converse(user)
        shoot("chat")
        user.page.get_by_role("button", name="Conversations").click()
        shoot("conversations")
        user.page.get_by_role("button", name="Close", exact=True).click(position={"x": 380, "y": 400})
        user.page.get_by_role("button", name="Details").click()
        shoot("details")
        user.page.get_by_role("button", name="Close details").click()
        user.send("talk to support")
        expect(user.log.get_by_role("article", name="support")).to_have_count(1)
        user.send("refund order 7")
        expect(user.log.get_by_text("Needs approval")).to_be_visible()
        shoot("approval")


def shooting(user: PageUser, folder: Path, suffix: str) -> Shoot:
    def shoot(name: str) -> None:
        user.page.add_style_tag(content=STILL)
        user.page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        user.page.screenshot(path=folder / f"{name}-{suffix}.png")

    return shoot


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with browser() as chromium:
        for theme in ("light", "dark"):
            for shoot_all in (desktop, phone):
                with TemporaryDirectory() as scratch, ProcessGroup() as process_group:
                    shoot_all(chromium, PageServer(process_group, Path(scratch)), folder, theme)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
