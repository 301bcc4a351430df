"""From a block to a receiver outside: a real run, a real relay, and a real HTTP server that checks the signature."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from magent2.bus.log import run_sync
from magent2.bus.memory import MemoryBus
from magent2.connectors.builtin import capabilities_of
from magent2.connectors.outbox import read_outbox
from magent2.connectors.relay import Relay
from magent2.directory.connectors import register_connector
from magent2.directory.users import change_user
from magent2.sandbox.monty import MontySandbox
from magent2.tools.messaging import messaging_tools
from magent2.tools.registry import tool
from tests.support.blocks import Blocks
from tests.support.fake_receivers import ReceivedPost, WebhookReceiver, webhook_receiver
from tests.support.journaled_runs import recorded, work
from tests.support.send_cases import FILE
from tests.support.waiting import until

SECRET = "a-secret-for-tests-only"  # pragma: allowlist secret
CODE = """
say("first")
send_file("note.txt")
rewrite()
send_file("note.txt", text="as it is now")
say("last")
"""


@pytest.fixture
async def receiver(bus: MemoryBus) -> AsyncIterator[WebhookReceiver]:
    """Where ann is reached, with a relay that sends there."""
    async with webhook_receiver() as receiver:
        config = {"url": receiver.url, "secret": SECRET, "allow_private": True, "takes_key": True}
        run_sync(bus, register_connector, "hook", "webhook", capabilities_of("webhook", config), config)
        run_sync(bus, change_user, "ann", {"connector": "hook", "target": "+1"})
        relay = Relay(bus)
        relaying = asyncio.create_task(relay.run())
        yield receiver
        relay.drain()
        await relaying


async def run_block(bus: MemoryBus, sandbox: MontySandbox, folder: Path, code: str) -> str:
    @tool
    def rewrite() -> None:
        """Change the file that was sent."""
        (folder / "files" / "Ada" / FILE).write_text("another note")

    blocks = Blocks(sandbox, code, *messaging_tools(), rewrite)
    await work(bus, blocks.made)
    (folder / "files" / "Ada" / FILE).write_text("changed at the end")
    return blocks.text


def contents(post: ReceivedPost) -> list[str]:
    return [base64.b64decode(file["data"]).decode() for file in json.loads(post.body)["attachments"]]


async def test_what_a_block_says_arrives_signed_in_order_and_as_it_was_when_it_was_said(
    bus: MemoryBus, sandbox: MontySandbox, receiver: WebhookReceiver, tmp_path: Path
) -> None:
    text = await run_block(bus, sandbox, tmp_path, CODE)
    await until(lambda: len(receiver.posts) == 4)

    assert text.endswith("[Messages: 4 sent]")
    assert all(post.is_signed_by(SECRET) for post in receiver.posts)
    assert [post.text for post in receiver.posts] == ["first", "", "as it is now", "last"]
    assert [contents(post) for post in receiver.posts] == [[], ["a note"], ["another note"], []]
    assert [post.headers["idempotency-key"] for post in receiver.posts] == recorded(bus)["c1"]["sends"]
    await until(lambda: {item.state for item in run_sync(bus, read_outbox, "hook")} == {"sent"})


async def test_of_a_block_that_fails_nothing_arrives_but_what_went_at_once(
    bus: MemoryBus, sandbox: MontySandbox, receiver: WebhookReceiver, tmp_path: Path
) -> None:
    text = await run_block(bus, sandbox, tmp_path, CODE + 'say("now", now=True)\n1 / 0\n')
    await until(lambda: receiver.posts)

    assert text.endswith("[Messages: 4 NOT sent (script failed)]")
    assert [item.message.text for item in run_sync(bus, read_outbox, "hook")] == ["now"]
    assert [post.text for post in receiver.posts] == ["now"]
