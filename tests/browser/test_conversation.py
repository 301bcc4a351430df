"""Conversations on the page, in a real browser against a real server: messages, tools, handoffs, steering, panels."""

from __future__ import annotations

import os
import re

import pytest
from playwright.sync_api import expect

from magent2.bus.connect import connect
from magent2.bus.operations import Append
from magent2.models.events import CompactedEvent
from magent2.sessions.stream import event_payload, stream_record
from tests.support.browser import PageUser
from tests.support.record_page_logs import SENDING, python

pytestmark = pytest.mark.browser

MARKDOWN = (
    "A [page](https://example.org), a [trap](javascript:alert(1)), <b>not bold</b>"
    " <img src=x onerror=alert(1)>\n\n```python\nprint(1)\n```"
)


def test_signing_in_removes_the_token_from_the_url_and_shows_three_suggestions(user: PageUser) -> None:
    assert "token" not in user.page.url
    expect(user.page.get_by_role("heading", name="What should the team do?")).to_be_visible()
    suggestions = user.page.get_by_role("main").get_by_role("button", name=re.compile("^(Watch|See|Run|Get)"))
    expect(suggestions).to_have_count(3)


def test_the_first_suggestion_runs_a_tool_and_gets_an_answer(user: PageUser) -> None:
    user.page.get_by_role("button", name="Watch a tool call").click()

    card = user.log.get_by_role("region", name="Tool weather")
    expect(card.get_by_text("Done")).to_be_visible()
    card.get_by_role("button", name="weather").click()
    expect(card.get_by_label("Arguments", exact=True)).to_contain_text('"city": "Oslo"')
    expect(card.get_by_label("Result", exact=True)).to_contain_text("light rain")
    expect(user.answers().get_by_text(re.compile(r"^\d+ tokens$"))).to_be_visible()
    expect(user.listed.get_by_role("link", name="weather in Oslo")).to_be_visible()


def test_a_failed_tool_call_shows_its_error(user: PageUser) -> None:
    user.send('use weather {"town": "Oslo"}')

    card = user.log.get_by_role("region", name="Tool weather")
    expect(card.get_by_text("Failed")).to_be_visible()
    card.get_by_role("button", name="weather").click()
    expect(card.get_by_label("Error", exact=True)).to_contain_text("'city' is a required property")


def test_a_handoff_is_shown_and_the_next_message_goes_to_the_new_agent(user: PageUser) -> None:
    user.send("talk to sales")

    expect(user.log.get_by_text("general → sales")).to_be_visible()
    expect(user.log.get_by_role("article", name="sales")).to_contain_text("sales here")
    expect(user.message_box).to_have_attribute("placeholder", "Message sales")
    user.page.get_by_role("button", name="Switch to support").click()
    expect(user.log.get_by_text("switched manually")).to_be_visible()


def test_model_output_is_never_html_and_only_safe_links_are_links(user: PageUser) -> None:
    user.send(MARKDOWN)

    answer = user.answers()
    expect(answer.locator("figure")).to_contain_text("print(1)")
    expect(answer.get_by_role("link")).to_have_count(1)
    expect(answer.get_by_role("link", name="page")).to_have_attribute("href", "https://example.org")
    expect(answer).to_contain_text("<b>not bold</b>")
    expect(answer.locator("img")).to_have_count(0)
    expect(answer.locator(".hljs-built_in, .hljs-keyword")).to_have_count(1)


def test_a_streaming_answer_can_be_stopped_and_retried(user: PageUser) -> None:
    user.send("held: one two three four five six")
    expect(user.log.get_by_text("Streaming")).to_be_visible()
    expect(user.answers()).to_contain_text("held: one two")

    user.page.get_by_role("button", name="Stop").click()
    expect(user.log.get_by_text("Stopped.")).to_be_visible()
    expect(user.log.get_by_text("Streaming")).to_have_count(0)
    user.server.open_gate()
    user.log.get_by_role("button", name="Try again").click()

    expect(user.answers().last).to_contain_text("held: one two three four five six")
    expect(user.log.get_by_role("button", name="Try again")).to_have_count(0)


def test_a_failed_run_shows_its_error_and_offers_a_retry(user: PageUser) -> None:
    user.send("fail: this")

    expect(user.log.get_by_text("The run failed.")).to_be_visible()
    expect(user.log.get_by_text("told to fail")).to_be_visible()
    expect(user.log.get_by_role("button", name="Try again")).to_be_visible()


def test_failed_attempts_are_one_card_until_a_retry_succeeds(user: PageUser) -> None:
    user.send("down: for a while")
    card = user.log.get_by_role("region", name="Failed attempts")

    expect(card).to_contain_text(re.compile(r"Retry (?!1 )\d+ "))
    user.server.open_gate()

    expect(card).to_contain_text("The run succeeded after")
    expect(card).to_contain_text("Model unavailable: the provider does not answer")
    expect(card).to_have_count(1)
    expect(user.log.get_by_text(re.compile("worker (took|continued)"))).to_have_count(0)
    expect(user.answers()).to_have_count(1)


def test_retries_can_be_stopped_from_their_card(user: PageUser) -> None:
    user.send("down: for ever")
    card = user.log.get_by_role("region", name="Failed attempts")

    card.get_by_role("button", name="Stop retrying").click()

    expect(user.log.get_by_text("Stopped.")).to_be_visible()
    expect(card).to_contain_text("The run was stopped after")


def test_a_steering_message_waits_then_is_seen_and_changes_the_answer(user: PageUser) -> None:
    user.send("gated: weather in Oslo")
    expect(user.log.get_by_text("general is working")).to_be_visible()
    expect(user.message_box).to_have_attribute("placeholder", "Steer general while it works")

    user.send("in Celsius, please")
    expect(user.log.get_by_text("Waiting", exact=True)).to_be_visible()
    user.server.open_gate()

    expect(user.log.get_by_text("Seen", exact=True)).to_be_visible()
    expect(user.log.get_by_text("Waiting", exact=True)).to_have_count(0)
    expect(user.answers().last).to_contain_text("in Celsius, please")


def test_a_message_sent_before_the_run_has_started_is_part_of_it(user: PageUser) -> None:
    # The page shows the admin's tabs once it knows what the server offers. Before that it does not steer.
    expect(user.page.get_by_role("tab", name="Dead letters")).to_be_visible()
    user.send("gated: weather in Oslo")
    user.send("in Celsius, please")
    expect(user.log.get_by_text("general is working")).to_be_visible()
    expect(user.log.get_by_text("Waiting", exact=True)).to_be_visible()  # else it may reach the server after the run
    user.server.open_gate()

    expect(user.log.get_by_text("Seen", exact=True)).to_be_visible()
    expect(user.answers().last).to_contain_text("in Celsius, please")


def test_a_message_that_comes_too_late_for_a_run_is_answered_next(user: PageUser) -> None:
    user.send("held: a long story about nothing")
    expect(user.log.get_by_text("Streaming")).to_be_visible()
    user.send("and something else")
    expect(user.log.get_by_text("Waiting", exact=True)).to_be_visible()

    user.server.open_gate()

    expect(user.answers()).to_have_count(2)
    expect(user.log.get_by_text("Waiting", exact=True)).to_have_count(0)
    user.expect_text("and something else", times=2)


def test_a_successful_block_shows_how_many_messages_were_sent(user: PageUser) -> None:
    user.send(python(SENDING))

    card = user.log.get_by_role("region", name="Tool run_python")
    expect(card.get_by_role("button", name="Messages: 2 sent")).to_be_visible()
    expect(card.get_by_label("Code, python")).to_contain_text("chat_send")
    expect(card.get_by_label("Output", exact=True)).to_contain_text("told")


def test_a_failed_block_shows_that_no_message_was_sent(user: PageUser) -> None:
    user.send(python(f"{SENDING}\n1 // 0"))

    card = user.log.get_by_role("region", name="Tool run_python")
    expect(card.get_by_text("Failed", exact=True)).to_be_visible()
    expect(card.get_by_role("button", name="Messages: 2 NOT sent (script failed)")).to_be_visible()
    expect(card).to_contain_text("ZeroDivisionError")


def test_a_tool_can_be_run_manually_with_the_form_of_its_schema(user: PageUser) -> None:
    user.send("hello")
    expect(user.answers()).to_have_count(1)
    details = user.page.get_by_role("complementary", name="Details")
    details.get_by_role("tab", name="Tools").click()
    details.get_by_text("weather", exact=True).click()
    form = details.locator("details", has_text="weather").filter(has_text="city")

    form.get_by_role("button", name="Run").click()
    expect(form.get_by_role("alert")).to_have_text("Required")
    form.get_by_label("city").fill("Bergen")
    form.get_by_role("button", name="Run").click()

    expect(form.get_by_label("Last result")).to_contain_text("Bergen")
    expect(form.get_by_text("Done")).to_be_visible()
    expect(user.log.get_by_text("manual", exact=True)).to_be_visible()


def test_conversations_can_be_searched_renamed_and_deleted(user: PageUser) -> None:
    user.send("something about penguins")
    expect(user.answers()).to_have_count(1)
    user.send("and of seals")
    expect(user.answers()).to_have_count(2)
    list_ = user.page.get_by_role("navigation", name="Conversations")
    entry = user.listed

    expect(entry.get_by_role("link")).to_contain_text(re.compile("^something about penguins.*and of seals"))
    entry.hover()
    entry.get_by_role("button", name=re.compile("^Rename")).click()
    list_.get_by_label("New title").fill("Birds of the south")
    list_.get_by_label("New title").press("Enter")
    expect(list_.get_by_role("link", name="Birds of the south")).to_be_visible()
    list_.get_by_label("Search conversations").fill("birds")
    expect(list_.get_by_role("listitem")).to_have_count(1)
    entry.hover()
    entry.get_by_role("button", name=re.compile("^Delete")).click()
    list_.get_by_role("button", name="Delete", exact=True).click()

    expect(list_.get_by_text("No conversations found.")).to_be_visible()
    expect(user.page.get_by_role("heading", name="What should the team do?")).to_be_visible()


def test_agent_cards_and_graph_show_subagents_and_mcp_servers(user: PageUser) -> None:
    details = user.page.get_by_role("complementary", name="Details")

    expect(details.get_by_role("list", name="Subagents of general")).to_have_text("support")
    expect(details.get_by_role("list", name="MCP servers of general")).to_have_text("clock")
    details.get_by_role("tab", name="Graph").click()
    expect(details.get_by_text("general can start support")).to_be_visible()
    expect(details.locator(".react-flow__edge[data-id='general~support']")).to_have_count(1)


def test_every_panel_shows_its_content(user: PageUser) -> None:
    user.send("talk to sales")
    expect(user.log.get_by_role("article", name="sales")).to_have_count(1)
    details = user.page.get_by_role("complementary", name="Details")

    for tab, shown in (
        ("Timeline", "finished"),
        ("Usage", "By agent"),
        ("Events", "handoff"),
        ("Graph", "general → sales: 1 handoff"),
        ("Dead letters", "Refresh"),
        ("Outbox", "Refresh"),
        ("Agents", "active"),
    ):
        details.get_by_role("tab", name=tab).click()
        expect(details.get_by_role("tabpanel").get_by_text(shown).first).to_be_visible()


def test_a_compaction_is_a_note_that_opens(user: PageUser) -> None:
    user.send("hello there")
    expect(user.answers()).to_have_count(1)
    conversation = user.session_id
    bus = connect(user.server.bus_url)
    made = CompactedEvent(
        conversation_id=conversation,
        reason="size",
        summary="Ann has planned a trip to Oslo.\nShe wants to leave on Friday.",
        tokens_before=98_304,
        tokens_after=41_209,
        through_run="run-1",
    )
    bus.call(Append(records=(stream_record(event_payload(made)),)))
    bus.close()

    note = user.log.get_by_text("It continues with a summary of the beginning.")
    expect(note).to_be_visible()
    expect(user.log.get_by_text("About 98,304 tokens, now 41,209.")).to_be_visible()
    summary = user.log.get_by_text("Ann has planned a trip to Oslo.")
    expect(summary).not_to_be_visible()
    user.log.get_by_text("Show the summary").click()

    expect(summary).to_be_visible()
    if folder := os.environ.get("PAGE_PICTURES"):
        user.page.screenshot(path=f"{folder}/compaction.png")
