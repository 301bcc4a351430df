"""Reconnecting after reloads, restarts and lost networks; several tabs; tokens and access of other users."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, Route, expect

from magent2.bus.connect import connect
from magent2.bus.log import run_sync
from magent2.directory.keys import create_key
from tests.support.browser import PAGE_INDEX, PageServer, PageUser, open_page

pytestmark = pytest.mark.browser

HELD = "held: one two three four five six seven eight"
NO_SHARED_WORKER = "delete window.SharedWorker"
BACK_ONLINE = "Back online. No messages were lost."
# The banner is shown for 3 s, which a busy machine may take to look once.
NOTE_BACK_ONLINE = f"""new MutationObserver(() => {{
  if (document.body?.textContent.includes({BACK_ONLINE!r})) document.documentElement.dataset.backOnline = "shown";
}}).observe(document, {{childList: true, subtree: true}})"""
TABS = 10


def expect_one_whole_answer(user: PageUser) -> None:
    """The question and the complete answer are shown once each."""
    expect(user.answers()).to_have_count(1)
    expect(user.answers().locator("p")).to_have_text(HELD)
    expect(user.log.get_by_text("Streaming")).to_have_count(0)
    user.expect_text(HELD, times=2)


def test_a_reload_during_an_answer_loses_and_repeats_nothing(user: PageUser) -> None:
    user.send(HELD)
    expect(user.answers()).to_contain_text("held: one two")

    user.page.reload()
    expect(user.answers()).to_contain_text("held: one two")
    user.server.open_gate()

    expect_one_whole_answer(user)


def test_an_answer_continues_after_the_server_is_killed_and_restarted(user: PageUser) -> None:
    user.send(HELD)
    expect(user.answers()).to_contain_text("held: one two")

    user.server.kill()
    expect(user.page.get_by_text("Offline. Your messages are saved")).to_be_visible()
    user.server.restart()
    user.server.open_gate()

    user.expect_live()
    expect_one_whole_answer(user)


def test_nothing_is_shown_as_working_while_the_page_is_offline(user: PageUser) -> None:
    user.send("gated: weather in Oslo")
    expect(user.log.get_by_text("general is working")).to_be_visible()
    said = user.page.get_by_text(re.compile("is working|^Working$|^working$|while it works|^Streaming$|^Running$"))
    working = said.and_(user.page.locator(":not(.sr-only *)"))  # screen readers were told when it was so
    expect(working.first).to_be_visible()

    user.server.kill()

    expect(user.log.get_by_text("general had not finished when updates stopped")).to_be_visible()
    expect(working).to_have_count(0)
    user.server.restart()
    user.server.open_gate()
    expect(user.answers()).to_have_count(1)


def test_a_message_sent_while_the_server_is_down_arrives_once(user: PageUser) -> None:
    user.send("hello")
    expect(user.answers()).to_have_count(1)
    expect(user.message_box).to_have_attribute("placeholder", "Message general")  # the run that answers is over
    user.server.kill()
    expect(user.page.get_by_text("Offline. Your messages are saved")).to_be_visible()

    user.send("are you there")
    expect(user.log.get_by_text("Not sent yet.")).to_be_visible()
    user.server.restart()
    user.page.reload()  # before or after it was sent: it must be one message either way

    expect(user.answers()).to_have_count(2)
    user.expect_text("are you there", times=2)


def test_the_page_shows_that_it_is_offline_and_recovers(chromium: Browser, server: PageServer) -> None:
    server.open_gate()
    with open_page(chromium, server) as user:
        user.page.add_init_script(NO_SHARED_WORKER)
        user.page.add_init_script(NOTE_BACK_ONLINE)
        user.sign_in()
        user.context.set_offline(True)
        expect(user.page.get_by_text("Offline. Your messages are saved")).to_be_visible()
        user.send("sent without a network")
        expect(user.log.get_by_text("Not sent yet.")).to_be_visible()

        user.context.set_offline(False)

        expect(user.page.locator("html[data-back-online]")).to_have_count(1)
        user.expect_text("sent without a network", times=2)


def test_the_page_polls_where_streams_are_blocked(chromium: Browser, server: PageServer) -> None:
    server.open_gate()
    with open_page(chromium, server) as user:
        user.page.add_init_script(NO_SHARED_WORKER)
        user.page.route("**/api/stream**", lambda route: route.abort())
        user.page.goto(server.sign_in_url)
        expect(user.page.get_by_role("banner").get_by_text("Polling")).to_be_visible()

        user.send("hello by polling")

        user.expect_text("hello by polling", times=2)


def test_a_tab_older_than_the_server_offers_a_reload_and_keeps_the_draft(chromium: Browser, server: PageServer) -> None:
    with open_page(chromium, server) as user:
        page = user.page
        page.add_init_script(NO_SHARED_WORKER)
        user.sign_in()
        user.message_box.fill("half a thought")
        newer = PAGE_INDEX.read_text().replace("page/index-", "page/index-newer")
        page.route(f"{server.url}/", lambda route: route.fulfill(body=newer, content_type="text/html"), times=1)
        user.context.set_offline(True)
        expect(page.get_by_text("Offline. Your messages are saved")).to_be_visible()

        user.context.set_offline(False)
        expect(page.get_by_text("A new version of this page is available.")).to_be_visible()
        page.get_by_role("button", name="Reload").click()

        expect(page.get_by_text("A new version of this page")).to_have_count(0)
        user.expect_live()
        expect(user.message_box).to_have_value("half a thought")


def test_a_chunk_that_cannot_be_loaded_shows_an_error_and_the_rest_works(chromium: Browser, server: PageServer) -> None:
    server.open_gate()
    with open_page(chromium, server) as user:
        user.page.route("**/page/GraphPanel-*.js", lambda route: route.abort())
        user.page.route("**/page/HighlightedCode-*.js", lambda route: route.abort())
        user.sign_in()
        user.page.get_by_role("tab", name="Graph").click()
        expect(user.page.get_by_role("alert")).to_contain_text("This part of the page could not be loaded.")

        user.send("Like this:\n\n```python\nprint(1)\n```")
        user.page.get_by_role("tab", name="Agents").click()

        expect(user.answers().locator("figure")).to_contain_text("print(1)")
        expect(user.page.get_by_role("tabpanel", name="Agents")).to_contain_text("general")


def test_ten_tabs_are_live_over_one_connection(user: PageUser) -> None:
    user.send(HELD)
    expect(user.answers()).to_contain_text("held: one two")
    tabs = [user.context.new_page() for _ in range(TABS - 1)]
    for tab in tabs:
        tab.goto(user.page.url)

    for tab in tabs:
        expect(tab.get_by_role("log").get_by_text("Streaming")).to_be_visible()
    user.server.open_gate()

    for tab in [user.page, *tabs]:
        expect(tab.get_by_role("log").get_by_role("article", name="general").locator("p")).to_have_text(HELD)


def test_many_tabs_without_a_shared_worker_do_not_block_each_other(chromium: Browser, server: PageServer) -> None:
    server.open_gate()
    with open_page(chromium, server) as user:
        user.context.add_init_script(NO_SHARED_WORKER)
        user.sign_in()
        tabs = [user.context.new_page() for _ in range(TABS - 1)]
        for tab in tabs:
            tab.goto(user.page.url)
            expect(tab.get_by_role("banner").get_by_text("Polling")).to_be_visible()

        last = tabs[-1]
        last.get_by_role("textbox", name="Message", exact=True).fill("hello from the last tab")
        last.keyboard.press("Enter")

        expect(last.get_by_role("log").get_by_role("article", name="general")).to_have_count(1)
        expect(user.page.get_by_role("navigation").get_by_role("link", name="hello from the last tab")).to_be_visible()
        user.page.close()  # the tab that streams
        expect(tabs[0].get_by_role("banner").get_by_text("Live", exact=True)).to_be_visible()


def test_a_wrong_token_leads_back_to_the_sign_in_form(chromium: Browser, server: PageServer) -> None:
    with open_page(chromium, server) as user:
        user.page.goto(f"{server.url}/#token=wrong-wrong-wrong")
        expect(user.page.get_by_role("heading", name="Sign-in failed")).to_be_visible()

        user.page.get_by_label("Token or key").fill(server.token)
        user.page.get_by_role("button", name="Sign in").click()

        user.expect_live()


def test_the_page_asks_for_a_token_and_forgets_it_on_sign_out(chromium: Browser, server: PageServer) -> None:
    with open_page(chromium, server) as user:
        user.page.goto(server.url)
        expect(user.page.get_by_role("heading", name="Sign in")).to_be_visible()
        user.sign_in()
        user.page.get_by_role("button", name="Sign out").click()

        user.page.goto(server.url)

        expect(user.page.get_by_label("Token or key")).to_be_visible()


def test_signing_in_again_opens_the_conversation_of_the_address(user: PageUser) -> None:
    user.send("hello there")
    user.expect_text("hello there", times=2)

    user.page.get_by_role("button", name="Sign out").click()
    user.page.get_by_label("Token or key").fill(user.server.token)
    user.page.get_by_label("Token or key").press("Enter")

    user.expect_text("hello there", times=2)


def test_a_late_401_of_an_earlier_token_does_not_sign_out_the_new_one(chromium: Browser, server: PageServer) -> None:
    early: list[Route] = []
    with open_page(chromium, server) as user:
        page = user.page
        page.route(
            re.compile("/api/(agents|scenarios|tools/)"),
            lambda route: route.continue_() if "authorization" in route.request.headers else early.append(route),
        )
        page.goto(server.url)
        user.sign_in()

        for route in early:
            with page.expect_response(route.request.url):
                route.fulfill(status=401, json={"status": 401, "code": "unauthorized", "title": "", "detail": ""})
        page.evaluate("() => new Promise((shown) => requestAnimationFrame(() => requestAnimationFrame(shown)))")

        assert early
        user.expect_live()


def test_the_conversation_of_another_user_is_not_found(chromium: Browser, user: PageUser) -> None:
    user.send("a private message")
    expect(user.answers()).to_have_count(1)
    link = user.page.url.partition("#")[2]
    key = key_for(user.server)

    with open_page(chromium, user.server) as other:
        with other.page.expect_response("**/api/me"):
            other.page.goto(f"{user.server.url}/#{link}&token={key}")

        expect(other.page.get_by_role("heading", name="Conversation not found")).to_be_visible()
        expect(other.page.get_by_text("a private message")).to_have_count(0)
        expect(other.page.get_by_role("tab", name="Graph")).to_be_visible()
        for tab in ("Dead letters", "Outbox"):
            expect(other.page.get_by_role("tab", name=tab)).to_have_count(0)


def key_for(server: PageServer) -> str:
    bus = connect(server.bus_url)
    made = run_sync(bus, create_key, ("user:ann",))
    bus.close()
    return made.text
