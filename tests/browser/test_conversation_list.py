"""The list of conversations beyond those that the server keeps up to date: older pages, states and their numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import pytest
from playwright.sync_api import Browser, Locator, expect

from magent2.bus.connect import connect
from magent2.bus.operations import Append, SetHead
from magent2.bus.records import NewRecord
from magent2.client import Client
from magent2.gateway.streaming.session_list import SHOWN_MAX
from tests.support.browser import PHONE, PageServer, PageUser, open_page
from tests.support.processes import ProcessGroup

pytestmark = pytest.mark.browser

OLD: Mapping[str, Mapping[str, object]] = {
    "asks": {"run_status": "running", "paused": 1},
    "works": {"run_status": "running"},
    "broke": {"run_status": "failed"},
    "done": {"run_status": "finished"},
}
RECENT = 2 * SHOWN_MAX


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    """A gateway whose oldest conversations are in each of the states, and behind them two pages of finished ones."""
    with ProcessGroup() as process_group:
        started = PageServer(process_group, tmp_path_factory.mktemp("server"))
        bus = connect(started.bus_url)
        recent: Mapping[str, Mapping[str, object]] = {f"recent {n}": {"run_status": "finished"} for n in range(RECENT)}
        for name, head in {**OLD, **recent}.items():
            topic = f"stream:{name}"
            bus.call(Append(records=(NewRecord(topic, {"event": "run"}),), heads=(SetHead(topic, head),)))
        bus.close()
        yield started


@pytest.fixture
def conversations(user: PageUser) -> Locator:
    listed = user.page.get_by_role("navigation", name="Conversations")
    expect(listed.get_by_role("link")).to_have_count(SHOWN_MAX)
    return listed


def test_all_conversations_can_be_reached_by_the_button(conversations: Locator) -> None:
    more = conversations.get_by_role("button", name="Show more conversations")
    more.dispatch_event("click")  # scrolling to the button would load more as well
    expect(conversations.get_by_role("link")).to_have_count(RECENT)
    more.dispatch_event("click")

    expect(conversations.get_by_role("link")).to_have_count(RECENT + len(OLD))
    expect(more).to_have_count(0)


def test_scrolling_to_the_end_loads_more(conversations: Locator) -> None:
    for shown in (SHOWN_MAX, RECENT):
        expect(conversations.get_by_role("link")).to_have_count(shown)
        conversations.get_by_role("link").last.scroll_into_view_if_needed()

    expect(conversations.get_by_role("link")).to_have_count(RECENT + len(OLD))


@pytest.mark.parametrize(("state", "name"), [("Waiting", "asks"), ("Running", "works"), ("Failed", "broke")])
def test_a_state_shows_its_number_and_its_conversations(conversations: Locator, state: str, name: str) -> None:
    button = conversations.get_by_role("button", name=re.compile(f"^{state}"))
    expect(button).to_have_text(f"{state} 1")

    button.click()

    expect(conversations.get_by_role("link")).to_have_count(1)
    expect(conversations.get_by_role("link", name=name)).to_be_visible()
    button.click()
    expect(conversations.get_by_role("link", name="recent").first).to_be_visible()


def test_numbers_follow_a_new_run(user: PageUser, conversations: Locator) -> None:
    user.send("gated: weather in Oslo")

    expect(conversations.get_by_role("button", name=re.compile("^Running"))).to_have_text("Running 2")
    user.server.open_gate()
    expect(conversations.get_by_role("button", name=re.compile("^Running"))).to_have_text("Running 1")
    with Client(user.server.url, user.server.token) as client:
        client.delete(user.session_id)  # other tests count the conversations of this server


def test_the_filter_fits_on_a_phone(chromium: Browser, server: PageServer) -> None:
    with open_page(chromium, server, viewport=PHONE, has_touch=True, is_mobile=True) as user:
        user.sign_in()
        user.page.get_by_role("button", name="Conversations").click()

        expect(user.page.get_by_role("group", name="Show only")).to_be_in_viewport(ratio=1)
