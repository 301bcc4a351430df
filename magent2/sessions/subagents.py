"""Conversations of subagents: who started them, how many a run may start, and how a stop reaches them.

The head of a subagent's conversation names its starter. The head of the starter's conversation holds, per agent, the
last run that started subagents and their number. The number is a condition of the append that starts one, so a run
cannot exceed the limit by starting two at once; and a stop of an agent without subagents reads nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from magent2.bus.log import Log
from magent2.bus.operations import HeadIs, SetHead
from magent2.bus.records import TopicInfo
from magent2.errors import Refused
from magent2.mail.delivery import SendOptions, deliver
from magent2.mail.headers import ACTIVE_AGENT, RUN_AGENT, RUN_ENVELOPE, RUN_STATUS, RUNNING
from magent2.models.address import SUBAGENT_SEPARATOR, chat_topic, stream_topic
from magent2.models.envelope import MessageEnvelope
from magent2.models.json_types import JsonMapping
from magent2.sessions.message_outcome import find_message_progress

SUBAGENTS_PER_RUN_MAX = 16
DEPTH_MAX = 4  # nesting of subagents
DONE = ("answered", "dead")

# Head fields of a subagent's conversation: parent conversation, starting agent, depth, and the message it answers
PARENT, STARTER, DEPTH, TASK = "parent", "starter", "depth", "task"
STARTED = "started_"  # prefix of the counters in the starter's head


def started_field(agent: str) -> str:
    """The head field with the last run of the agent that started subagents, and their number."""
    return STARTED + hashlib.blake2b(agent.encode(), digest_size=6).hexdigest()


def depth_below(head: JsonMapping) -> int:
    """The depth of a subagent of this conversation. Raises `Refused` above the limit. Pure."""
    depth = int(head.get(DEPTH) or 0) + 1
    if depth > DEPTH_MAX:
        raise Refused(f"subagents go at most {DEPTH_MAX} deep; do the task here")
    return depth


@dataclass(frozen=True, slots=True)
class StartCount:
    """The condition under which a run may start one more subagent, and the head with the new count."""

    only_if: HeadIs
    head: SetHead


def count_start(conversation: str, agent: str, run_id: str, head: JsonMapping) -> StartCount:
    """Count a subagent that this run is about to start. Raises `Refused` at the limit. Pure."""
    name, topic = started_field(agent), stream_topic(conversation)
    before = head.get(name)
    run, _, number = str(before or "").rpartition(" ")
    started = int(number) if run == run_id and number else 0
    if started >= SUBAGENTS_PER_RUN_MAX:
        raise Refused(
            f"this run has started {started} agents, and a run starts at most {SUBAGENTS_PER_RUN_MAX};"
            " give more to one of them with message_agent, or do the task here"
        )
    return StartCount(HeadIs(topic, name, before), SetHead(topic, {name: f"{run_id} {started + 1}"}))


async def find_subagents(log: Log, conversation: str) -> list[TopicInfo]:
    """The conversations of all subagents started in this one, without deleted ones."""
    beneath = log.all_topics(stream_topic(conversation) + SUBAGENT_SEPARATOR)
    return [info async for info in beneath if info.head.get(PARENT) == conversation and not info.deleted]


async def pass_on_stop(log: Log, agent: str, conversation: str, command: str, cause: str) -> tuple[str, ...]:
    """Pass a stop on to the unfinished subagents that this agent started here; returns their conversations.

    `cause` is the id of the stop. The ids of the new stops are derived from it, so a repeat delivers each one once.
    """
    state = await log.describe(stream_topic(conversation))
    if started_field(agent) not in state[0].head:
        return ()
    reached: list[str] = []
    for info in await find_subagents(log, conversation):
        if info.head.get(STARTER) != agent or (await _is_done(log, info)):
            continue
        child = info.topic.partition(":")[2]
        for recipient in _agents_with_mail(info.head):
            await deliver(log, _stop(agent, child, recipient, command, cause), SendOptions(whole=True))
        reached.append(child)
    return tuple(reached)


async def _is_done(log: Log, info: TopicInfo) -> bool:
    """Whether no run is in progress there, no mail waits, and no subagent was started from there."""
    head = info.head
    if head.get(RUN_STATUS) in (None, RUNNING) or any(name.startswith(STARTED) for name in head):
        return False
    conversation = info.topic.partition(":")[2]
    page = await log.read(chat_topic(conversation), None, 1)
    if not page.records or page.records[0].id == head.get(RUN_ENVELOPE):
        return True
    fate = await find_message_progress(log, conversation, page.records[0].id)
    return fate is None or (fate.status in DONE and not fate.waiting)


def _agents_with_mail(head: JsonMapping) -> Sequence[str]:
    """The agents that may have mail there: after a handoff, the agent of the run and the active agent differ."""
    found = (head.get(ACTIVE_AGENT), head.get(RUN_AGENT) if head.get(RUN_STATUS) == RUNNING else None)
    return list(dict.fromkeys(agent for agent in found if isinstance(agent, str)))


def _stop(agent: str, child: str, recipient: str, command: str, cause: str) -> MessageEnvelope:
    text = "\x1f".join((cause, child, recipient))
    return MessageEnvelope(
        id="stop-" + hashlib.blake2b(text.encode(), digest_size=16).hexdigest(),
        conversation_id=child,
        sender=f"agent:{agent}",
        recipient=f"agent:{recipient}",
        type="control",
        content=command,
    )
