"""A run of the SDK through the journal, from what the agent remembers to the output.

The model is shown the last runs of the conversation, whole ones. How many older ones it was not shown stands on the
output as `history_left_out`. When the model says that the request is too long, the run is started over once with half
of them, and a `run` event (`restarted`, reason `history shortened`) says so; recorded turns are not asked again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agents import ModelProvider

from magent2.context.block import bus_message_block
from magent2.errors import ContextTooLong
from magent2.models.envelope import OutputEvent
from magent2.models.events import RunEvent
from magent2.runner.context import RunContext
from magent2.runner.event_mapping import as_text, usage_of
from magent2.runner.journal.agents import JournalledAgents
from magent2.runner.journal.approvals import waiting_calls
from magent2.runner.journal.journal import Journal
from magent2.runner.run_stream import RunStream
from magent2.runner.sdk_run import (
    accepted_options,
    final_output,
    follow_events,
    interruptions,
    run_config,
    translate_sdk_errors,
    usage_of_run,
)
from magent2.sessions.folds import ModelInput, model_input

SHORTENED = "history shortened"


class JournalledRun:
    """One attempt. `start` is the SDK's `Runner.run_streamed`."""

    def __init__(
        self, context: RunContext, agent: Any, provider: ModelProvider, start: Callable[..., Any], max_turns: int
    ) -> None:
        self._context = context
        self._agent = agent
        self._provider = provider
        self._start = start
        self._max_turns = max_turns
        self._journal = Journal(context)

    def stream(self, history_max: int) -> RunStream:
        return self._journal.stream(lambda: self._work(history_max))

    async def _work(self, history_max: int) -> None:
        shown = self._remember(history_max)
        try:
            result = await self._follow(shown)
        except ContextTooLong:
            if not shown.runs:
                raise
            shown = self._remember(shown.runs // 2)
            await self._tell_shortened(shown)
            self._journal.rewind()
            result = await self._follow(shown)
        if not self._context.waiting:
            await self._tell_output(result, shown)

    def _remember(self, runs_max: int) -> ModelInput:
        context = self._context
        return model_input(context.history, context.agent, context.run, runs_max, bus_message_block)

    async def _follow(self, shown: ModelInput) -> Any:
        """Run the SDK to its end. What happens in it reaches the reader through the journal."""
        journal = self._journal
        config = run_config(journal.failures.__setitem__, self._provider)
        options = accepted_options(
            self._start, {"context": self._context, "run_config": config, "max_turns": self._max_turns}
        )
        with translate_sdk_errors(lambda: journal.asking):
            agent = JournalledAgents(journal, self._provider).copy_of(self._agent)
            result = self._start(agent, input=shown.items, **options)
            async with follow_events(result) as events:
                async for _ in events:
                    pass
            self._context.waiting[:] = waiting_calls(journal, interruptions(result))
        return result

    async def _tell_shortened(self, shown: ModelInput) -> None:
        context = self._context
        event = RunEvent(
            conversation_id=context.conversation_id,
            status="restarted",
            envelope_id=context.envelope.id,
            reason=SHORTENED,
            history_left_out=shown.left_out,
        )
        await self._journal.emit({**self._journal.event(event, self._journal.turn, context.agent)})

    async def _tell_output(self, result: Any, shown: ModelInput) -> None:
        journal, context = self._journal, self._context
        event = OutputEvent(
            conversation_id=context.conversation_id,
            text=as_text(await final_output(result)),
            usage=usage_of(usage_of_run(result)),
        )
        turn = journal.output_turn
        speaker = getattr(getattr(result, "last_agent", None), "name", context.agent)
        facts: dict[str, Any] = {"message_id": context.message_id(turn)}
        if shown.left_out:
            facts["history_left_out"] = shown.left_out
        await journal.emit({**journal.event(event, turn, speaker), **facts})
