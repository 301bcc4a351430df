"""Schedules on the page: add, pause, resume, send now and delete; the next time in the zone of the viewer."""

from __future__ import annotations

import os

import pytest
from playwright.sync_api import Locator, expect

from tests.support.browser import PageUser

pytestmark = pytest.mark.browser

SHOT = os.environ.get("SCHEDULES_SCREENSHOT")  # a file to write a picture of the panel to


def open_panel(user: PageUser) -> Locator:
    details = user.page.get_by_role("complementary", name="Details")
    details.get_by_role("tab", name="Schedules").click()
    return details.get_by_role("tabpanel", name="Schedules")


def add(panel: Locator, text: str, kind: str, when: str) -> None:
    form = panel.get_by_role("form", name="Add a schedule")
    form.get_by_label("Message").fill(text)
    form.get_by_label("When").select_option(label=kind)
    form.locator("input").fill(when)
    form.get_by_role("button", name="Add schedule").click()


def test_a_schedule_is_added_paused_sent_and_deleted(user: PageUser) -> None:
    user.send("hello")
    expect(user.answers()).to_have_count(1)
    panel = open_panel(user)

    add(panel, "What is new?", "Repeatedly", "0 9 * * 1-5")
    entry = panel.get_by_role("list", name="Schedules").get_by_role("listitem")
    expect(entry).to_have_count(1)
    expect(entry).to_contain_text("Next: ")
    expect(entry).to_contain_text("9:00:00")  # in the zone of the browser, which is that of the schedule
    entry.get_by_role("button", name="Pause").click()
    expect(entry.get_by_text("paused")).to_be_visible()
    entry.get_by_role("button", name="Resume").click()
    expect(entry.get_by_text("active")).to_be_visible()
    entry.get_by_role("button", name="Send now").click()
    expect(user.log.get_by_text("What is new?", exact=True).first).to_be_visible()
    expect(user.answers()).to_have_count(2)

    add(panel, "One second later", "After a time", "1s")
    expect(user.log.get_by_text("One second later", exact=True).first).to_be_visible()
    panel.get_by_role("button", name="Refresh").click()
    expect(panel.get_by_text("it has fired its last slot")).to_be_visible()
    if SHOT:
        user.page.screenshot(path=SHOT)

    entry.filter(has_text="What is new?").get_by_role("button", name="Delete").click()
    entry.filter(has_text="What is new?").get_by_role("button", name="Delete schedule").click()
    expect(entry).to_have_count(1)


def test_a_wrong_expression_is_explained(user: PageUser) -> None:
    user.send("hello")
    expect(user.answers()).to_have_count(1)
    panel = open_panel(user)

    add(panel, "never", "Repeatedly", "0 25 * * *")

    expect(panel.get_by_role("alert")).to_contain_text("Bad hour")
    expect(panel.get_by_role("list", name="Schedules").get_by_text("never")).to_have_count(0)
