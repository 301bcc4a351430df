"""How many commands the server runs for the operations of a run. More of them make every run slower.

The first command of each function reads the epoch of the log (decision 54).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from magent2.bus.operations import Append, Claim, Operation, OwnedAppend, SetHead, Settle
from magent2.bus.records import ClaimedLane, NewRecord
from magent2.bus.redis_adapter import RedisBus
from tests.support.audited_lane import mail_to
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.redis

AGENT = "Ada"


class CommandCounter:
    """A log, and a connection that sees all commands of its server."""

    def __init__(self, server: RedisServer) -> None:
        self.prefix = uuid.uuid4().hex
        self.bus = RedisBus(server.url, prefix=self.prefix)
        self._client = redis.Redis(port=server.port)
        self.bus.call(mail_to("Nobody", ["first"]))  # loads the library

    def close(self) -> None:
        self.bus.close()
        self._client.close()

    def commands(self, operation: Operation[Any]) -> list[str]:
        """Return the names of the commands that the function of an operation runs, in order."""
        names: list[str] = []
        end, is_ours = uuid.uuid4().hex, False
        with self._client.monitor() as monitor:  # type: ignore[no-untyped-call]
            self.bus.call(operation)
            self._client.echo(end)
            for line in monitor.listen():
                command: str = line["command"]
                if end in command:
                    break
                if line["client_type"] != "lua":  # the commands of a function follow its call
                    is_ours = command.startswith("FCALL ") and f" {self.prefix} " in command
                elif is_ours:
                    names.append(command.partition(" ")[0].upper())
        return names

    def claim(self, limit: int) -> tuple[ClaimedLane, ...]:
        return self.bus.call(_claim(limit)).lanes


@pytest.fixture
def counter(redis_server: RedisServer) -> Iterator[CommandCounter]:
    counter = CommandCounter(redis_server)
    yield counter
    counter.close()


def _claim(limit: int) -> Claim:
    return Claim(worker="w1", agents=(AGENT,), limit=limit, lease_s=60.0)


def _records(*topics: str) -> tuple[NewRecord, ...]:
    return tuple(NewRecord(topic, {"text": "one"}) for topic in topics)


def _message(number: int) -> Append:
    """A message as a gateway delivers it."""
    payload = {"conversation_id": "c1", "sender": "user:ann", "n": number}
    topics = (f"chat:{AGENT}", "chat:c1", "stream:c1")
    head = SetHead("stream:c1", {"owner": "user:ann", "agent": AGENT})
    return Append(records=tuple(NewRecord(topic, payload, f"m{number}") for topic in topics), heads=(head,))


def test_publishing(counter: CommandCounter) -> None:
    first, second = (Append(records=(NewRecord("stream:c1", {"n": n}, f"id-{n}"),)) for n in (1, 2))

    assert len(counter.commands(first)) == 10
    assert len(counter.commands(second)) == 7


def test_delivering_a_message(counter: CommandCounter) -> None:
    assert len(counter.commands(_message(1))) == 25
    assert len(counter.commands(_message(2))) == 18


@pytest.mark.parametrize(("lanes", "commands"), [(0, 13), (1, 30), (2, 37), (32, 249)])
def test_claiming_new_mail(counter: CommandCounter, lanes: int, commands: int) -> None:
    if lanes:
        counter.bus.call(mail_to(AGENT, [f"c{n}" for n in range(lanes)]))

    assert len(counter.commands(_claim(32))) == commands


def test_the_append_of_an_owner(counter: CommandCounter) -> None:
    counter.bus.call(mail_to(AGENT, ["c1"]))
    (lane,) = counter.claim(1)
    first, second = (OwnedAppend(owner=lane.owner, n=n, records=_records("stream:c1", "stream:c1")) for n in (1, 2))

    assert len(counter.commands(first)) == 10
    assert len(counter.commands(second)) == 8


@pytest.mark.parametrize(("messages", "commands"), [(1, 16), (2, 20)])
def test_settling(counter: CommandCounter, messages: int, commands: int) -> None:
    counter.bus.call(mail_to(AGENT, ["c1"] * messages))
    (lane,) = counter.claim(1)
    counter.bus.call(OwnedAppend(owner=lane.owner, n=1, records=_records("stream:c1", "stream:c1")))

    settle = Settle(owner=lane.owner, mail=(lane.mail[0].ref,), records=_records("stream:c1", "history:c1"))

    assert len(counter.commands(settle)) == commands
