"""The page when things go wrong: reloads, restarts, no network, many tabs, wrong keys, other people's conversations."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, Route, expect

from magent2.bus.connect import connect
from magent2.bus.flow import run
from magent2.directory.keys import making_key
from tests.support.browser import BUILT, House, Visitor, visiting

pytestmark = pytest.mark.browser

HELD = "held: one two three four five six seven eight"
NO_SHARED_WORKER = "delete window.SharedWorker"
TABS = 10


def expect_one_whole_answer(visitor: Visitor) -> None:
    """Once, to the last word, and the question once as well."""
    expect(visitor.answers()).to_have_count(1)
    expect(visitor.answers().locator("p")).to_have_text(HELD)
    expect(visitor.log.get_by_text("Streaming")).to_have_count(0)
    visitor.expect_said(HELD, times=2)


def test_a_reload_in_the_middle_of_an_answer_loses_and_doubles_nothing(visitor: Visitor) -> None:
    visitor.say(HELD)
    expect(visitor.answers()).to_contain_text("held: one two")

    visitor.page.reload()
    expect(visitor.answers()).to_contain_text("held: one two")
    visitor.house.open_gate()

    expect_one_whole_answer(visitor)


def test_a_server_that_is_killed_in_the_middle_of_an_answer_goes_on_after_its_restart(visitor: Visitor) -> None:
    visitor.say(HELD)
    expect(visitor.answers()).to_contain_text("held: one two")

    visitor.house.kill()
    expect(visitor.page.get_by_text("Offline. What you send is kept")).to_be_visible()
    visitor.house.restart()
    visitor.house.open_gate()

    visitor.expect_live()
    expect_one_whole_answer(visitor)


def test_what_is_sent_while_the_server_is_away_arrives_once(visitor: Visitor) -> None:
    visitor.say("hello")
    expect(visitor.answers()).to_have_count(1)
    visitor.house.kill()
    expect(visitor.page.get_by_text("Offline. What you send is kept")).to_be_visible()

    visitor.say("are you there")
    expect(visitor.log.get_by_text("Not sent yet; it will be, once")).to_be_visible()
    visitor.house.restart()
    visitor.page.reload()  # perhaps before it went out, perhaps after: it is one message either way

    expect(visitor.answers()).to_have_count(2)
    visitor.expect_said("are you there", times=2)


def test_a_browser_without_network_says_so_and_comes_back(chromium: Browser, house: House) -> None:
    house.open_gate()
    with visiting(chromium, house) as visitor:
        visitor.page.add_init_script(NO_SHARED_WORKER)
        visitor.enter()
        visitor.context.set_offline(True)
        expect(visitor.page.get_by_text("Offline. What you send is kept")).to_be_visible()
        visitor.say("sent without a network")
        expect(visitor.log.get_by_text("Not sent yet; it will be, once")).to_be_visible()

        visitor.context.set_offline(False)

        expect(visitor.page.get_by_text("Back online. Nothing was lost.")).to_be_visible()
        visitor.expect_said("sent without a network", times=2)


def test_where_streams_do_not_get_through_the_page_asks_for_news(chromium: Browser, house: House) -> None:
    house.open_gate()
    with visiting(chromium, house) as visitor:
        visitor.page.add_init_script(NO_SHARED_WORKER)
        visitor.page.route("**/api/stream**", lambda route: route.abort())
        visitor.page.goto(house.address)
        expect(visitor.page.get_by_role("banner").get_by_text("Polling")).to_be_visible()

        visitor.say("hello by letter")

        visitor.expect_said("hello by letter", times=2)


def test_a_tab_that_is_older_than_the_server_offers_to_be_loaded_anew(chromium: Browser, house: House) -> None:
    with visiting(chromium, house) as visitor:
        page = visitor.page
        page.add_init_script(NO_SHARED_WORKER)
        visitor.enter()
        visitor.box.fill("half a thought")
        newer = BUILT.read_text().replace("page/index-", "page/index-newer")
        page.route(f"{house.url}/", lambda route: route.fulfill(body=newer, content_type="text/html"), times=1)
        visitor.context.set_offline(True)
        expect(page.get_by_text("Offline. What you send is kept")).to_be_visible()

        visitor.context.set_offline(False)
        expect(page.get_by_text("The server has a newer page than this one.")).to_be_visible()
        page.get_by_role("button", name="Reload").click()

        expect(page.get_by_text("The server has a newer page")).to_have_count(0)
        visitor.expect_live()
        expect(visitor.box).to_have_value("half a thought")


def test_a_part_of_the_page_that_is_gone_says_so_and_the_rest_works_on(chromium: Browser, house: House) -> None:
    house.open_gate()
    with visiting(chromium, house) as visitor:
        visitor.page.route("**/page/GraphPanel-*.js", lambda route: route.abort())
        visitor.page.route("**/page/coloured-*.js", lambda route: route.abort())
        visitor.enter()
        visitor.page.get_by_role("tab", name="Graph").click()
        expect(visitor.page.get_by_role("alert")).to_contain_text("This part of the page could not be loaded.")

        visitor.say("Like this:\n\n```python\nprint(1)\n```")
        visitor.page.get_by_role("tab", name="Agents").click()

        expect(visitor.answers().locator("figure")).to_contain_text("print(1)")
        expect(visitor.page.get_by_role("tabpanel", name="Agents")).to_contain_text("general")


def test_ten_tabs_are_live_at_once_over_one_connection(visitor: Visitor) -> None:
    visitor.say(HELD)
    expect(visitor.answers()).to_contain_text("held: one two")
    tabs = [visitor.context.new_page() for _ in range(TABS - 1)]
    for tab in tabs:
        tab.goto(visitor.page.url)

    for tab in tabs:
        expect(tab.get_by_role("log").get_by_text("Streaming")).to_be_visible()
    visitor.house.open_gate()

    for tab in [visitor.page, *tabs]:
        expect(tab.get_by_role("log").get_by_role("article", name="general").locator("p")).to_have_text(HELD)


def test_a_wrong_token_is_asked_for_again_kindly(chromium: Browser, house: House) -> None:
    with visiting(chromium, house) as visitor:
        visitor.page.goto(f"{house.url}/#token=wrong-wrong-wrong")
        expect(visitor.page.get_by_role("heading", name="That key does not open this gateway")).to_be_visible()

        visitor.page.get_by_label("Token or key").fill(house.token)
        visitor.page.get_by_role("button", name="Go on").click()

        visitor.expect_live()


def test_without_a_token_it_is_asked_for_and_signing_out_forgets_it(chromium: Browser, house: House) -> None:
    with visiting(chromium, house) as visitor:
        visitor.page.goto(house.url)
        expect(visitor.page.get_by_role("heading", name="Whose page is this?")).to_be_visible()
        visitor.enter()
        visitor.page.get_by_role("button", name="Sign out").click()

        visitor.page.goto(house.url)

        expect(visitor.page.get_by_label("Token or key")).to_be_visible()


def test_a_refusal_that_comes_late_is_not_taken_for_one_of_the_token_given_meanwhile(
    chromium: Browser, house: House
) -> None:
    held: list[Route] = []
    with visiting(chromium, house) as visitor:
        page = visitor.page
        page.route(
            re.compile("/api/(agents|scenarios|tools/)"),
            lambda route: route.continue_() if "authorization" in route.request.headers else held.append(route),
        )
        page.goto(house.url)
        visitor.enter()

        for route in held:
            with page.expect_response(route.request.url):
                route.fulfill(status=401, json={"status": 401, "code": "unauthorized", "title": "", "detail": ""})
        page.evaluate("() => new Promise((shown) => requestAnimationFrame(() => requestAnimationFrame(shown)))")

        assert held
        expect(page.get_by_role("banner").get_by_text("Live", exact=True)).to_be_visible(timeout=1000)


def test_another_persons_conversation_is_not_there(chromium: Browser, visitor: Visitor) -> None:
    visitor.say("a secret of the house")
    expect(visitor.answers()).to_have_count(1)
    link = visitor.page.url.partition("#")[2]
    key = key_for(visitor.house)

    with visiting(chromium, visitor.house) as other:
        with other.page.expect_response("**/api/me"):
            other.page.goto(f"{visitor.house.url}/#{link}&token={key}")

        expect(other.page.get_by_role("heading", name="There is no such conversation")).to_be_visible()
        expect(other.page.get_by_text("a secret of the house")).to_have_count(0)
        expect(other.page.get_by_role("tab", name="Graph")).to_be_visible()
        for tab in ("Dead letters", "Outbox"):
            expect(other.page.get_by_role("tab", name=tab)).to_have_count(0)


def key_for(house: House) -> str:
    bus = connect(house.bus_url)
    made = run(bus, making_key(("user:ann",)))
    bus.close()
    return made.text
