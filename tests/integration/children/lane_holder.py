"""A process that claims one lane, as a worker does, and holds it until it ends. A line makes it close its log first.

Settings: `url`, `agent`, `lease_s`.
"""

from __future__ import annotations

from magent2.bus.connect import connect
from magent2.bus.operations import Claim
from magent2.models.address import chat_topic
from tests.support.processes import await_line, report, settings


def main() -> None:
    given = settings()
    agent = given["agent"]
    engine = connect(given["url"])
    with engine.watch([chat_topic(agent)]):
        claim = Claim(worker="holder", agents=(agent,), limit=1, lease_s=given["lease_s"])
        lanes = engine.call(claim).lanes
        report(lanes=len(lanes))
        await_line()
    engine.close()
    report(closed=True)
    await_line()


if __name__ == "__main__":
    main()
