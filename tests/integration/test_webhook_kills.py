"""Workers are killed with SIGKILL before and after each write of a run and of the relay, and around each request.

Every end of a run and every request for approval that is on the log arrives, under one id. None arrives that is not.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence

import pytest

from magent2.bus.interface import Engine
from magent2.bus.log import run_sync
from magent2.bus.operations import Leave
from magent2.connectors.outbox import read_outbox
from magent2.directory.webhooks import Webhook, create_webhook
from magent2.mail.delivery import SendOptions
from tests.support.fake_receivers import WebhookReceiver, webhook_server
from tests.support.processes import Child, ProcessGroup
from tests.support.worker_fixture import send, stream

CHILD = "tests.integration.children.webhooks"
SECRET = "a-secret-for-tests-only"  # pragma: allowlist secret
ANN = "user:ann"
SIGKILL = 9
WHEN = ("before", "after")
# Writes of the two runs, in the order in which they write
POINTS = ("run:1:after", "run:2:before", "run:2:after", "send:before", "send:after", "relay:1:after")
POINTS_SOAK = (
    *(f"run:{n}:{when}" for n in (1, 2, 3, 4, 5) for when in WHEN),
    *(f"relay:{n}:{when}" for n in (1, 2) for when in WHEN),
    *(f"send:{when}" for when in WHEN),
)


class KilledWorkers:
    """A log with a webhook, its receiver, and a process that forks workers."""

    def __init__(self, url: str, engine: Engine, process_group: ProcessGroup, receiver: WebhookReceiver) -> None:
        config = {"url": receiver.url, "secret": SECRET, "allow_private": True}
        self.engine, self.receiver = engine, receiver
        self.webhook: Webhook = run_sync(engine, create_webhook, ANN, config)
        self._workers: Child = process_group.spawn(CHILD, url=url, webhook=self.webhook.connector)
        self._workers.next_report()
        self.asked: list[str] = []
        self.killed: list[str] = []  # the points at which a worker died

    def ask(self, agent: str, name: str) -> None:
        send(self.engine, "hello", name, SendOptions(principal=ANN), recipient=f"agent:{agent}")
        self.asked.append(name)

    def work(self, worker: str, point: str = "") -> None:
        self._workers.write_line(json.dumps({"worker": worker, "point": point, "expected": len(self.asked)}))
        code = self._workers.next_report()["code"]
        assert code in (0, -SIGKILL), self._workers.errors()
        self.killed += [point] if code == -SIGKILL else []
        for name in (worker, f"relay-{worker}"):
            self.engine.call(Leave(name))  # as if its lease had run out

    def on_the_log(self, conversation: str) -> list[str]:
        """What the stream says that a webhook is told of."""
        events = stream(self.engine, conversation)
        ends = [f"run.{event['status']}" for event in events if event["event"] == "run"]
        asked = ["approval.requested" for event in events if event["event"] == "approval"]
        return [*asked, *(end for end in ends if end in ("run.finished", "run.failed", "run.stopped"))]

    def arrived(self) -> dict[str, dict[str, set[str]]]:
        """The ids that have arrived, by conversation and type."""
        found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        for post in self.receiver.posts:
            assert post.is_signed_by(SECRET)
            event = json.loads(post.body)
            assert event["id"] == post.headers["idempotency-key"]
            found[event["data"]["conversation_id"]][event["type"]].add(event["id"])
        return found


def kill_and_take_over(workers: KilledWorkers, points: Sequence[str]) -> None:
    for number, point in enumerate(points):
        workers.ask("Echo", f"echo-{number}")
        workers.ask("Ada", f"pay-{number}")
        workers.work(f"killed-{number}", point)
        workers.work(f"next-{number}")


def check(workers: KilledWorkers) -> None:
    arrived = workers.arrived()
    assert sorted(arrived) == sorted(workers.asked)
    for name in workers.asked:
        (expected,) = workers.on_the_log(name)
        assert {kind: len(ids) for kind, ids in arrived[name].items()} == {expected: 1}, name
    assert {item.state for item in run_sync(workers.engine, read_outbox, workers.webhook.connector)} == {"sent"}


def test_what_is_on_the_log_arrives_under_one_id_wherever_a_worker_dies(
    log_url: str, engine: Engine, process_group: ProcessGroup
) -> None:
    with webhook_server() as receiver:
        workers = KilledWorkers(log_url, engine, process_group, receiver)

        kill_and_take_over(workers, POINTS)

        check(workers)
        assert workers.killed == list(POINTS)


@pytest.mark.soak
def test_a_worker_is_killed_at_every_step(log_url: str, engine: Engine, process_group: ProcessGroup) -> None:
    with webhook_server() as receiver:
        workers = KilledWorkers(log_url, engine, process_group, receiver)

        kill_and_take_over(workers, POINTS_SOAK)

        check(workers)
        assert len(workers.killed) >= len(POINTS_SOAK) - 2  # a run may need fewer writes than there are points
