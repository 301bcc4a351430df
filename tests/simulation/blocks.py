"""Blocks of a simulated world: a sandbox that plays what stands in the code, breath by breath, on virtual time."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from magent2.runner.context import RunContext
from magent2.runner.team_tools import function_tool_of
from magent2.sandbox.interface import Abort, Call, Ended, Failed, Program, QuickCall
from magent2.sandbox.python_tool import PythonTool
from magent2.tools.interface import CallScope, Parking
from magent2.tools.sending import held_id
from magent2.tools.standard import standard_tools
from tests.simulation.moods import Temper

BLOCK = "-2"  # how the names of calls end that are blocks
LETTER_TO = "Ada"
HELD = (1, 2)  # places of its held messages; the first message goes at once
FAILED = "failed on purpose"

See = Callable[[RunContext, int, str], None]


def is_block(call: str) -> bool:
    return call.endswith(BLOCK)


def is_bad(call: str) -> bool:
    return zlib.crc32(call.encode()) % 5 == 0


def code_of(call: str) -> str:
    steps = ["now", "hold", "hold", *(["fail"] if is_bad(call) else [])]
    return json.dumps({"call": call, "steps": steps})


class PlayedSandbox:
    """A `Sandbox` for one attempt of a run."""

    def __init__(self, context: RunContext, temper: Temper, see: See) -> None:
        self._context = context
        self._temper = temper
        self._see = see

    async def run(
        self,
        program: Program,
        call: Call,
        park: Callable[[Parking], None] | None = None,
        quick: QuickCall | None = None,
    ) -> Ended:
        played = json.loads(program.code)
        name = str(played["call"])
        self._see(self._context, int(name.split("-")[1]), name)
        try:
            for step in played["steps"]:
                await self._temper.line.breathe()
                if step == "fail":
                    return Ended("", failure=Failed("exception", FAILED))
                await call("chat_send", (f"agent:{LETTER_TO}", f"{step} of {name}"), {"now": step == "now"})
        except Abort as end:
            return Ended("", failure=end.failure)
        except Exception as error:  # noqa: BLE001  as the real one: what a tool raises fails the block
            return Ended("", failure=Failed("exception", str(error)))
        return Ended("played")

    async def aclose(self) -> None:
        return None


def python_of(context: RunContext, temper: Temper, see: See) -> Any:
    sandbox = PlayedSandbox(context, temper, see)
    return function_tool_of(PythonTool(sandbox, [standard_tools().get("chat_send")]).definition())


# --- the audit


def block_findings(run: Sequence[Mapping[str, Any]], posted: Collection[str]) -> Iterator[str]:
    """What a block held is in an inbox if its result says so, and else nowhere."""
    results = {mark["call_id"]: mark for mark in run if mark["kind"] == "tool"}
    sent = [(mark["call_id"], mark["place"]) for mark in run if mark["kind"] == "sent"]
    if len(set(sent)) < len(sent):
        yield f"sent at once more than once: {sent}"
    for turn, call in _block_calls(run):
        key = f"{run[0]['run']}/{turn}/{call}"
        there = [place for place in HELD if held_id(CallScope(run=None, key=key), place) in posted]  # type: ignore[arg-type]
        said = str(results[call]["output"]) if call in results else ""
        wanted = list(HELD) if said.endswith("[Messages: 2 sent]") else []
        if there != wanted:
            yield f"the block {call} said {said!r}, and of what it held {there} is in an inbox"


def _block_calls(run: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, str]]:
    for mark in run:
        if mark["kind"] == "answer":
            for item in mark["response"].get("output", ()):
                if item.get("type") == "function_call" and is_block(str(item["call_id"])):
                    yield mark["turn"], str(item["call_id"])
