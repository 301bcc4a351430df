"""What it costs to read a history: the same for a short and a long one, on every engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from magent2.bus.interface import Engine
from magent2.bus.log import Log
from magent2.bus.operations import Append, Find, Operation, Read
from magent2.bus.records import NewRecord, Page
from magent2.models.envelope import MessageEnvelope
from magent2.models.principal import Principal
from magent2.runner.context import RunContext
from magent2.runner.echo import EchoRunner
from magent2.sessions.approvals import find_approvals
from magent2.sessions.history import HistoryCache, RunKey, read_history, settings_record
from magent2.sessions.message_outcome import find_message_progress
from magent2.sessions.settings import SessionChange, configure_session
from magent2.sessions.steering import steer
from magent2.worker.lane_run import LaneRun, Outcome
from magent2.worker.run_attempt import RunServices
from tests.support.engine_wrappers import EngineWrapper
from tests.support.engines import ENGINES, new_engines
from tests.support.runners import AsyncRunner, Event, output
from tests.support.worker_fixture import AGENT, claim_one, outputs, send

SHORT, LONG = 1_000, 5_000  # records; `make bench-history` reads 100,000 and more
RUN_RECORDS = 4
READ_MAX = 600  # records; the last runs and what follows a snapshot are fewer
OPERATIONS_MAX = 8


class CountingEngine(EngineWrapper):
    """Counts the operations that read, and the records that they return."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.operations = 0
        self.records = 0

    async def acall(self, operation: Operation[Any]) -> Any:
        found = await self.inner.acall(operation)
        if isinstance(operation, Read | Find):
            self.operations += 1
            self.records += len(found.records) if isinstance(found, Page) else 1
        return found


async def tell_earlier_questions(envelope: MessageEnvelope, context: RunContext) -> AsyncIterator[Event]:
    earlier, _ = context.history.earlier_runs(context.run)
    yield output(envelope, ", ".join(str(run.envelope["content"]) for run in earlier))


@pytest.fixture(params=ENGINES)
def bus(request: pytest.FixtureRequest) -> Iterator[CountingEngine]:
    engine = new_engines(request.param, request)()
    yield CountingEngine(engine)
    engine.close()


def write_runs(bus: Engine, conversation: str, records: int) -> None:
    """Write a history of this length with large appends, as an older release would have left it."""
    bus.call(Append(records=(settings_record(conversation, {"overlay": "be brief"}),)))
    batch: list[NewRecord] = []
    for number in range(records // RUN_RECORDS):
        key = RunKey(conversation, f"{conversation}-{number}", AGENT)
        batch += [
            key.start({"id": f"old-{number}", "sender": "user:ann", "content": "hello"}, {}, number * RUN_RECORDS),
            key.answer(0, {"output": []}, AGENT),
            key.tool(0, "c1", "weather", "sunny"),
            key.end("finished", "done", {"total_tokens": 1}),
        ]
        if len(batch) == 1000:
            bus.call(Append(records=tuple(batch)))
            batch = []
    if batch:
        bus.call(Append(records=tuple(batch)))


async def answer(bus: Engine, conversation: str) -> str:
    """Let a worker answer one message there."""
    message = send(bus, "hello", conversation)
    assert await LaneRun(bus, claim_one(bus), EchoRunner()).work() is Outcome.ANSWERED
    return message


async def test_a_miss_reads_as_many_records_of_a_long_history_as_of_a_short_one(bus: CountingEngine) -> None:
    costs: dict[int, tuple[int, int]] = {}
    for length in (SHORT, LONG):
        conversation = f"with-{length}"
        write_runs(bus.inner, conversation, length)
        await answer(bus.inner, conversation)
        bus.operations = bus.records = 0

        history = await HistoryCache(bus).read(conversation)

        costs[length] = bus.operations, bus.records
        assert history.settings == {"overlay": "be brief"}
        assert history.last > length - RUN_RECORDS
    assert abs(costs[SHORT][1] - costs[LONG][1]) <= RUN_RECORDS * 20, costs
    assert costs[LONG][1] <= READ_MAX
    assert costs[LONG][0] <= OPERATIONS_MAX


async def test_every_reader_of_a_long_history_reads_a_few_records(bus: CountingEngine) -> None:
    conversation = "long"
    write_runs(bus.inner, conversation, LONG)
    message = await answer(bus.inner, conversation)
    log = Log(bus)
    principal = Principal("user:ann", admin=True)
    readers: dict[str, Callable[[], Any]] = {
        "approvals": lambda: find_approvals(log, conversation),
        "progress of the last message": lambda: find_message_progress(log, conversation, message),
        "steer": lambda: steer(
            log,
            MessageEnvelope(
                conversation_id=conversation, sender="user:ann", recipient=f"agent:{AGENT}", content="hurry"
            ),
        ),
        "progress of a message that waits": lambda: find_message_progress(
            log, conversation, send(bus.inner, "next", conversation)
        ),
        "settings": lambda: configure_session(
            log, conversation, principal, SessionChange(AGENT, "desk", overlay="new")
        ),
        "usage": lambda: read_history(log, conversation),
    }
    for name, read in readers.items():
        bus.records = 0
        await read()
        assert bus.records <= READ_MAX, name


async def test_an_old_message_is_found_all_the_same(bus: CountingEngine) -> None:
    conversation = "long"
    message = await answer(bus.inner, conversation)
    write_runs(bus.inner, conversation, 2_000)
    await answer(bus.inner, conversation)

    progress = await find_message_progress(Log(bus), conversation, message)

    assert progress is not None
    assert (progress.status, progress.waiting) == ("answered", 0)
    assert outputs(bus.inner, conversation) == ["hello", "hello"]


async def test_the_first_run_of_a_conversation_reads_no_history(bus: CountingEngine) -> None:
    await answer(bus, "one")

    assert bus.operations == 0


async def test_the_next_run_of_a_worker_reads_no_history(bus: CountingEngine) -> None:
    services = RunServices(HistoryCache(bus))
    for number in range(3):
        send(bus, f"question {number}", "one")
        run = LaneRun(bus, claim_one(bus), AsyncRunner(tell_earlier_questions), services=services)
        assert await run.work() is Outcome.ANSWERED

    assert bus.operations == 0
    assert outputs(bus, "one") == ["", "question 0", "question 0, question 1"]
    assert await services.histories.read_up_to("one", 6) == await read_history(Log(bus.inner), "one")


async def test_what_another_process_has_added_to_a_history_is_read(bus: CountingEngine) -> None:
    services = RunServices(HistoryCache(bus))
    for ours in (services, RunServices(HistoryCache(bus)), services):
        send(bus, "hello", "one")
        assert await LaneRun(bus, claim_one(bus), EchoRunner(), services=ours).work() is Outcome.ANSWERED

    assert bus.operations == 2
    assert await services.histories.read_up_to("one", 6) == await read_history(Log(bus.inner), "one")


async def test_what_a_worker_has_written_counts_for_the_size_of_its_cache(bus: CountingEngine) -> None:
    histories = HistoryCache(bus, max_bytes=20_000)
    send(bus, "x" * 30_000, "one")

    await LaneRun(bus, claim_one(bus), EchoRunner(), services=RunServices(histories)).work()

    assert histories.size_bytes == 0
    assert (await histories.read_up_to("one", 2)).last == 2
