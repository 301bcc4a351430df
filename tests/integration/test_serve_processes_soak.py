"""Processes under one supervisor that are killed at random while clients send: nothing is lost and nothing doubled.

`SUPERVISED_KILLS` shortens it.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from magent2.client import Client
from tests.support.supervised_service import DEADLINE_S, SupervisedService, supervised_service
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.soak,
    pytest.mark.no_cover,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

KILLS = int(os.environ.get("SUPERVISED_KILLS", "40"))
SENDERS = 4
MESSAGES_BETWEEN_KILLS = 5
VARIABLES = {"MAGENT2_LIMIT_LEASE_S": "1"}


class Sender:
    """Sends one message after another in a conversation of its own, and counts the answers."""

    def __init__(self, service: SupervisedService, name: str, stop: threading.Event) -> None:
        self.name, self.sent, self.failure = name, 0, ""
        self._client = Client(service.url, service.token, patience_s=DEADLINE_S)
        self._stop = stop
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                text = f"message {self.sent}"
                answer = self._client.ask("general", text, conversation_id=self.name, timeout_s=DEADLINE_S)
                assert answer.text == text
                self.sent += 1
        except Exception as error:  # noqa: BLE001  the test reports it
            self.failure = repr(error)

    def answers(self) -> list[str]:
        """The answers in the conversation, in order."""
        found: list[str] = []
        since = 0
        while events := self._client.events(self.name, since=since, limit=1000).events:
            found += [event.text for event in events if event.kind == "output" and event.text is not None]
            since = events[-1].seq
        return found

    def close(self) -> None:
        self.thread.join(DEADLINE_S)
        self._client.close()


def test_kills_lose_no_message_and_double_no_answer(tmp_path: Path, log_url: str, rng: random.Random) -> None:
    with (
        supervised_service(tmp_path, log_url, workers=3, gateways=3, variables=VARIABLES) as service,
        ExitStack() as ending,
    ):
        service.await_all()
        stop = threading.Event()
        senders = [Sender(service, f"c{number}", stop) for number in range(SENDERS)]
        for sender in senders:
            ending.callback(sender.close)
        ending.callback(stop.set)

        def total() -> int:
            assert [sender.failure for sender in senders] == [""] * SENDERS
            return sum(sender.sent for sender in senders)

        counted = 0.0
        for _ in range(KILLS):
            goal = total() + MESSAGES_BETWEEN_KILLS
            eventually(lambda goal=goal: total() >= goal, DEADLINE_S)  # type: ignore[misc]
            running = service.pids()
            if running:
                name = rng.choice(sorted(running))
                os.kill(running[name], signal.SIGKILL)
            now = service.metric("magent2_sends_total")
            assert now >= counted, "a counter went down"
            counted = now
        stop.set()
        for sender in senders:
            sender.thread.join(DEADLINE_S)
        assert not any(sender.thread.is_alive() for sender in senders)
        service.await_all()

        assert total() >= KILLS * MESSAGES_BETWEEN_KILLS
        for sender in senders:
            assert sender.answers() == [f"message {number}" for number in range(sender.sent)]
        # An answer is sometimes recorded by a worker that dies before it counts it.
        assert total() - KILLS <= service.metric("magent2_runs_total", outcome="answered") <= total()
        service.process.terminate()
        assert service.process.wait(DEADLINE_S) == 0
