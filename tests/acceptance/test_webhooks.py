"""The receiver of docs/webhooks.md as a process, a server as a process, and the commands of a user between them."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from magent2.client import Client
from magent2.models.webhook_events import WEBHOOK_EVENTS, EventFields, Notification
from tests.support.command_line import CommandLine, served_team
from tests.support.fake_receivers import webhook_server
from tests.support.forked_processes import ROOT
from tests.support.ports import quiet_port
from tests.support.waiting import eventually

PAGE = (ROOT / "docs/webhooks.md").read_text()
SECRET = "a-secret-for-tests-only"  # pragma: allowlist secret


def block(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```$", PAGE, re.S | re.M)
    assert found is not None
    return found[1]


@pytest.fixture(scope="module")
def magent2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    with served_team(tmp_path_factory.mktemp("served")) as commands:
        yield commands


@pytest.fixture
def client(magent2: CommandLine) -> Iterator[Client]:
    with Client(magent2.variables["MAGENT2_URL"], magent2.token) as client:
        yield client


@contextmanager
def printed_receiver(folder: Path) -> Iterator[tuple[str, Path]]:
    """The receiver of the page as a program: its URL, and the file of its output."""
    (folder / "receiver.py").write_text(block("python"))
    output, port = folder / "received.txt", quiet_port()
    variables = {**os.environ, "WEBHOOK_SECRET": SECRET, "PORT": str(port)}
    with output.open("w") as out:
        process = subprocess.Popen([sys.executable, "receiver.py"], cwd=folder, env=variables, stdout=out)
        try:
            eventually(lambda: _listens(port))
            yield f"http://127.0.0.1:{port}/", output
        finally:
            process.kill()
            process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_the_printed_receiver_gets_events_and_refuses_what_is_not_signed(
    magent2: CommandLine, client: Client, tmp_path: Path
) -> None:
    (tmp_path / "secret.txt").write_text(f"{SECRET}\n")
    with printed_receiver(tmp_path) as (url, output):
        options = ("--allow-private", "--secret-file", str(tmp_path / "secret.txt"), "--json")
        added = magent2.run("webhooks", "add", url, *options).json
        tested = magent2.run("webhooks", "test", added["id"])
        assert (tested.code, tested.err) == (0, "the receiver has taken the test\n")

        client.ask("support", "hello", conversation_id="talk")
        client.send("support", "refund order 7", conversation_id="refund")
        eventually(lambda: len(output.read_text().splitlines()) == 3)

        forged = urllib.request.Request(url, data=b'{"id": "evt-1", "type": "run.finished", "data": {}}', method="POST")
        forged.add_header("X-Magent2-Signature", "v1=0000")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(forged)
        listed = magent2.run("webhooks", "deliveries", added["id"], "--state", "sent", "--json").json
        assert magent2.run("webhooks", "rm", added["id"]).code == 0

    assert output.read_text().splitlines() == ["webhook.test None", "run.finished talk", "approval.requested refund"]
    assert [one["type"] for one in listed] == ["webhook.test", "run.finished", "approval.requested"]
    assert added["secret"] is None
    assert magent2.run("webhooks", "ls", "--json").json == []


def test_the_printed_notification_has_the_form_of_a_real_one(client: Client) -> None:
    printed = json.loads(block("json"))
    with webhook_server() as receiver:
        webhook = client.create_webhook(receiver.url, ["run.finished"], allow_private=True)
        client.ask("support", "hello", conversation_id="shown")
        eventually(lambda: receiver.posts)
        client.delete_webhook(webhook.id)

    (real,) = [json.loads(post.body) for post in receiver.posts]
    assert {name: type(value) for name, value in real.items()} == {name: type(value) for name, value in printed.items()}
    assert real["data"].keys() == printed["data"].keys()
    assert printed.keys() == Notification.__annotations__.keys() | {"id"}


def test_the_page_names_every_event_and_every_field() -> None:
    names = [*WEBHOOK_EVENTS, *EventFields.__annotations__]

    assert [name for name in names if f"`{name}`" not in PAGE and f'"{name}"' not in PAGE] == []


def test_a_test_of_a_receiver_that_refuses_says_why(magent2: CommandLine, client: Client) -> None:
    webhook = client.create_webhook(f"http://127.0.0.1:{quiet_port()}/", allow_private=True)

    done = magent2.run("webhooks", "test", webhook.id)

    assert (done.code, "cannot connect to 127.0.0.1" in done.err) == (1, True), done.err
    client.delete_webhook(webhook.id)
