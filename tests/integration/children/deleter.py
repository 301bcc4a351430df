"""A process that deletes conversations, reports, and waits to be killed."""

from __future__ import annotations

import threading

from magent2.bus.connect import connect
from magent2.bus.operations import Delete
from magent2.models.address import conversation_topics
from tests.support.processes import report, settings


def main() -> None:
    given = settings()
    bus = connect(given["url"])
    for conversation in given["conversations"]:
        bus.call(Delete(conversation_topics(conversation), conversation))
    report(deleted=given["conversations"])
    threading.Event().wait()


if __name__ == "__main__":
    main()
