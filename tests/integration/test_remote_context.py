"""A second process sends messages to one or all runs of a worker and gets receipts."""

from __future__ import annotations

import asyncio
from typing import Any

from magent2.bus.connect import connect
from magent2.bus.interface import Engine
from magent2.bus.operations import Describe
from magent2.models.address import chat_topic
from magent2.worker.lane_run import Outcome
from magent2.worker.service import WorkerService
from tests.support.processes import Child, ProcessGroup
from tests.support.steerable_run import SteerableAgent, pending_mail, receipts, shown_steers
from tests.support.worker_fixture import AGENT, LEASE_S, send, until

OTHER = "Bob"
WAIT_S = 30.0
MESSAGES: list[dict[str, Any]] = [
    {"id": "m1", "content": "hurry", "source": "user:ann", "target": AGENT, "template": "please: {{ content }}"},
    {"id": "m2", "content": "stop at noon", "source": "user:ann"},
    {"id": "m1", "content": "hurry", "source": "user:ann", "target": AGENT, "template": "please: {{ content }}"},
]


async def test_a_second_process_speaks_to_one_agent_and_to_all_and_waits_for_the_receipts(
    process_group: ProcessGroup, log_url: str
) -> None:
    bus = connect(log_url)
    talks = {name: SteerableAgent(turns=1, name=name) for name in (AGENT, OTHER)}
    service = WorkerService(bus, {name: talk.runner for name, talk in talks.items()}, lease_s=LEASE_S)
    serving = asyncio.create_task(service.run())
    for name, talk in talks.items():
        send(bus, "go", recipient=f"agent:{name}")
        await talk.at(0)

    speaker = process_group.spawn_cold(
        "tests.integration.children.remote", url=log_url, conversation="one", messages=MESSAGES, wait_s=WAIT_S
    )
    sent = await next_report(speaker)
    before = [len(talk.requests) for talk in talks.values()]
    # The worker reads another process's messages when it next looks; a run that ended before that would answer them as
    # mail of its own. That they are in the lanes shows nothing: a claim puts them there, also before they were read.
    await until(lambda: [pending_mail(bus, name) for name in talks] == [3, 2] and has_read_inboxes(service, bus))
    for talk in talks.values():
        talk.open()
    fates = [await next_report(speaker) for _ in MESSAGES]
    await until(lambda: service.outcomes[Outcome.ANSWERED] == 2)
    told = sorted(receipts(bus))
    await service.drain()
    await serving
    await bus.aclose()

    assert sent == {"sent": ["m1", "m2", "m1"], "sdk": False}
    assert before == [1, 1]
    one, everybody = ("user:ann", "please: hurry"), ("user:ann", "stop at noon")
    assert [shown_steers(talk.requests[-1]) for talk in talks.values()] == [[one, everybody], [everybody]]
    assert fates[0] == fates[2] == {"id": "m1", "waiting": 0, "seen": [[AGENT, 1]]}
    assert fates[1] == {"id": "m2", "waiting": 0, "seen": [[AGENT, 1], [OTHER, 1]]}
    assert told == [("m1", "seen"), ("m2", "seen"), ("m2", "seen")]


def has_read_inboxes(service: WorkerService, bus: Engine) -> bool:
    """Whether the worker has read all mail of its agents. It passes steers on before it lets a run go on."""
    infos = bus.call(Describe((chat_topic(AGENT), chat_topic(OTHER))))
    return {info.topic: info.last for info in infos} == service._steers._cursors


async def next_report(child: Child) -> dict[str, Any]:
    """The next report, while the worker in this process goes on."""
    return await asyncio.to_thread(child.next_report)
