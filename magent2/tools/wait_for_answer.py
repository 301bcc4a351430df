"""Wait for the answer to a message, without occupying a slot and without deadlocks.

A run that waits records in the head of its conversation which lane (an agent in a conversation) it waits for. A run
that is about to wait follows these entries from lane to lane. If they lead back to it, all runs of the cycle would wait
forever, and the message is refused. The entries are conditions of the append that sends the message, so that two runs
cannot close a cycle at the same time.

A tool that waits must send immediately (`Arguments.urgent`), and does three things:
- in `prepare`: `await check_wait(log, context.run, lane)`, to refuse before anything is sent;
- in `perform`: `return await with_wait(log, context.run, lane, append)`;
- then: `await wait_for_answer(context, lane, sent.id, timeout_s)`.
"""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal, TypeAlias

from magent2.bus.interface import Engine
from magent2.bus.log import Log
from magent2.bus.operations import OLDEST, Append, Condition, Describe, HeadIs, Read, SetHead, Write
from magent2.bus.records import Page, TopicInfo
from magent2.bus.retry import retry_while_unavailable
from magent2.errors import InvalidInput, UnknownCursor, WouldDeadlock
from magent2.mail.headers import wait_field
from magent2.models.address import stream_topic
from magent2.sessions.message_outcome import MessageOutcome
from magent2.tools.definition import ToolExecutionContext
from magent2.tools.interface import RunFacts

ANSWER_TIMEOUT_S = 300.0  # default time limit of a wait
ANSWER_TIMEOUT_MAX_S = 3600.0
CHAIN_MAX = 128  # lanes that are followed; a longer chain is refused
LOOK_BACK = 10_000  # newest records of the other conversation that are searched for an answer after a crash
PAGE = 1000
SWEEP_S = 30.0  # how often a wait reads again without a notification

WaitStatus: TypeAlias = Literal["finished", "failed", "stopped", "pending"]


@dataclass(frozen=True, slots=True)
class AgentLane:
    """The lane of the agent that is to answer: an agent in a conversation."""

    agent: str
    conversation: str

    def __str__(self) -> str:
        return f"{self.agent}/{self.conversation}"

    @property
    def text(self) -> str:
        """The form in a head. The separator cannot occur in a name."""
        return f"{self.agent}\x1f{self.conversation}"

    @classmethod
    def parse(cls, text: str) -> AgentLane:
        agent, _, conversation = text.partition("\x1f")
        return cls(agent, conversation)


@dataclass(frozen=True, slots=True)
class WaitResult:
    """The outcome of a wait. `pending`: there was no answer in time; the other run continues."""

    status: WaitStatus
    text: str
    reason: str | None = None


async def check_wait(log: Log, run: RunFacts, lane: AgentLane) -> tuple[Condition, ...]:
    """Check that waiting for the lane closes no cycle, and return the conditions under which that holds."""
    own = AgentLane(run.agent, run.conversation_id)
    conditions: list[Condition] = []
    following, chain = lane, [own]
    while len(chain) <= CHAIN_MAX:
        if following in chain:
            cycle = " → ".join(str(member) for member in (*chain, following))
            raise WouldDeadlock(f"would_deadlock: {lane.agent} waits for this run ({cycle}); send without waiting")
        chain.append(following)
        topic, name = stream_topic(following.conversation), wait_field(following.agent)
        (stream,) = await log.describe(topic)
        value = stream.head.get(name)
        conditions.append(HeadIs(topic, name, value))
        if value is None:
            return tuple(conditions)
        following = AgentLane.parse(str(value))
    raise WouldDeadlock(f"would_deadlock: {CHAIN_MAX} runs already wait in a chain; send without waiting")


async def with_wait(log: Log, run: RunFacts, lane: AgentLane, append: Append) -> Append:
    """The append that sends, with the entry that this run waits."""
    conditions = await check_wait(log, run, lane)
    if not run.run_id:  # outside a run: no other run can wait for it
        return append
    entry = SetHead(stream_topic(run.conversation_id), {wait_field(run.agent): lane.text})
    return append.merge(Write(conditions=conditions, heads=(entry,)))


async def wait_for_answer(
    context: ToolExecutionContext, lane: AgentLane, envelope_id: str, timeout_s: float = ANSWER_TIMEOUT_S
) -> WaitResult:
    """Wait for the answer to a message. Meanwhile the slot of the run and the process of its block are released."""
    check_timeout(timeout_s)
    scope, bus = context.scope, context.run.bus
    outcome = MessageOutcome(envelope_id)
    try:
        async with scope.waiting() if scope is not None else nullcontext():
            try:
                async with asyncio.timeout(timeout_s):
                    await _until_ended(bus, lane, outcome)
            except TimeoutError:
                return WaitResult("pending", "", f"no answer within {timeout_s:g} s; it may still come")
    finally:
        await record_wait(context, None)
    status: WaitStatus = (
        "finished" if outcome.status == "finished" else "stopped" if outcome.status == "stopped" else "failed"
    )
    return WaitResult(status, outcome.text, outcome.reason)


async def record_wait(context: ToolExecutionContext, lane: AgentLane | None) -> None:
    """Record in the head of the conversation which lane this run waits for; `None` removes the entry."""
    run, scope = context.run, context.scope
    if scope is not None and scope.call_writer is not None:
        entry = {wait_field(run.agent): None if lane is None else lane.text}
        await scope.call_writer.set_head(SetHead(stream_topic(run.conversation_id), entry))


def check_timeout(timeout_s: float) -> None:
    if not 0 < timeout_s <= ANSWER_TIMEOUT_MAX_S:
        raise InvalidInput(f"a timeout must be more than 0 and at most {ANSWER_TIMEOUT_MAX_S:g} s, not {timeout_s:g}")


async def _until_ended(bus: Engine, lane: AgentLane, outcome: MessageOutcome) -> None:
    """Read the stream of the other conversation until `outcome` has a status."""
    topic, who = stream_topic(lane.conversation), f"a wait for {lane}"
    with bus.watch([topic]) as watch:
        info: TopicInfo = (await retry_while_unavailable(bus, Describe((topic,)), who))[0]
        cursor: int | str = max(info.floor, info.last - LOOK_BACK) or OLDEST
        while True:
            try:
                page: Page = await retry_while_unavailable(bus, Read(topic, cursor, PAGE), who)
            except UnknownCursor:  # the numbers have jumped to a new epoch, or retention has removed that record
                cursor = OLDEST
                continue
            for record in page.records:
                outcome.take(record)
                cursor = record.seq
            if page.deleted:
                outcome.status, outcome.reason = "failed", "the conversation was deleted"
            if outcome.status is not None:
                return
            if len(page.records) < PAGE:
                await watch.changed(SWEEP_S)
