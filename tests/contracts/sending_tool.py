"""What every tool that sends must keep to: one suite, and each tool says how to make a world for it.

class TestSay(SendingToolContract):
    @pytest.fixture
    def world(self, …) -> World:
        return World(…)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import pytest

from magent2.bus.interface import Engine
from magent2.bus.log import run_sync
from magent2.bus.operations import Append, Dump
from magent2.errors import BlockDiverged, InvalidInput, Magent2Error, Refused
from magent2.tools.definition import ToolDefinition, ToolExecutionContext, ToolExecutionResult
from magent2.tools.interface import CallScope, SendMark, call_scope
from tests.support.sending import Facts, commit, scope_of

REFUSALS = (InvalidInput, Refused)


@dataclass
class World:
    """A tool, and people and places for it to send to.

    `good`: arguments of at least two different sends, without `now`; `arrived` tells what has reached its target, in
    order and as text, and is to be `wanted` once all of `good` were sent in order. `bad`: arguments that must be
    refused. `revoke` takes the right to send all of `good` away; `None` for a tool without such a thing.
    `refuses_softly`: a plain call answers `{"ok": false}` instead of raising.
    """

    facts: Facts
    tool: ToolDefinition
    good: list[dict[str, Any]]
    bad: list[dict[str, Any]]
    arrived: Callable[[], list[str]]
    wanted: list[str]
    revoke: Callable[[], object] | None = None
    refuses_softly: bool = False
    unchecked: tuple[str, ...] = field(default=())  # prefixes of topics that preparing may write to: pinned content

    @property
    def bus(self) -> Engine:
        return self.facts.bus

    async def call(self, arguments: Mapping[str, Any], scope: CallScope | None) -> ToolExecutionResult[Any]:
        with nullcontext() if scope is None else call_scope(scope):
            return await self.tool.run(arguments, self.facts)

    async def call_all(self, scope: CallScope | None, **more: Any) -> list[ToolExecutionResult[Any]]:
        """Every good call in one scope."""
        with nullcontext() if scope is None else call_scope(scope):
            return [await self.tool.run({**arguments, **more}, self.facts) for arguments in self.good]

    def log(self) -> list[str]:
        """Everything on the log, but for what is pinned there."""
        rows, _ = self.bus.call(Dump("", 1000))
        kept = [row for row in rows if row["kind"] != "blob"]  # content that nobody names yet is no message
        return [str(row) for row in kept if not str(row.get("topic", "")).startswith(self.unchecked or ("\0",))]


class SendingToolContract:
    @pytest.fixture
    def world(self) -> World:
        raise NotImplementedError

    def test_a_model_is_told_of_now(self, world: World) -> None:
        schema = world.tool.shown()["params_schema"]
        assert schema["properties"]["now"]["type"] == "boolean"
        assert "now" not in schema.get("required", ())
        assert world.tool.execute_deferred is not None
        json.dumps(world.tool.shown())

    async def test_outside_a_run_it_sends_at_once(self, world: World) -> None:
        results = await world.call_all(None)

        assert world.arrived() == world.wanted
        assert [result.deferred_payload for result in results] == [None] * len(results)

    @pytest.mark.parametrize("block", [True, False], ids=["block", "call"])
    async def test_in_a_run_it_is_held_and_leaves_in_call_order(self, world: World, block: bool) -> None:
        before = world.log()
        scope = scope_of(world.facts, block=block)

        await world.call_all(scope)
        assert (world.arrived(), world.log()) == ([], before)

        assert commit(scope) == []
        assert world.arrived() == world.wanted

    @pytest.mark.parametrize("block", [True, False], ids=["block", "call"])
    async def test_an_answer_says_held_only_in_a_block_which_may_still_fail(self, world: World, block: bool) -> None:
        results = await world.call_all(scope_of(world.facts, block=block))

        assert [result.typed_result.get("held", False) for result in results] == [block] * len(results)
        assert all(result.tool_message == result.typed_result for result in results)

    async def test_a_block_that_fails_sends_nothing(self, world: World) -> None:
        before = world.log()

        scope = scope_of(world.facts)
        await world.call_all(scope)
        scope.discard_from(0)

        assert (world.arrived(), world.log()) == ([], before)

    @pytest.mark.parametrize("call_writer", [True, False], ids=["journalled", "bare"])
    async def test_with_now_it_leaves_although_the_block_fails(self, world: World, call_writer: bool) -> None:
        scope = scope_of(world.facts, call_writer=call_writer)

        results = await world.call_all(scope, now=True)

        assert world.arrived() == world.wanted
        assert [result.deferred_payload for result in results] == [None] * len(results)
        assert scope.sends == ()

    @pytest.mark.parametrize("block", [True, False], ids=["block", "call"])
    @pytest.mark.parametrize("now", [True, False], ids=["now", "later"])
    async def test_what_is_wrong_is_refused_before_anything_is_sent(self, world: World, block: bool, now: bool) -> None:
        before = world.log()
        for arguments in world.bad:
            scope = scope_of(world.facts, block=block)
            if world.refuses_softly and not block:
                await self._check_soft_refusal(world, {**arguments, "now": now}, scope)
            else:
                with pytest.raises(REFUSALS) as refusal:
                    await world.call({**arguments, "now": now}, scope)
                assert str(refusal.value), arguments
            assert scope.sends == ()

        assert (world.arrived(), world.log()) == ([], before)

    async def _check_soft_refusal(self, world: World, arguments: Mapping[str, Any], scope: CallScope) -> None:
        try:
            result = await world.call(arguments, scope)
        except REFUSALS:
            return
        assert result.typed_result["ok"] is False
        assert result.typed_result["error"]

    async def test_what_it_holds_is_json_with_a_version_and_all_that_the_send_needs(self, world: World) -> None:
        scope = scope_of(world.facts)
        results = await world.call_all(scope)

        deferred = world.tool.execute_deferred
        assert deferred is not None
        for held, result in zip(scope.sends, results, strict=True):
            payload = json.loads(json.dumps(result.deferred_payload))
            assert isinstance(payload["version"], int)
            assert payload == held.prepared.payload.model_dump(mode="json")
            context = ToolExecutionContext(world.facts, scope)
            world.bus.call(run_sync(world.bus, deferred, payload, context, held.mark))
        assert world.arrived() == world.wanted

    async def test_a_payload_of_another_version_is_refused(self, world: World) -> None:
        scope = scope_of(world.facts)
        result = await world.call(world.good[0], scope)

        deferred = world.tool.execute_deferred
        assert deferred is not None
        assert result.deferred_payload is not None
        with pytest.raises(Magent2Error, match="version"):
            run_sync(
                world.bus,
                deferred,
                {**result.deferred_payload, "version": 999},
                ToolExecutionContext(world.facts, scope),
                SendMark("send-x"),
            )

    async def test_every_attempt_sends_under_the_same_ids_and_only_once(self, world: World) -> None:
        first, second = scope_of(world.facts), scope_of(world.facts)
        await world.call_all(first)
        await world.call_all(second)

        assert [held.id for held in first.sends] == [held.id for held in second.sends]
        assert len({held.id for held in first.sends}) == len(world.good)
        commit(first)
        for held in second.sends:
            world.bus.call(Append(records=held.append.records))
        assert world.arrived() == world.wanted

    async def test_what_went_at_once_is_not_sent_again_by_the_next_attempt(self, world: World) -> None:
        first = await world.call_all(scope_of(world.facts), now=True)
        again = await world.call_all(scope_of(world.facts), now=True)

        assert world.arrived() == world.wanted
        assert [result.typed_result for result in first] == [result.typed_result for result in again]

    async def test_an_attempt_that_would_send_something_else_at_once_has_diverged(self, world: World) -> None:
        await world.call({**world.good[0], "now": True}, scope_of(world.facts))
        there = world.arrived()
        scope = scope_of(world.facts)

        with pytest.raises(BlockDiverged):
            await world.call({**world.good[1], "now": True}, scope)

        assert scope.diverged is not None
        assert world.arrived() == there

    async def test_a_right_that_was_taken_away_meanwhile_fails_the_send_by_name(self, world: World) -> None:
        if world.revoke is None:
            return
        scope = scope_of(world.facts)
        await world.call_all(scope)

        world.revoke()
        failures = commit(scope)

        assert [failure.send.id for failure in failures] == [held.id for held in scope.sends]
        assert all(failure.send.prepared.tool == world.tool.name for failure in failures)
        assert all(failure.reason and failure.send.prepared.target for failure in failures)
        assert world.arrived() == []
