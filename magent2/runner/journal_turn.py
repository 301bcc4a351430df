"""Between the calls of a turn and the next one: what the model will be shown, and whether it is asked at all."""

from __future__ import annotations

from collections.abc import Sequence

from agents import FunctionToolResult, ToolsToFinalOutputResult

from magent2.runner.answers import storable
from magent2.runner.event_mapping import as_text
from magent2.runner.journal import Journal, outputs_of
from magent2.runner.journal_calls import SKIP_TURN, Call
from magent2.sessions.views import calls_of


async def final_of(journal: Journal, results: Sequence[FunctionToolResult]) -> ToolsToFinalOutputResult:
    """Whether what the tools gave is the output: it is where all of them say that the model need not see it."""
    calls = calls_of(journal.previous.get("output", ()))
    known = [journal.results.get((journal.turn - 1, call["call_id"]), {}) for call in calls]
    if not known or not all(record.get(SKIP_TURN) for record in known):
        return ToolsToFinalOutputResult(is_final_output=False)
    return ToolsToFinalOutputResult(is_final_output=True, final_output=as_text(results[-1].output))


async def close_calls(journal: Journal, asked: object, speaker: str) -> None:
    """Record what the model is shown for calls that never reached their tool, or whose result was changed after it.

    The SDK answers some calls itself (an unknown tool, a guardrail, a second handoff), and a guardrail may replace a
    result. Later runs must see the same.
    """
    calls = {call["call_id"]: call for call in calls_of(journal.previous.get("output", ()))}
    for item in outputs_of(asked):
        asked_for = calls.get(item.get("call_id"))
        if asked_for is None:
            continue
        facts = asked_for["call_id"], asked_for["name"], asked_for["arguments"], speaker
        call = Call(journal, journal.turn - 1, *facts, known=False)
        output = storable(item.get("output"))
        if call.recorded is None:
            await call.start()
            await call.note(output, journal.failures.pop(call.id, as_text(output)))
        elif isinstance(output, str) and call.recorded["output"] != output:
            await call.note(output, as_text(output))
