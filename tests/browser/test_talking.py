"""The page in a real browser, against the real server: talk, tools, handoffs, panels."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.support.browser import Visitor
from tests.support.record_page_logs import SENDING, python

pytestmark = pytest.mark.browser

MARKDOWN = (
    "A [page](https://example.org), a [trap](javascript:alert(1)), <b>not bold</b>"
    " <img src=x onerror=alert(1)>\n\n```python\nprint(1)\n```"
)


def test_the_token_leaves_the_address_and_three_things_to_try_are_there(visitor: Visitor) -> None:
    assert "token" not in visitor.page.url
    expect(visitor.page.get_by_role("heading", name="What should the team do?")).to_be_visible()
    tries = visitor.page.get_by_role("main").get_by_role("button", name=re.compile("^(Watch|See|Run|Get)"))
    expect(tries).to_have_count(3)


def test_a_click_on_the_first_idea_runs_a_tool_and_gets_an_answer(visitor: Visitor) -> None:
    visitor.page.get_by_role("button", name="Watch a tool at work").click()

    card = visitor.log.get_by_role("region", name="Tool weather")
    expect(card.get_by_text("Done")).to_be_visible()
    card.get_by_role("button", name="weather").click()
    expect(card.get_by_label("Arguments", exact=True)).to_contain_text('"city": "Oslo"')
    expect(card.get_by_label("Result", exact=True)).to_contain_text("light rain")
    expect(visitor.answers().get_by_text(re.compile(r"^\d+ tokens$"))).to_be_visible()
    expect(visitor.page.get_by_role("navigation").get_by_role("link", name="weather in Oslo")).to_be_visible()


def test_a_tool_that_fails_says_why(visitor: Visitor) -> None:
    visitor.say('use weather {"town": "Oslo"}')

    card = visitor.log.get_by_role("region", name="Tool weather")
    expect(card.get_by_text("Failed")).to_be_visible()
    card.get_by_role("button", name="weather").click()
    expect(card.get_by_label("Error", exact=True)).to_contain_text("'city' is a required property")


def test_a_handoff_is_a_chip_and_the_next_message_goes_to_the_other(visitor: Visitor) -> None:
    visitor.say("talk to sales")

    expect(visitor.log.get_by_text("general → sales")).to_be_visible()
    expect(visitor.log.get_by_role("article", name="sales")).to_contain_text("sales here")
    expect(visitor.box).to_have_attribute("placeholder", "Message sales")
    visitor.page.get_by_role("button", name="Give it to support").click()
    expect(visitor.log.get_by_text("switched by hand")).to_be_visible()


def test_what_a_model_says_is_text_and_links_lead_only_to_pages(visitor: Visitor) -> None:
    visitor.say(MARKDOWN)

    answer = visitor.answers()
    expect(answer.locator("figure")).to_contain_text("print(1)")
    expect(answer.get_by_role("link")).to_have_count(1)
    expect(answer.get_by_role("link", name="page")).to_have_attribute("href", "https://example.org")
    expect(answer).to_contain_text("<b>not bold</b>")
    expect(answer.locator("img")).to_have_count(0)
    expect(answer.locator(".hljs-built_in, .hljs-keyword")).to_have_count(1)


def test_an_answer_streams_and_stop_ends_it_and_it_can_be_tried_again(visitor: Visitor) -> None:
    visitor.say("held: one two three four five six")
    expect(visitor.log.get_by_text("Streaming")).to_be_visible()
    expect(visitor.answers()).to_contain_text("held: one two")

    visitor.page.get_by_role("button", name="Stop").click()
    expect(visitor.log.get_by_text("Stopped.")).to_be_visible()
    expect(visitor.log.get_by_text("Streaming")).to_have_count(0)
    visitor.house.open_gate()
    visitor.log.get_by_role("button", name="Try again").click()

    expect(visitor.answers().last).to_contain_text("held: one two three four five six")
    expect(visitor.log.get_by_role("button", name="Try again")).to_have_count(0)


def test_a_run_that_fails_says_so_and_can_be_tried_again(visitor: Visitor) -> None:
    visitor.say("fail: this")

    expect(visitor.log.get_by_text("The run failed.")).to_be_visible()
    expect(visitor.log.get_by_text("told to fail")).to_be_visible()
    expect(visitor.log.get_by_role("button", name="Try again")).to_be_visible()


def test_a_steer_waits_then_is_seen_and_changes_what_the_run_says(visitor: Visitor) -> None:
    visitor.say("gated: weather in Oslo")
    expect(visitor.log.get_by_text("general is at work")).to_be_visible()
    expect(visitor.box).to_have_attribute("placeholder", "Steer general while it works")

    visitor.say("in Celsius, please")
    expect(visitor.log.get_by_text("Waiting", exact=True)).to_be_visible()
    visitor.house.open_gate()

    expect(visitor.log.get_by_text("Seen", exact=True)).to_be_visible()
    expect(visitor.log.get_by_text("Waiting", exact=True)).to_have_count(0)
    expect(visitor.answers().last).to_contain_text("in Celsius, please")


def test_what_is_added_before_the_run_has_begun_is_part_of_it(visitor: Visitor) -> None:
    visitor.say("gated: weather in Oslo")
    visitor.say("in Celsius, please")
    expect(visitor.log.get_by_text("general is at work")).to_be_visible()
    visitor.house.open_gate()

    expect(visitor.log.get_by_text("Seen", exact=True)).to_be_visible()
    expect(visitor.answers().last).to_contain_text("in Celsius, please")


def test_what_comes_too_late_for_a_run_is_answered_next(visitor: Visitor) -> None:
    visitor.say("held: a long story about nothing")
    expect(visitor.log.get_by_text("Streaming")).to_be_visible()
    visitor.say("and something else")
    expect(visitor.log.get_by_text("Waiting", exact=True)).to_be_visible()

    visitor.house.open_gate()

    expect(visitor.answers()).to_have_count(2)
    expect(visitor.log.get_by_text("Waiting", exact=True)).to_have_count(0)
    visitor.expect_said("and something else", times=2)


def test_a_block_that_ends_well_says_what_was_sent(visitor: Visitor) -> None:
    visitor.say(python(SENDING))

    card = visitor.log.get_by_role("region", name="Tool run_python")
    expect(card.get_by_role("button", name="Messages: 2 sent")).to_be_visible()
    expect(card.get_by_label("Code, python")).to_contain_text("chat_send")
    expect(card.get_by_label("Output", exact=True)).to_contain_text("told")


def test_a_block_that_fails_says_that_nothing_was_sent(visitor: Visitor) -> None:
    visitor.say(python(f"{SENDING}\n1 // 0"))

    card = visitor.log.get_by_role("region", name="Tool run_python")
    expect(card.get_by_text("Failed", exact=True)).to_be_visible()
    expect(card.get_by_role("button", name="Messages: 2 NOT sent (script failed)")).to_be_visible()
    expect(card).to_contain_text("ZeroDivisionError")


def test_a_tool_can_be_run_by_hand_from_a_form_of_its_schema(visitor: Visitor) -> None:
    visitor.say("hello")
    expect(visitor.answers()).to_have_count(1)
    details = visitor.page.get_by_role("complementary", name="Details")
    details.get_by_role("tab", name="Tools").click()
    details.get_by_text("weather", exact=True).click()
    form = details.locator("details", has_text="weather").filter(has_text="city")

    form.get_by_role("button", name="Run").click()
    expect(form.get_by_role("alert")).to_have_text("needed")
    form.get_by_label("city").fill("Bergen")
    form.get_by_role("button", name="Run").click()

    expect(form.get_by_label("Last result")).to_contain_text("Bergen")
    expect(form.get_by_text("Done")).to_be_visible()
    expect(visitor.log.get_by_text("by hand")).to_be_visible()


def test_conversations_are_found_renamed_and_deleted(visitor: Visitor) -> None:
    visitor.say("something about penguins")
    expect(visitor.answers()).to_have_count(1)
    visitor.say("and of seals")
    expect(visitor.answers()).to_have_count(2)
    list_ = visitor.page.get_by_role("navigation", name="Conversations")
    entry = list_.get_by_role("listitem").filter(has=visitor.page.locator("[aria-current=page]"))

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

    expect(list_.get_by_text("Nothing found.")).to_be_visible()
    expect(visitor.page.get_by_role("heading", name="What should the team do?")).to_be_visible()


def test_every_panel_shows_what_it_is_for(visitor: Visitor) -> None:
    visitor.say("talk to sales")
    expect(visitor.log.get_by_role("article", name="sales")).to_have_count(1)
    details = visitor.page.get_by_role("complementary", name="Details")

    for tab, shown in (
        ("Timeline", "finished"),
        ("Context and usage", "By agent"),
        ("Events", "handoff"),
        ("Graph", "general → sales: 1 handoff"),
        ("Dead letters", "Look again"),
        ("Outbox", "Look again"),
        ("Agents", "active"),
    ):
        details.get_by_role("tab", name=tab).click()
        expect(details.get_by_role("tabpanel").get_by_text(shown).first).to_be_visible()
