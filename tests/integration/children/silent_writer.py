"""A process that commits an append and is killed before it has sent the notification of it.

Settings: `url`, `topic`.
"""

from __future__ import annotations

import threading

from magent2.bus.connect import connect
from magent2.bus.operations import Append
from magent2.bus.postgres import PostgresBus
from magent2.bus.postgres_engine import notifications
from magent2.bus.records import NewRecord
from tests.support.processes import report, settings
from tests.support.waiting import eventually

PAUSE_S = 3600.0  # between two notifications, so the second one never goes out


def main() -> None:
    given = settings()
    notifications.NOTIFY_PAUSE_S = PAUSE_S
    bus = connect(given["url"])
    assert isinstance(bus, PostgresBus)
    bus.call(Append(records=(NewRecord("note:other", {}),)))
    thread = bus._hub._thread
    assert thread is not None
    eventually(lambda: thread._send_at)  # the first one has gone out
    appended = bus.call(Append(records=(NewRecord(given["topic"], {}),)))
    report(seq=appended.seqs[0], unsent=list(thread._unsent))
    threading.Event().wait()


if __name__ == "__main__":
    main()
