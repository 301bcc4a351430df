"""`python -m magent2.bus [URL]` opens a bus and prints which log it is."""

from __future__ import annotations

import sys

import click

from magent2.bus.connect import connect, default_url, hide_password
from magent2.bus.operations import Info, Topics
from magent2.settings import Settings
from magent2.terminal import clean_text

TOPICS_SHOWN = 10


@click.command()
@click.argument("url", required=False)
def describe(url: str | None) -> None:
    """Open a bus and print which log it is, with its first topics.

    URL is memory://, sqlite:///FILE, redis://HOST or postgresql://HOST/DATABASE. Without it MAGENT2_BUS_URL is opened,
    then REDIS_URL, then the SQLite file in the data folder.
    """
    settings = Settings.read()
    bus = connect(url, settings)
    try:
        info = bus.call(Info())
        page = bus.call(Topics(limit=TOPICS_SHOWN))
    finally:
        bus.close()
    lines = [
        f"bus      {hide_password(url or settings.bus_url or default_url(settings))}",
        f"log      {info.log_id} ({info.engine}, schema {info.schema}, created by {info.release})",
        *(f"warning  {warning}" for warning in info.warnings),
        *(f"topic    {topic.topic}  {topic.last} records" for topic in page.topics),
    ]
    if not page.topics:
        lines.append("topics   none yet; publish to one with bus.publish(topic, BusMessage(topic, payload))")
    click.echo(clean_text("\n".join(lines)))


if __name__ == "__main__":
    from magent2.cli.main import run

    sys.exit(run(sys.argv[1:], describe, "python -m magent2.bus"))
