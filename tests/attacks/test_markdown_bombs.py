"""Texts of a few kilobytes that are expensive to parse, to draw or to indent leave the page usable."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from playwright.sync_api import expect

from magent2.bus.connect import connect
from magent2.bus.operations import Append
from magent2.bus.records import NewRecord
from magent2.models.envelope import OutputEvent, ToolStepEvent
from magent2.sessions.stream import stream_record
from tests.support.browser import PageServer, PageUser

pytestmark = pytest.mark.browser

AFTER = "after the bomb"
SIDE = 1_000
LONG_CHARS = 90_000
BOMBS: Mapping[str, str] = {
    "nested quotes": ">" * 4_000 + " deep",
    "nested lists": "- " * 2_000 + "deep",
    "nested ordered lists": "1. " * 1_300 + "deep",
    "quotes that end one by one": "\n".join("> " * (40 - level) + "a" for level in range(40)),
    "open emphasis": "*a **b" * 5_000,
    "open strong emphasis": "**" * 5_000 + "a",
    "nested links": "[" * 2_000 + "a" + "](b)" * 2_000,
    "table of a million cells": "|a" * SIDE + "|\n" + "|-" * SIDE + "|\n" + "|\n" * SIDE,
    "a word before an at sign": "a" * 50_000 + "@",
    "spaces in a line": "a" + " " * LONG_CHARS + "b",
    "address with brackets": "http://a" + ")" * LONG_CHARS,
    "headings": "a\n-\n" * (LONG_CHARS // 4),
    "one long line": "x" * 500_000,
    "many lines": "a\n" * 100_000,
    "nested template strings": "```js\n" + "`${" * 3_000 + "1" + "}`" * 3_000 + "\n```",
    "long code line": "```python\n" + "x" * 400_000 + "\n```",
}


def write(server: PageServer, *events: OutputEvent | ToolStepEvent) -> None:
    bus = connect(server.bus_url)
    bus.call(Append(records=tuple(stream_record(event, {"agent": "general"}) for event in events)))
    bus.close()


def show(user: PageUser, conversation: str) -> None:
    user.page.goto(f"{user.server.url}/#/c/{conversation}")
    expect(user.log.get_by_text(AFTER, exact=True)).to_be_visible()


def expect_usable(user: PageUser) -> None:
    """The message box accepts text, and another conversation can be opened."""
    user.message_box.fill("still here")
    expect(user.message_box).to_have_value("still here")
    user.page.get_by_role("button", name="New conversation").click()
    expect(user.page.get_by_role("heading", name="What should the team do?")).to_be_visible()


def test_answers_that_are_expensive_to_format_leave_the_page_usable(user: PageUser, subtests: pytest.Subtests) -> None:
    """All in one tab: to open the page costs more than to draw most of them."""
    for name, bomb in BOMBS.items():
        with subtests.test(name):
            conversation = f"bomb-{name.replace(' ', '-')}"
            write(user.server, *(OutputEvent(conversation_id=conversation, text=text) for text in (bomb, AFTER)))

            show(user, conversation)

            expect(user.log.get_by_role("article")).to_have_count(2)
            expect_usable(user)

    user.page.reload()
    user.expect_live()


@pytest.mark.parametrize(
    "result", ["[" * 3_000 + "]" * 3_000, "[" * 100_000 + "]" * 100_000, '{"a":' * 3_000 + "1" + "}" * 3_000]
)
def test_a_nested_tool_result_can_be_opened(user: PageUser, result: str) -> None:
    conversation = f"result-{len(result)}-{result[0]}"
    started = ToolStepEvent(conversation_id=conversation, tool_call_id="t1", name="lookup", status="start")
    done = started.model_copy(update={"id": "done", "status": "success", "result_summary": result})
    write(user.server, started, done, OutputEvent(conversation_id=conversation, text=AFTER))
    show(user, conversation)

    user.log.get_by_role("button", name="lookup").click()

    expect(user.log.get_by_label("Result", exact=True)).to_contain_text(result[:50])
    expect_usable(user)


def test_an_entry_that_cannot_be_drawn_is_replaced_by_an_error_and_the_rest_works(user: PageUser) -> None:
    conversation = "undrawable"
    beyond_time = 10**18  # milliseconds; a browser cannot format it
    payload = {"event": "approval", "conversation_id": conversation, "created_at": "2026-11-01T00:00:00Z",
               "status": "requested", "tool_call_id": "t1", "name": "refund", "expires_at": beyond_time}  # fmt: skip
    bus = connect(user.server.bus_url)
    bus.call(Append(records=(NewRecord(f"stream:{conversation}", payload),)))
    bus.close()
    write(user.server, OutputEvent(conversation_id=conversation, text=AFTER))

    show(user, conversation)

    expect(user.log.get_by_role("alert")).to_contain_text("This entry could not be displayed")
    expect_usable(user)
