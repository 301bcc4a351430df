"""`python -m magent2.bus [URL]`: open the bus and say which log it is."""

from __future__ import annotations

import sys

from magent2.bus.connect import connect, default_url, hide_password
from magent2.bus.operations import Info, Topics
from magent2.errors import Magent2Error
from magent2.settings import Settings

SHOWN = 10


def main(arguments: list[str]) -> int:
    if len(arguments) > 1 or arguments[:1] in (["-h"], ["--help"]):
        print("usage: python -m magent2.bus [URL]\n\n" + str(__doc__))
        return 0 if arguments[:1] in (["-h"], ["--help"]) else 2
    try:
        describe(arguments[0] if arguments else None)
    except Magent2Error as error:
        print(f"magent2: {error}", file=sys.stderr)
        return 1
    return 0


def describe(url: str | None) -> None:
    settings = Settings.read()
    bus = connect(url, settings)
    try:
        info = bus.call(Info())
        page = bus.call(Topics(limit=SHOWN))
    finally:
        bus.close()
    print(f"bus      {hide_password(url or settings.bus_url or default_url(settings))}")
    print(f"log      {info.log_id} ({info.engine}, schema {info.schema}, made by {info.release})")
    for warning in info.warnings:
        print(f"warning  {warning}")
    for topic in page.topics:
        print(f"topic    {topic.topic}  {topic.last} records")
    if not page.topics:
        print("topics   none yet; publish one with bus.publish(topic, BusMessage(topic, payload))")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
