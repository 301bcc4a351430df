"""A process without agents that sends messages to the runs of a conversation.

Settings: `url`, `conversation`, `messages` (each the fields of a message, sent in order) and `wait_s`. Says what was
sent, and then what became of each message once all that it went to have seen it.
"""

from __future__ import annotations

import sys

from magent2.agents import RemoteContext
from magent2.bus.connect import connect
from magent2.context import BusMessage
from tests.support.processes import report, settings


def main() -> None:
    given = settings()
    bus = connect(given["url"])
    context = RemoteContext(bus, given["conversation"], require_active=True)
    messages = [context.send_message(BusMessage(**fields)) for fields in given["messages"]]
    report(sent=[message.id for message in messages], sdk="agents" in sys.modules)
    for message in messages:
        fate = context.receipt(message.id, given["wait_s"])
        seen = sorted([receipt.agent, receipt.turn] for receipt in fate.receipts)
        report(id=message.id, waiting=fate.waiting, seen=seen)
    bus.close()


if __name__ == "__main__":
    main()
