"""Python blocks of a simulated world: a scripted sandbox on virtual time, and the audit of the blocks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

from magent2.runner.build import function_tool_of
from magent2.runner.context import RunContext
from magent2.sandbox.interface import AbortBlock, BlockFailure, BlockResult, HostCall, Program, QuickCall
from magent2.sandbox.python_tool import PythonTool
from magent2.tools.interface import ReleasableSlot, current_scope, send_id
from tests.simulation.calls import BLOCK, kind_of, stable_choice, turn_of
from tests.simulation.directory_fixture import send_call, sending_tools
from tests.simulation.plain_runner import MailFaults

NOW, HELD = (0,), (1, 2)  # positions of messages that are sent at once, and of those that are held
FAILED = "failed on purpose"

Posted = Mapping[str, set[str]]  # ids of sent messages, by the prefix of their log


def is_bad(call: str) -> bool:
    return stable_choice(call, 5) == 0


def name_of(call: str, place: int) -> str:
    return f"{call}/{place}"


def code_of(call: str) -> str:
    steps: list[int | None] = [*NOW, *HELD, *([None] if is_bad(call) else [])]
    return json.dumps({"call": call, "steps": steps})


class ScriptedSandbox:
    """A `Sandbox` that all simulated processes share."""

    async def run(
        self,
        program: Program,
        call: HostCall,
        on_slot: Callable[[ReleasableSlot], None] | None = None,
        quick: QuickCall | None = None,
    ) -> BlockResult:
        played = json.loads(program.code)
        scope = current_scope()
        assert scope is not None
        context = cast(RunContext, scope.run)
        faults = MailFaults.of(context)
        faults.on_call(context, turn_of(played["call"]), played["call"])
        try:
            for step in played["steps"]:
                await faults.bus.checkpoint()
                if step is None:
                    return BlockResult("", failure=BlockFailure("exception", FAILED))
                send = send_call(name_of(played["call"], step), context.conversation_id)
                await call(send.tool, (), {**send.arguments, "now": step in NOW})
        except AbortBlock as end:
            return BlockResult("", failure=end.failure)
        except Exception as error:  # noqa: BLE001  as in the real sandbox, any error of a tool fails the block
            return BlockResult("", failure=BlockFailure("exception", str(error)))
        return BlockResult("played")

    async def aclose(self) -> None:
        return None


def python_tool() -> Any:
    return function_tool_of(PythonTool(ScriptedSandbox(), sending_tools().values()).definition())


# --- the audit


def block_findings(run: Sequence[Mapping[str, Any]], conversation: str, posted: Posted) -> Iterator[str]:
    """Held messages were sent if and only if the result says so; messages that were sent at once were sent once."""
    results = {mark["call_id"]: mark for mark in run if mark["kind"] == "tool"}
    for mark in run:
        if mark["kind"] == "sent" and kind_of(mark["call_id"]) == BLOCK:
            lands = send_call(name_of(mark["call_id"], mark["place"]), conversation).lands
            if mark["id"] not in posted[lands]:
                yield f"{mark['call_id']} has sent {mark['id']} at once, which is in no log of {lands}"
    sent = [(mark["call_id"], mark["place"]) for mark in run if mark["kind"] == "sent"]
    if len(set(sent)) < len(sent):
        yield f"sent at once more than once: {sent}"
    for turn, call in _block_calls(run):
        key = f"{run[0]['run']}/{turn}/{call}"
        yield from _held_findings(call, key, results.get(call), conversation, posted)


def _held_findings(
    call: str, key: str, result: Mapping[str, Any] | None, conversation: str, posted: Posted
) -> Iterator[str]:
    ids = {place: send_id(key, place) for place in HELD}
    there = [held for place, held in ids.items() if held in posted[send_call(name_of(call, place), conversation).lands]]
    said, told = ("", []) if result is None else (str(result["output"]), list(result["sends"]))
    if there != told:
        yield f"the block {call} said {said!r} and that it has sent {told}; of what it held {there} is in a log"
    if told and f"[Messages: {len(told)} sent" not in said:
        yield f"the block {call} has sent {len(told)} and said {said!r}"


def _block_calls(run: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, str]]:
    for mark in run:
        if mark["kind"] == "answer":
            for item in mark["response"].get("output", ()):
                if item.get("type") == "function_call" and kind_of(str(item["call_id"])) == BLOCK:
                    yield mark["turn"], str(item["call_id"])
