"""Approvals, subagents, dead letters, the outbox, and files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from magent2.bus.connect import connect
from magent2.client import Client
from tests.support.browser import PageUser, write_outbox
from tests.support.command_line import CommandLine
from tests.support.gated_model import befriend
from tests.support.record_page_logs import PARTING, python

pytestmark = pytest.mark.browser

START = f"use start_agent {json.dumps({'agent': 'support', 'task': 'refund order 7'})}"


def request_refund(user: PageUser, order: str = "7") -> Locator:
    """Send a message whose tool call needs approval, and return the card of that call."""
    user.send(f"refund order {order}")
    card = user.log.get_by_role("region", name="Approval of refund")
    expect(card.get_by_text("Needs approval")).to_be_visible()
    return card


def panel(user: PageUser, tab: str) -> Locator:
    details = user.page.get_by_role("complementary", name="Details")
    details.get_by_role("tab", name=tab).click()
    return details.get_by_role("tabpanel", name=tab)


# --- approvals


def test_a_call_that_needs_approval_runs_when_approved(user: PageUser) -> None:
    card = request_refund(user)
    expect(card).to_contain_text("general wants to run refund")
    expect(card.get_by_label("Arguments")).to_contain_text('"order": "7"')
    expect(card).to_contain_text("if not decided within 24 hours")
    expect(user.log.get_by_text("is working")).to_have_count(0)
    expect(user.listed.get_by_text("Needs approval")).to_be_visible()

    card.get_by_role("button", name="Approve").focus()
    user.page.keyboard.press("Enter")

    expect(card.get_by_text("Approved")).to_be_visible()
    expect(card).to_contain_text("By local")
    expect(card.get_by_role("button", name="Approve")).to_have_count(0)
    expect(user.log.get_by_role("region", name="Tool refund").get_by_text("Done")).to_be_visible()
    expect(user.answers()).to_have_count(1)
    expect(user.listed.get_by_text("Needs approval")).to_have_count(0)


def test_a_rejection_gives_the_model_the_reason(user: PageUser) -> None:
    card = request_refund(user)

    card.get_by_label("Reason (optional)").fill("too expensive")
    card.get_by_role("button", name="Reject").click()

    expect(card.get_by_text("Rejected")).to_be_visible()
    expect(card).to_contain_text("By local")
    expect(card).to_contain_text("too expensive")
    expect(user.answers()).to_contain_text("has rejected it: too expensive")


def test_a_pending_approval_survives_a_reload(user: PageUser) -> None:
    request_refund(user)

    user.page.reload()
    card = user.log.get_by_role("region", name="Approval of refund")
    expect(card).to_have_count(1)
    card.get_by_role("button", name="Approve").click()

    expect(card.get_by_text("Approved")).to_be_visible()
    expect(user.answers()).to_have_count(1)


def test_a_decision_in_another_tab_shows_in_this_one(user: PageUser) -> None:
    card = request_refund(user)
    other = user.context.new_page()
    other.goto(user.page.url)

    other.get_by_role("button", name="Approve").click()

    expect(card.get_by_text("Approved")).to_be_visible()
    expect(card.get_by_role("button", name="Reject")).to_have_count(0)
    expect(user.answers()).to_have_count(1)


def test_a_decision_on_the_command_line_shows_on_the_page(user: PageUser, tmp_path: Path) -> None:
    card = request_refund(user)
    url, token = user.server.url, user.server.token
    with Client(url, token) as client:
        (call,) = client.approvals(user.session_id)

    magent2 = CommandLine(tmp_path, MAGENT2_URL=url, MAGENT2_TOKEN=token)
    done = magent2.run("reject", user.session_id, call.call_id, "--reason", "not today")

    assert done.code == 0, done.err
    expect(card.get_by_text("Rejected")).to_be_visible()
    expect(card).to_contain_text("not today")


def test_stopping_a_run_withdraws_its_approval_request(user: PageUser) -> None:
    card = request_refund(user)
    expect(user.page.get_by_text("The agent reads this when the run resumes.")).to_be_visible()

    user.page.get_by_role("button", name="Stop").click()

    expect(card.get_by_text("No longer needed")).to_be_visible()
    expect(card.get_by_role("button")).to_have_count(0)


def test_long_arguments_can_be_shown_in_full_before_a_decision(user: PageUser) -> None:
    card = request_refund(user, "A" * 600 + "Z")
    expect(card.get_by_label("Arguments")).not_to_contain_text("AZ")

    card.get_by_role("button", name="Show full arguments").click()

    expect(card.get_by_label("Arguments")).to_contain_text("AZ")


# --- subagents


def test_a_subagent_card_shows_its_state_and_links_to_its_conversation(user: PageUser) -> None:
    user.send(START)
    card = user.log.get_by_role("region", name="Subagent support")
    expect(card).to_contain_text("general started support")
    expect(card.get_by_text("Needs approval")).to_be_visible()

    card.get_by_role("link", name="Open to decide").click()
    user.log.get_by_role("button", name="Approve").click()
    expect(user.log.get_by_role("article", name="support")).to_have_count(1)
    user.page.get_by_role("link", name="Back to the main conversation").click()

    expect(card.get_by_text("Done")).to_be_visible()
    expect(card).to_contain_text("refund")
    expect(user.answers()).to_have_count(1)


# --- admin panels


def test_a_dead_letter_can_be_retried_or_dropped_after_a_confirmation(user: PageUser) -> None:
    user.send("fail: this message")
    expect(user.log.get_by_text("The run failed.")).to_be_visible()
    letters = panel(user, "Dead letters").get_by_role("listitem").filter(has_text="this message")
    retried = letters.element_handle()

    letters.get_by_role("button", name="Try again").click()
    expect(user.log.get_by_text("The run failed. It was tried 2 times.")).to_be_visible()
    panel(user, "Dead letters").get_by_role("button", name="Refresh").click()
    retried.wait_for_element_state("hidden")  # the letter of the second failure looks the same
    letters.get_by_role("button", name="Drop").click()
    letters.get_by_role("button", name="Cancel").click()
    expect(letters).to_have_count(1)
    letters.get_by_role("button", name="Drop").click()
    letters.get_by_role("button", name="Drop message").click()

    expect(letters).to_have_count(0)


def test_a_failed_outbox_message_can_be_retried_or_dropped(user: PageUser) -> None:
    write_outbox(user.server)
    outbox = panel(user, "Outbox")
    first, second = (outbox.get_by_role("listitem").filter(has_text=key) for key in ("stuck-1", "stuck-2"))
    expect(first).to_contain_text("connection refused")

    second.get_by_role("button", name="Drop").click()
    second.get_by_role("button", name="Drop message").click()
    expect(second).to_have_count(0)
    first.get_by_role("button", name="Try again").click()
    expect(first).to_have_count(0)
    outbox.get_by_label("Show all").check()

    expect(second.get_by_text("Dropped")).to_be_visible()
    expect(first.get_by_text(re.compile("^(Waiting|Sending)$"))).to_be_visible()


# --- attachments and blocks


def test_a_sent_file_can_be_downloaded(user: PageUser, tmp_path: Path) -> None:
    folder = user.server.folder / "files" / "general"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "note.txt").write_text("a note")
    user.send(f"use send_file {json.dumps({'path': 'note.txt', 'text': 'see this'})}")

    with user.page.expect_download() as download:
        user.log.get_by_role("button", name="Download note.txt").click()

    download.value.save_as(tmp_path / "kept.txt")
    assert (download.value.suggested_filename, (tmp_path / "kept.txt").read_text()) == ("note.txt", "a note")


def test_a_block_names_the_message_that_failed(user: PageUser) -> None:
    bus = connect(user.server.bus_url)
    befriend(bus)
    bus.close()

    user.send(python(PARTING))

    card = user.log.get_by_role("region", name="Tool run_python")
    expect(card.get_by_role("button", name="Messages: 1 sent, 1 failed")).to_be_visible()
    expect(card.get_by_role("list", name="Not sent")).to_have_text("friend_send to @bob: not friends")
