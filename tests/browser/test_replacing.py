"""Replacing the last answer on the page, and what a message does while the agent works."""

from __future__ import annotations

import os

import pytest
from playwright.sync_api import expect

from tests.support.browser import PageUser

pytestmark = pytest.mark.browser


def picture(user: PageUser, name: str) -> None:
    """Keep a screenshot if a folder for it is named."""
    folder = os.environ.get("PAGE_PICTURES")
    if folder:
        user.page.screenshot(path=f"{folder}/{name}.png")


def test_an_answer_is_regenerated_in_its_place(user: PageUser) -> None:
    user.send("hello there")
    expect(user.answers()).to_have_count(1)
    user.send("weather in Oslo")
    expect(user.answers()).to_have_count(2)
    expect(user.log.get_by_role("button", name="Regenerate")).to_have_count(1)
    picture(user, "before")

    user.log.get_by_role("button", name="Regenerate").click()

    user.page.get_by_role("tab", name="Events").click()
    expect(user.page.get_by_text("superseded")).to_be_visible()
    expect(user.answers()).to_have_count(2)
    expect(user.log.get_by_role("button", name="Regenerate")).to_have_count(1)
    expect(user.log.get_by_text("weather in Oslo", exact=True)).to_have_count(1)
    expect(user.log.get_by_role("region", name="Tool weather")).to_have_count(1)
    picture(user, "regenerated")


def test_the_last_message_is_edited_and_answered_again(user: PageUser) -> None:
    user.send("hello there")
    expect(user.answers()).to_contain_text("hello there")

    user.log.get_by_role("button", name="Edit").click()
    field = user.page.get_by_label("Edit message")
    expect(field).to_have_value("hello there")
    field.fill("good evening")
    picture(user, "editing")
    user.log.get_by_role("button", name="Send").click()

    expect(user.answers()).to_contain_text("good evening")
    expect(user.answers()).to_have_count(1)
    expect(user.log.get_by_text("hello there")).to_have_count(0)
    expect(user.listed.get_by_role("link", name="good evening")).to_be_visible()
    user.page.reload()
    expect(user.answers()).to_contain_text("good evening")
    expect(user.log.get_by_text("hello there")).to_have_count(0)
    picture(user, "edited")


def test_an_edit_that_was_not_sent_survives_a_reload(user: PageUser) -> None:
    user.send("hello there")
    user.log.get_by_role("button", name="Edit").click()
    field = user.page.get_by_label("Edit message")
    field.fill("good evening")

    user.page.reload()

    expect(field).to_have_value("good evening")
    field.press("Escape")
    expect(field).to_have_count(0)
    user.page.reload()
    expect(user.log.get_by_role("button", name="Edit")).to_be_visible()
    expect(field).to_have_count(0)


def test_only_the_last_message_of_an_idle_conversation_can_be_replaced(user: PageUser) -> None:
    user.send("hello there")
    expect(user.log.get_by_role("button", name="Edit")).to_have_count(1)

    user.send("held: one two three")

    expect(user.log.get_by_text("Streaming")).to_be_visible()
    expect(user.log.get_by_role("button", name="Edit")).to_have_count(0)
    expect(user.log.get_by_role("button", name="Regenerate")).to_have_count(0)
    user.server.open_gate()
    expect(user.log.get_by_role("button", name="Regenerate")).to_have_count(1)


def test_a_message_interrupts_the_run_or_waits_for_its_end(user: PageUser) -> None:
    user.send("held: one two three")
    expect(user.log.get_by_text("Streaming")).to_be_visible()
    choice = user.page.get_by_label("While the agent works")
    expect(choice).to_have_value("steer")

    choice.select_option("Queue")
    expect(user.page.get_by_text("The agent answers this after the current run.")).to_be_visible()
    user.send("after that")
    expect(user.log.get_by_text("Waiting", exact=True)).to_be_visible()
    expect(choice).to_have_value("steer")
    choice.select_option("Interrupt")
    picture(user, "interrupting")
    user.send("something else")

    expect(user.log.get_by_text("Stopped.")).to_be_visible()
    expect(user.answers().filter(has_text="after that")).to_have_count(1)
    expect(user.answers().filter(has_text="something else")).to_have_count(1)
    expect(choice).to_have_count(0)
    picture(user, "interrupted")


def test_the_choice_belongs_to_one_conversation_and_survives_a_reload(user: PageUser) -> None:
    choice = user.page.get_by_label("While the agent works")
    user.send("held: one two three")
    choice.select_option("Interrupt")
    first = user.page.url
    user.page.get_by_role("button", name="New conversation").click()
    user.send("held: four five six")

    expect(choice).to_have_value("steer")
    user.page.goto(first)
    expect(choice).to_have_value("interrupt")
    user.page.reload()
    expect(choice).to_have_value("interrupt")
    user.server.open_gate()


def test_a_message_steers_while_the_routes_of_the_server_are_not_known_yet(user: PageUser) -> None:
    user.send("gated: weather in Oslo")
    expect(user.log.get_by_text("general is working")).to_be_visible()
    held = user.hold_requests("**/openapi.json")
    user.page.reload()
    expect(user.log.get_by_text("general is working")).to_be_visible()

    user.send("In Celsius")
    user.server.open_gate()

    expect(user.log.get_by_text("Seen", exact=True)).to_be_visible()
    for route in held:
        route.continue_()
