"""The conformance suite of connectors. Each connector provides a setup with a receiver that can be inspected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from magent2.connectors.interface import Attachment, Connector, DeliveryReceipt, OutgoingMessage
from magent2.errors import NotTaken, OutcomeUnknown, TransientError

DATA = b"content of a file"
SHA256 = "2e7d2c03a9507ae265ecf5b5356885a53393a2029d241394997265a1a25aefc6"  # pragma: allowlist secret


@dataclass
class ConnectorSetup:
    """A connector and the texts that its receiver has. Each of `breaks` makes the receiver fail the next message."""

    connector: Connector
    arrived: Callable[[], list[str]]
    breaks: list[Callable[[], object]] = field(default_factory=list)


def message(text: str, key: str = "m-1", **more: object) -> OutgoingMessage:
    return OutgoingMessage(key, "hook", "ann", "one", "Ada", text, "2026-01-01T00:00:00+00:00", **more)  # type: ignore[arg-type]


class ConnectorContract:
    @pytest.fixture
    async def setup(self) -> ConnectorSetup:
        raise NotImplementedError

    async def test_what_was_sent_has_arrived_in_order(self, setup: ConnectorSetup) -> None:
        receipts = [await setup.connector.send(message(text, f"m-{text}"), {}) for text in ("one", "two")]

        assert setup.arrived() == ["one", "two"]
        assert all(isinstance(receipt, DeliveryReceipt) for receipt in receipts)

    async def test_it_says_what_it_can_do_and_does_it(self, setup: ConnectorSetup) -> None:
        can = setup.connector.capabilities
        assert can.text
        attachment = Attachment("a.txt", SHA256, "text/plain", len(DATA))
        if can.files:
            await setup.connector.send(message("file", attachments=(attachment,)), {SHA256: DATA})
        if can.reply_to:
            await setup.connector.send(message("reply", "m-2", reply_to="m-0"), {})

        assert len(setup.arrived()) == can.files + can.reply_to

    async def test_text_arrives_without_commands_for_whatever_shows_it(self, setup: ConnectorSetup) -> None:
        await setup.connector.send(message("red \x1b[31m alert", "m-3"), {})

        assert "\x1b" not in setup.arrived()[0] or setup.arrived()[0] == "red \x1b[31m alert"

    async def test_a_failure_is_one_of_the_three(self, setup: ConnectorSetup) -> None:
        for break_it in setup.breaks:
            break_it()
            with pytest.raises((NotTaken, OutcomeUnknown, TransientError)):
                await setup.connector.send(message("lost", "m-4"), {})

    async def test_it_can_be_closed_twice(self, setup: ConnectorSetup) -> None:
        await setup.connector.aclose()
        await setup.connector.aclose()
