"""Tasks and threads that an unexpected error must not end in silence.

`docs/architecture.md` has a table of all of them. Each test here injects errors that no part of the package raises on
purpose, and expects that what waits hears of it and that the rest goes on.
"""

from __future__ import annotations

import ast
import asyncio
import logging
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from magent2.background import keep_running, start_task
from magent2.bus.interface import BusMessage, Engine
from magent2.bus.lane_writer import LaneWriter
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import (
    Append,
    Claim,
    Describe,
    Later,
    Operation,
    OwnedAppend,
    Pending,
    Read,
    Renew,
    Settle,
    Topics,
    Workers,
)
from magent2.bus.records import NewRecord, Record
from magent2.bus.redis_adapter import RedisBus
from magent2.bus.redis_engine import pipeline
from magent2.bus.sqlite import SqliteBus
from magent2.errors import BusUnavailable, StorageCorrupt
from magent2.gateway.access.keys import KeyCache
from magent2.gateway.limits import RequestRate, RouteKind, rate_limits
from magent2.gateway.limits.rate_limits import SharedRequestRates
from magent2.gateway.services import WorkerPresence
from magent2.gateway.streaming.fanout import Fanout
from magent2.gateway.streaming.session_list import LiveSessionLists
from magent2.mail.headers import STOP
from magent2.models.envelope import MessageEnvelope
from magent2.runner.context import RunContext
from magent2.runner.echo import EchoRunner
from magent2.sessions.history import settings_record
from magent2.worker.cancellation import SubagentStop
from magent2.worker.lane_run import Outcome
from magent2.worker.worker import Worker
from tests.support.flaky_engine import UnexpectedErrors
from tests.support.keys import create_key_holder
from tests.support.redis_server import RedisServer
from tests.support.runners import AsyncRunner, Event, GatedRunner, output, token
from tests.support.source import parse_module
from tests.support.waiting import DEADLINE_S, eventually, until
from tests.support.worker_fixture import AGENT, claim_one, command, dead_letters, outputs, run_worker, send

PACKAGE = Path(__file__).parents[2] / "magent2"
ARCHITECTURE = PACKAGE.parent / "docs" / "architecture.md"
STARTERS = frozenset(
    {"create_task", "ensure_future", "start_task", "Thread", "Timer", "run_in_executor", "to_thread", "submit"}
)

UNEXPECTED = [KeyError("conversation"), RuntimeError("a bug"), MemoryError()]
each_error = pytest.mark.parametrize("error", UNEXPECTED, ids=lambda error: type(error).__name__)


@pytest.fixture
def bus() -> Iterator[MemoryBus]:
    bus = MemoryBus()
    yield bus
    bus.close()


# --- the table


class _Starts(ast.NodeVisitor):
    """The calls in a module that start a task or a thread, each as the qualified name of the function around it."""

    def __init__(self, path: Path) -> None:
        self.found: set[str] = set()
        self._file = path.relative_to(PACKAGE).as_posix()
        self._around: list[str] = []
        self.visit(parse_module(path.read_text(encoding="utf-8")))

    def _enter(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        self._around.append(node.name)
        self.generic_visit(node)
        self._around.pop()

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _enter  # noqa: N815  names of `ast`

    def visit_Call(self, node: ast.Call) -> None:
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called in STARTERS:
            self.found.add(f"{self._file}:{'.'.join(self._around)}")
        self.generic_visit(node)


def test_the_table_names_every_place_that_starts_a_task_or_a_thread() -> None:
    started = {place for path in sorted(PACKAGE.rglob("*.py")) for place in _Starts(path).found}
    section = ARCHITECTURE.read_text(encoding="utf-8").split("## Background tasks")[1].split("\n## ")[0]

    listed = set(re.findall(r"`([\w/]+\.py:[\w.]+)`", section))

    assert started - listed == set(), "add these to the table in docs/architecture.md"
    assert listed - started == set(), "these start nothing any more; remove them from the table"


# --- the two helpers


@each_error
async def test_a_step_that_fails_is_logged_with_its_cause_and_run_again(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    errors, steps = [error], []

    async def step() -> None:
        if errors:
            raise errors.pop()
        steps.append(1)
        await asyncio.sleep(0)

    task = asyncio.create_task(keep_running("the loop", step))
    await until(lambda: steps)
    task.cancel()
    await asyncio.wait([task])

    (line,) = [record for record in caplog.records if "background task" in record.message]
    assert (line.task, type(error).__name__ in line.error, line.exc_info) == ("the loop", True, None)  # type: ignore[attr-defined]


async def test_a_loop_ends_when_it_is_cancelled_and_not_when_something_inside_it_is() -> None:
    ends: list[int] = []

    async def step() -> None:
        ends.append(1)
        inner = asyncio.get_running_loop().create_future()
        if len(ends) == 1:
            inner.cancel()
        await inner

    task = asyncio.create_task(keep_running("the loop", step))
    await until(lambda: len(ends) == 2)
    task.cancel()
    await asyncio.wait([task])

    assert task.cancelled()


async def test_a_fatal_error_ends_the_loop() -> None:
    async def step() -> None:
        raise StorageCorrupt("damaged")

    with pytest.raises(StorageCorrupt):
        await keep_running("the loop", step, fatal=(StorageCorrupt,))


@each_error
async def test_the_error_of_a_task_on_which_nothing_waits_is_logged(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        raise error

    tasks: set[asyncio.Task[None]] = set()
    start_task(work(), "the work", tasks)
    await until(lambda: not tasks)

    (line,) = caplog.records
    assert (line.levelno, line.task) == (logging.ERROR, "the work")  # type: ignore[attr-defined]


# --- the writer of a lane


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@each_error
async def test_a_commit_hears_of_an_unexpected_error_of_the_engine(
    bus: MemoryBus, error: Exception, after: bool, caplog: pytest.LogCaptureFixture
) -> None:
    send(bus, "hello")
    broken = UnexpectedErrors(bus, OwnedAppend, [error], after=after)
    writer = LaneWriter(broken, claim_one(bus).owner)
    record = NewRecord("stream:one", {"n": 1})

    async with asyncio.timeout(DEADLINE_S):
        ends = await asyncio.gather(*(writer.commit(record) for _ in range(3)), return_exceptions=True)

    assert ends == [error] * 3
    assert writer.failure is error
    with pytest.raises(type(error)):
        await writer.put(record)
    with pytest.raises(type(error)):
        await writer.settle(())
    assert "the writer of a lane failed" in caplog.text


async def test_a_commit_hears_of_an_append_that_was_cancelled_from_inside(bus: MemoryBus) -> None:
    class Cancelling(UnexpectedErrors):
        async def acall(self, operation: Operation[Any]) -> Any:
            raise asyncio.CancelledError

    send(bus, "hello")
    writer = LaneWriter(Cancelling(bus, None, ()), claim_one(bus).owner)

    with pytest.raises(RuntimeError, match="cancelled"):
        async with asyncio.timeout(DEADLINE_S):
            await writer.commit(NewRecord("stream:one", {"n": 1}))


# --- the worker


async def speak(mail: MessageEnvelope, context: RunContext) -> AsyncIterator[Event]:
    """Yield a token and let the writer append it before the output follows."""
    yield token(mail, "hel", 0)
    for _ in range(5):
        await asyncio.sleep(0)
    yield output(mail, "hello")


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("kind", [Claim, OwnedAppend, Settle, Renew, Read])
async def test_a_worker_answers_despite_an_unexpected_error_of_the_engine(
    bus: MemoryBus, kind: type[Operation[Any]], after: bool
) -> None:
    broken = UnexpectedErrors(bus, kind, (), after=after)
    async with run_worker(broken, AsyncRunner(speak), lease_s=0.3):
        await until(lambda: bus.call(Workers()))
        broken.errors.extend(UNEXPECTED)
        if kind is Renew:
            await until(lambda: not broken.errors)
        for conversation in ("one", "two", "three"):
            bus.call(Append(records=(settings_record(conversation, {}),)))  # a history that a run has to read
            send(bus, "hello", conversation)
            await until(lambda name=conversation: outputs(bus, name) or dead_letters(bus))  # type: ignore[misc]

    assert [outputs(bus, name) for name in ("one", "two", "three")] == [["hello"]] * 3
    assert not broken.errors


async def test_a_lane_that_cannot_be_given_back_at_first_is_given_back(bus: MemoryBus) -> None:
    broken = UnexpectedErrors(bus, OwnedAppend | Later, UNEXPECTED)  # type: ignore[arg-type]
    async with run_worker(broken, AsyncRunner(speak)):
        send(bus, "hello")
        await until(lambda: outputs(bus))

    assert (broken.raised, outputs(bus)) == (3, ["hello"])


@each_error
async def test_a_stop_reaches_its_run_although_the_round_that_read_it_failed(bus: MemoryBus, error: Exception) -> None:
    broken = UnexpectedErrors(bus, Pending, ())
    runner = GatedRunner()
    send(bus, "slow")
    async with run_worker(broken, runner) as service:
        await until(lambda: runner.begun)
        broken.errors.append(error)
        command(bus, STOP)
        await until(lambda: service.outcomes[Outcome.STOPPED] == 1)

    assert broken.raised == 1


@each_error
async def test_a_stop_that_cannot_be_passed_on_in_the_background_is_logged(
    bus: MemoryBus, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    send(bus, "hello")
    passing = SubagentStop(UnexpectedErrors(bus, Operation, [error] * 9), claim_one(bus).owner)

    passing.begin_pass_on(STOP, "cause")
    await until(lambda: "pass stop on to subagents" in str([vars(record) for record in caplog.records]))
    await passing.close()


def test_a_worker_of_contract_v1_renews_its_lease_despite_unexpected_errors(bus: MemoryBus) -> None:
    class Slow(EchoRunner):
        def stream_run(self, envelope: Any) -> Any:
            eventually(lambda: not broken.errors)
            return super().stream_run(envelope)

    broken = UnexpectedErrors(bus, Renew, UNEXPECTED)
    send(bus, "hello")

    assert Worker(AGENT, broken, _OnlySync(Slow()), lease_s=0.3).process_available() == 1


class _OnlySync:
    """A runner of contract v1: it runs on a thread, so the loop of the worker stays free."""

    def __init__(self, runner: EchoRunner) -> None:
        self.stream_run = runner.stream_run


# --- the gateway


@each_error
async def test_gateways_share_request_counts_after_unexpected_errors(
    bus: MemoryBus, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rate_limits, "SHARE_S", 0.001)
    broken = UnexpectedErrors(bus, Append, [error])
    following = [error]

    def follow(topic: str, after: int | str | None = None) -> AsyncIterator[Record]:
        if following:
            raise following.pop()
        return bus.follow(topic, after)

    monkeypatch.setattr(broken, "follow", follow)
    rates: dict[RouteKind, RequestRate] = {"send": RequestRate(0.000_001, 1000)}
    one, other = SharedRequestRates(broken, rates), SharedRequestRates(bus, rates)
    one.open()
    other.open()

    def both_have_heard() -> bool:
        one.take("ann", "send")
        other.take("bob", "send")
        return len(one._full_at) == len(other._full_at) == 2

    await until(both_have_heard)
    assert (broken.raised, following) == (1, [])
    one.close()
    other.close()


class _Reader:
    def __init__(self) -> None:
        self.woken = 0

    def wake(self) -> None:
        self.woken += 1


@pytest.mark.parametrize("kind", [Read, None], ids=["read", "watch"])
@each_error
async def test_a_stream_goes_on_after_an_unexpected_error(
    bus: MemoryBus, error: Exception, kind: type[Operation[Any]] | None
) -> None:
    broken = UnexpectedErrors(bus, kind, [error])
    broken.watching.extend([] if kind else [error])
    fanout, reader = Fanout(broken), _Reader()
    tail = fanout.join("one", reader)
    tail.begin(0)
    await until(lambda: broken.raised or kind is Read)

    bus.publish("stream:one", BusMessage("stream:one", {"event": "token", "text": "hi"}))

    await until(lambda: tail.last == 1)
    assert (broken.raised, reader.woken > 0) == (1, True)
    fanout.leave(tail, reader)


@each_error
async def test_a_session_list_goes_on_after_an_unexpected_error(bus: MemoryBus, error: Exception) -> None:
    broken = UnexpectedErrors(bus, Topics, [error])
    lists, reader = LiveSessionLists(broken), _Reader()
    joined = lists.join(None, reader)

    await until(lambda: broken.raised and joined.version)
    lists.leave(joined, reader)


@each_error
async def test_revoked_keys_are_noticed_after_an_unexpected_error(bus: MemoryBus, error: Exception) -> None:
    holder = await create_key_holder(bus, "user:ann")
    broken = UnexpectedErrors(bus, None, ())
    broken.watching.append(error)
    ended: list[str] = []

    def end_streams(key: str) -> int:
        ended.append(key)
        return 1

    cache = KeyCache(broken, end_streams, lambda key: True)
    await cache.find(holder.text)
    await until(lambda: broken.raised)

    await holder.revoke()

    await until(lambda: ended)
    cache.close()


@each_error
async def test_presence_is_unknown_after_an_unexpected_error_and_known_after_the_next_read(
    bus: MemoryBus, error: Exception
) -> None:
    await bus.acall(Claim(worker="w1", agents=(AGENT,), limit=0, lease_s=60))
    presence = WorkerPresence(UnexpectedErrors(bus, Workers, [error]))

    states = []
    for _ in range(2):
        await presence.ensure_fresh()
        states.append((presence.known, AGENT in presence))

    assert states == [(False, False), (True, True)]


# --- the engines


def append(bus: Engine, text: str) -> None:
    bus.call(Append(records=(NewRecord("stream:one", {"text": text}),)))


@pytest.mark.parametrize("place", ["_acquire_lock", "_take_group", "_maintain_file", "_commit", "_notify"])
@each_error
async def test_the_sqlite_writer_fails_what_waits_and_goes_on(
    error: Exception, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = SqliteBus(tmp_path / "log.db")
    working, errors = getattr(bus._writer, place), [error]

    def fail_once(*args: Any) -> Any:
        if errors:
            raise errors.pop()
        return working(*args)

    monkeypatch.setattr(bus._writer, place, fail_once)
    append_soon = Append(records=(NewRecord("stream:one", {"text": "first"}),))
    async with asyncio.timeout(10):
        (end,) = await asyncio.gather(bus.acall(append_soon), return_exceptions=True)
        await bus.acall(Append(records=(NewRecord("stream:one", {"text": "second"}),)))

    committed = place in ("_maintain_file", "_notify")
    assert (errors, isinstance(end, Exception)) == ([], not committed)
    assert [record.payload["text"] for record in bus.read("stream:one")] == ["first", "second"][not committed :]
    bus.close()


@each_error
def test_changes_of_other_processes_are_noticed_after_an_unexpected_error(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus, other = SqliteBus(tmp_path / "log.db"), SqliteBus(tmp_path / "log.db")
    append(bus, "first")
    with bus.watch(["stream:one"]) as watch:
        poller, errors = bus._hub._poller, [error]
        assert poller is not None
        read = poller._data_version
        monkeypatch.setattr(poller, "_data_version", lambda: _raise(errors.pop()) if errors else read())
        eventually(lambda: not errors)

        append(other, "second")

        assert watch.wait(10) == {"stream:one"}
    bus.close()
    other.close()


def _raise(error: Exception) -> Any:
    raise error


@pytest.mark.redis
@each_error
async def test_a_reply_that_cannot_be_handled_costs_a_redis_connection_and_no_operation(
    error: Exception, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "FAULT_PAUSE_S", 0.01)
    bus = RedisBus(redis_server.url, prefix=f"background-{type(error).__name__}")
    await bus.acall(Describe(("stream:one",)))
    received, errors = pipeline.PipelinedConnection.received, [error]

    def fail_once(connection: pipeline.PipelinedConnection, reply: Any) -> None:
        if errors:
            raise errors.pop()
        received(connection, reply)

    monkeypatch.setattr(pipeline.PipelinedConnection, "received", fail_once)
    async with asyncio.timeout(10):
        await bus.acall(Append(records=(NewRecord("stream:one", {"text": "first"}, id="a"),)))

    assert errors == []
    assert [record.id for record in (await bus.acall(Read("stream:one", 0))).records] == ["a"]
    await bus.aclose()


@pytest.mark.redis
@each_error
async def test_callers_hear_of_a_redis_connection_that_cannot_be_used(
    error: Exception, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    attach, errors = pipeline.LoopConnection._attach, [error]

    def fail_once(connection: pipeline.LoopConnection, opened: Any) -> None:
        if errors:
            raise errors.pop()
        attach(connection, opened)

    monkeypatch.setattr(pipeline.LoopConnection, "_attach", fail_once)
    bus = RedisBus(redis_server.url, prefix=f"attach-{type(error).__name__}")
    async with asyncio.timeout(10):
        with pytest.raises(BusUnavailable):
            await bus.acall(Describe(("stream:one",)))
        await bus.acall(Describe(("stream:one",)))
    await bus.aclose()
