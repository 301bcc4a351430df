"""What waits for a person on the page: approvals, subagents, dead letters, the outbox, files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from magent2.bus.connect import connect
from magent2.client import Client
from tests.support.browser import Visitor, write_outbox
from tests.support.command_line import CommandLine
from tests.support.gated_model import befriend
from tests.support.record_page_logs import PARTING, python

pytestmark = pytest.mark.browser

START = f"use start_agent {json.dumps({'agent': 'support', 'task': 'refund order 7'})}"


def asked(visitor: Visitor, order: str = "7") -> Locator:
    """The card of a call that waits."""
    visitor.say(f"refund order {order}")
    card = visitor.log.get_by_role("region", name="Approval of refund")
    expect(card.get_by_text("Waits for you")).to_be_visible()
    return card


def panel(visitor: Visitor, tab: str) -> Locator:
    details = visitor.page.get_by_role("complementary", name="Details")
    details.get_by_role("tab", name=tab).click()
    return details.get_by_role("tabpanel", name=tab)


# --- approvals


def test_a_call_that_needs_approval_asks_where_it_happens_and_is_made_when_approved(visitor: Visitor) -> None:
    card = asked(visitor)
    expect(card).to_contain_text("general asks to run refund")
    expect(card.get_by_label("Arguments")).to_contain_text('"order": "7"')
    expect(card).to_contain_text("if nobody decides within 24 hours")
    expect(visitor.log.get_by_text("is at work")).to_have_count(0)
    listed = visitor.page.get_by_role("navigation").get_by_role("listitem").first
    expect(listed.get_by_text("Waits for you")).to_be_visible()

    card.get_by_role("button", name="Approve").focus()
    visitor.page.keyboard.press("Enter")

    expect(card.get_by_text("Approved")).to_be_visible()
    expect(card).to_contain_text("By local")
    expect(card.get_by_role("button", name="Approve")).to_have_count(0)
    expect(visitor.log.get_by_role("region", name="Tool refund").get_by_text("Done")).to_be_visible()
    expect(visitor.answers()).to_have_count(1)
    expect(listed.get_by_text("Waits for you")).to_have_count(0)


def test_a_rejection_tells_the_model_why(visitor: Visitor) -> None:
    card = asked(visitor)

    card.get_by_label("Reason, optional").fill("too dear")
    card.get_by_role("button", name="Reject").click()

    expect(card.get_by_text("Rejected")).to_be_visible()
    expect(card).to_contain_text("By local")
    expect(card).to_contain_text("too dear")
    expect(visitor.answers()).to_contain_text("has rejected it: too dear")


def test_a_reload_while_a_call_waits_leaves_it_waiting(visitor: Visitor) -> None:
    asked(visitor)

    visitor.page.reload()
    card = visitor.log.get_by_role("region", name="Approval of refund")
    expect(card).to_have_count(1)
    card.get_by_role("button", name="Approve").click()

    expect(card.get_by_text("Approved")).to_be_visible()
    expect(visitor.answers()).to_have_count(1)


def test_what_is_decided_in_another_tab_shows_in_this_one(visitor: Visitor) -> None:
    card = asked(visitor)
    other = visitor.context.new_page()
    other.goto(visitor.page.url)

    other.get_by_role("button", name="Approve").click()

    expect(card.get_by_text("Approved")).to_be_visible()
    expect(card.get_by_role("button", name="Reject")).to_have_count(0)
    expect(visitor.answers()).to_have_count(1)


def test_what_is_decided_on_the_command_line_shows_on_the_page(visitor: Visitor, tmp_path: Path) -> None:
    card = asked(visitor)
    url, token = visitor.house.url, visitor.house.token
    with Client(url, token) as client:
        (call,) = client.approvals(visitor.session_id)

    magent2 = CommandLine(tmp_path, MAGENT2_URL=url, MAGENT2_TOKEN=token)
    done = magent2.run("reject", visitor.session_id, call.call_id, "--reason", "not today")

    assert done.code == 0, done.err
    expect(card.get_by_text("Rejected")).to_be_visible()
    expect(card).to_contain_text("not today")


def test_a_stopped_run_asks_nobody_any_more(visitor: Visitor) -> None:
    card = asked(visitor)
    expect(visitor.page.get_by_text("What you write is seen when it goes on.")).to_be_visible()

    visitor.page.get_by_role("button", name="Stop").click()

    expect(card.get_by_text("Not needed any more")).to_be_visible()
    expect(card.get_by_role("button")).to_have_count(0)


def test_long_arguments_can_be_read_whole_before_anybody_decides(visitor: Visitor) -> None:
    card = asked(visitor, "A" * 600 + "Z")
    expect(card.get_by_label("Arguments")).not_to_contain_text("AZ")

    card.get_by_role("button", name="Show the arguments whole").click()

    expect(card.get_by_label("Arguments")).to_contain_text("AZ")


# --- subagents


def test_a_subagent_is_a_card_that_says_how_it_stands_and_leads_to_it(visitor: Visitor) -> None:
    visitor.say(START)
    card = visitor.log.get_by_role("region", name="Subagent support")
    expect(card).to_contain_text("general has started support")
    expect(card.get_by_text("Needs a decision")).to_be_visible()

    card.get_by_role("link", name="Open it to decide").click()
    visitor.log.get_by_role("button", name="Approve").click()
    expect(visitor.log.get_by_role("article", name="support")).to_have_count(1)
    visitor.page.get_by_role("link", name="Back to who started it").click()

    expect(card.get_by_text("Done")).to_be_visible()
    expect(card).to_contain_text("refund")
    expect(visitor.answers()).to_have_count(1)


# --- for admins


def test_a_dead_letter_is_tried_again_or_dropped_when_that_was_asked_twice(visitor: Visitor) -> None:
    visitor.say("fail: nobody can answer this")
    expect(visitor.log.get_by_text("The run failed.")).to_be_visible()
    letters = panel(visitor, "Dead letters").get_by_role("listitem").filter(has_text="nobody can answer this")

    letters.get_by_role("button", name="Try again").click()
    expect(visitor.log.get_by_text("The run failed.")).to_have_count(2)
    panel(visitor, "Dead letters").get_by_role("button", name="Look again").click()
    letters.get_by_role("button", name="Drop").click()
    letters.get_by_role("button", name="Keep it").click()
    expect(letters).to_have_count(1)
    letters.get_by_role("button", name="Drop").click()
    letters.get_by_role("button", name="Drop it").click()

    expect(letters).to_have_count(0)


def test_what_is_stuck_in_an_outbox_is_sent_again_or_dropped(visitor: Visitor) -> None:
    write_outbox(visitor.house)
    outbox = panel(visitor, "Outbox")
    first, second = (outbox.get_by_role("listitem").filter(has_text=key) for key in ("stuck-1", "stuck-2"))
    expect(first).to_contain_text("the line is cut")

    second.get_by_role("button", name="Drop").click()
    second.get_by_role("button", name="Drop it").click()
    expect(second).to_have_count(0)
    first.get_by_role("button", name="Try again").click()
    expect(first).to_have_count(0)
    outbox.get_by_label("Show all").check()

    expect(second.get_by_text("Dropped")).to_be_visible()
    expect(first.get_by_text(re.compile("^(Waiting|Being sent)$"))).to_be_visible()


# --- what else comes with a message


def test_a_file_that_was_sent_can_be_downloaded(visitor: Visitor, tmp_path: Path) -> None:
    folder = visitor.house.folder / "files" / "general"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "note.txt").write_text("a note")
    visitor.say(f"use send_file {json.dumps({'path': 'note.txt', 'text': 'see this'})}")

    with visitor.page.expect_download() as download:
        visitor.log.get_by_role("button", name="Download note.txt").click()

    download.value.save_as(tmp_path / "kept.txt")
    assert (download.value.suggested_filename, (tmp_path / "kept.txt").read_text()) == ("note.txt", "a note")


def test_a_block_of_whose_messages_one_failed_says_which(visitor: Visitor) -> None:
    bus = connect(visitor.house.bus_url)
    befriend(bus)
    bus.close()

    visitor.say(python(PARTING))

    card = visitor.log.get_by_role("region", name="Tool run_python")
    expect(card.get_by_role("button", name="Messages: 1 sent, 1 failed")).to_be_visible()
    expect(card.get_by_role("list", name="Not sent")).to_have_text("friend_send to @bob: not friends")
