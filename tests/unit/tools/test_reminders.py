"""Reminders: set, listed and cancelled by an agent in its own conversation, once over any number of attempts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from magent2.bus.interface import Engine
from magent2.bus.log import run_sync
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Delete
from magent2.errors import InvalidInput, LimitError, UnknownSchedule
from magent2.models.address import SCHEDULER, chat_topic
from magent2.roster.limits import LimitValues
from magent2.sessions.schedules.store import find_schedule, schedule_text
from magent2.sessions.store import create_session
from magent2.tools.default_tools import standard_tools
from magent2.tools.interface import call_scope
from magent2.tools.registry import ToolRegistry
from magent2.tools.reminders import SetReminder
from magent2.tools.sending import definition_of
from tests.contracts.sending_tool import SendingToolContract, World
from tests.support.audit import whole_log
from tests.support.directory_fixture import populate_directory
from tests.support.engines import DISTINCT_ENGINES, new_engines
from tests.support.manual_clock import ManualClock
from tests.support.schedules import look_until_idle, messages
from tests.support.sending import Facts, commit, scope_of

LONG = "x" * 20_001


@pytest.fixture
def bus() -> Iterator[Engine]:
    engine = MemoryBus()
    yield engine
    engine.close()


def texts(bus: Engine) -> list[str]:
    """The texts of all reminders, in the order in which they were set."""
    lanes = [record.payload["conversation_id"] for record in whole_log(bus, chat_topic(SCHEDULER))]
    return [str(run_sync(bus, schedule_text, lane.removeprefix("schedule:"))) for lane in lanes]


class TestSetReminder(SendingToolContract):
    @pytest.fixture(params=DISTINCT_ENGINES)
    def bus(self, request: pytest.FixtureRequest) -> Iterator[Engine]:
        engine = new_engines(request.param, request)()
        yield engine
        engine.close()

    @pytest.fixture
    def world(self, bus: Engine) -> World:
        facts = populate_directory(bus)
        return World(
            facts,
            definition_of(SetReminder()),
            good=[{"text": "one", "after": "15m"}, {"text": " two ", "cron": "0 9 * * *"}],
            bad=[
                {"text": "a"},
                {"text": " ", "after": "15m"},
                {"text": "a", "after": "soon"},
                {"text": "a", "after": "15m", "cron": "0 9 * * *"},
                {"text": "a", "at": "2020-01-01T00:00:00Z"},
                {"text": "a", "after": "15m", "timezone": "Nowhere"},
                {"text": LONG, "after": "15m"},
                {"after": "15m"},
            ],
            arrived=lambda: texts(bus),
            wanted=["one", "two"],
            revoke=lambda: bus.call(Delete((f"stream:{facts.conversation_id}",))),
        )


async def call(
    facts: Facts, name: str, arguments: dict[str, Any], call_id: str = "call", tools: ToolRegistry | None = None
) -> dict[str, Any]:
    """Call a tool as a model does, and end the call."""
    scope = scope_of(facts, block=False, call=call_id)
    with call_scope(scope):
        result = await (tools or standard_tools()).get(name).run(arguments, facts)
    assert commit(scope) == []
    answer: dict[str, Any] = result.typed_result
    return answer


async def test_a_reminder_comes_back_to_the_agent_that_set_it() -> None:
    clock = ManualClock()
    bus = MemoryBus(clock=clock)
    facts = Facts(bus, principal="user:ann")
    run_sync(bus, create_session, facts.conversation_id, "user:ann", {"active_agent": "Other"})

    reminder = await call(facts, "set_reminder", {"text": "water the plants", "after": "15m"})
    await look_until_idle(bus)
    clock.pass_s(16 * 60)
    await look_until_idle(bus)

    (message,) = messages(bus, facts.conversation_id)
    assert (message["recipient"], message["content"]) == ("agent:Ada", "Reminder: water the plants")
    assert message["metadata"]["schedule"]["schedule_id"] == reminder["reminder_id"]
    assert [record.payload["id"] for record in whole_log(bus, "chat:Ada")] == [message["id"]]
    bus.close()


async def test_reminders_are_listed_and_cancelled_only_in_their_conversation(bus: Engine) -> None:
    mine, other = Facts(bus, conversation_id="one"), Facts(bus, conversation_id="two")
    for conversation in ("one", "two"):
        run_sync(bus, create_session, conversation, "user:ann", {})
    reminder = await call(mine, "set_reminder", {"text": "one", "cron": "0 9 * * *"}, "a")
    await call(other, "set_reminder", {"text": "two", "after": "15m"}, "b")

    (listed,) = (await call(mine, "list_reminders", {}))["reminders"]
    assert (listed["reminder_id"], listed["text"]) == (reminder["reminder_id"], "one")
    with pytest.raises(UnknownSchedule, match="has no reminder"):
        await call(other, "cancel_reminder", {"reminder_id": reminder["reminder_id"]}, "c")

    await call(mine, "cancel_reminder", {"reminder_id": reminder["reminder_id"]}, "d")
    await look_until_idle(bus)
    assert (await call(mine, "list_reminders", {}))["reminders"] == []
    ended = run_sync(bus, find_schedule, reminder["reminder_id"])
    assert ended is not None
    assert (ended.status, ended.end_reason) == ("ended", "the agent cancelled it")
    with pytest.raises(UnknownSchedule):
        await call(mine, "cancel_reminder", {"reminder_id": reminder["reminder_id"]}, "e")


async def test_reminders_keep_the_limits_of_the_agents_file(bus: Engine) -> None:
    limits: LimitValues = {"schedules_per_principal_max": 1, "schedule_interval_min_s": 3600.0}
    tools = standard_tools(limits=lambda: limits)
    facts = Facts(bus, principal="user:ann")
    run_sync(bus, create_session, facts.conversation_id, "user:ann", {})

    with pytest.raises(InvalidInput, match="the limit is 3600 s"):
        await call(facts, "set_reminder", {"text": "often", "cron": "*/5 * * * *"}, "a", tools)
    await call(facts, "set_reminder", {"text": "one", "after": "15m"}, "b", tools)
    with pytest.raises(LimitError, match="the limit is 1"):
        await call(facts, "set_reminder", {"text": "two", "after": "15m"}, "c", tools)

    limits["schedules_per_principal_max"] = 2  # a changed agents file holds at once
    await call(facts, "set_reminder", {"text": "two", "after": "15m"}, "d", tools)
    await look_until_idle(bus)
    assert texts(bus) == ["one", "two"]
