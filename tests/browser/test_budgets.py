"""A paused run on the page: which budget is used up, the field that raises it, and the usage over time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from magent2.client import Client
from tests.support.browser import PageUser

pytestmark = pytest.mark.browser

SHOTS = "MAGENT2_TEST_SHOTS"  # a folder for screenshots that a person looks at


def shoot(user: PageUser, name: str) -> None:
    if folder := os.environ.get(SHOTS):
        user.page.screenshot(path=Path(folder) / f"{name}.png")


def use_up_the_budget(user: PageUser, spare: int = 1) -> Locator:
    """Give the conversation `spare` model calls more than it has used, and return the card of a run of two."""
    user.send("hello there")
    expect(user.answers()).to_have_count(1)
    with Client(user.server.url, user.server.token) as client:
        used = client.usage("conversation", conversation=user.session_id).total.calls
        client.set_budget("conversation", user.session_id, calls=used + spare)
    user.send("weather in Oslo")
    card = user.log.get_by_role("region", name="Budget").last
    expect(card.get_by_text("Paused")).to_be_visible()
    return card


def test_a_paused_run_goes_on_when_its_budget_is_raised_on_the_page(user: PageUser) -> None:
    card = use_up_the_budget(user)
    expect(card).to_contain_text("2 of 2 model calls")
    expect(card).to_contain_text("Raise the budget to let it continue, or stop the run.")
    expect(user.log.get_by_text("is working")).to_have_count(0)
    expect(user.listed.get_by_text("Needs budget")).to_be_visible()
    shoot(user, "budget-paused")

    card.get_by_label("New limit").fill("9")
    card.get_by_role("button", name="Raise the budget").click()

    expect(user.answers()).to_have_count(2)
    expect(card.get_by_text("Continued")).to_be_visible()
    shoot(user, "budget-continued")


def test_a_paused_run_can_be_stopped_and_a_limit_below_the_usage_is_not_sent(user: PageUser) -> None:
    card = use_up_the_budget(user)
    card.get_by_label("New limit").fill("1")
    expect(card.get_by_role("button", name="Raise the budget")).to_be_disabled()

    card.get_by_role("button", name="Stop the run").click()

    expect(user.log.get_by_text("Stopped.")).to_be_visible()
    expect(card.get_by_text("No longer needed")).to_be_visible()


def test_the_suggested_limit_is_above_what_is_used(user: PageUser) -> None:
    card = use_up_the_budget(user, spare=0)  # the call that finds the limit reached is counted above it
    expect(card).to_contain_text("2 of 1 model calls")
    expect(user.page.get_by_role("complementary", name="Details").get_by_text("needs budget")).to_be_visible()

    card.get_by_role("button", name="Raise the budget").click()

    expect(card.get_by_text("Continued")).to_be_visible()


def test_the_usage_panel_shows_a_chart_of_the_last_days(user: PageUser) -> None:
    user.send("hello there")
    expect(user.answers()).to_have_count(1)
    user.page.get_by_role("tab", name="Usage").click()
    section = user.page.get_by_role("region", name="Usage over time")

    expect(section.locator("rect")).to_have_count(30)
    section.get_by_role("button", name="Cost").click()
    expect(section.get_by_role("table")).to_contain_text("unknown")
    shoot(user, "usage-chart")
