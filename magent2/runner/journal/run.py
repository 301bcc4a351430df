"""A run of the SDK through the journal, from the input of the model to the output.

The input holds the last runs of the conversation, each of them whole. The field `history_left_out` of the output says
how many older runs were left out. If the model refuses the request as too long, the run starts over once with half of
the runs, and a `run` event (`restarted`, reason `history shortened`) says so. Recorded turns are replayed.
"""

from __future__ import annotations

from collections.abc import Callable

from agents import ModelProvider, RunResultStreaming

from magent2.context.block import bus_message_block
from magent2.errors import ContextTooLong
from magent2.fair_share import FairThreads
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
    """One attempt at one run. `start` is the SDK's `Runner.run_streamed`. `threads` run its synchronous tools."""

    def __init__(
        self,
        context: RunContext,
        agent: object,
        provider: ModelProvider,
        start: Callable[..., RunResultStreaming],
        max_turns: int,
        threads: FairThreads | None = None,
    ) -> None:
        self._context = context
        self._agent = agent
        self._provider = provider
        self._start = start
        self._max_turns = max_turns
        self._journal = Journal(context, threads)

    def stream(self, history_max: int) -> RunStream:
        return self._journal.stream(lambda: self._work(history_max))

    async def _work(self, history_max: int) -> None:
        given = self._model_input(history_max)
        try:
            result = await self._run_sdk(given)
        except ContextTooLong:
            if not given.runs:
                raise
            given = self._model_input(given.runs // 2)
            await self._emit_restarted(given)
            self._journal.rewind()
            result = await self._run_sdk(given)
        if not self._context.waiting:
            await self._emit_output(result, given)

    def _model_input(self, runs_max: int) -> ModelInput:
        context = self._context
        return model_input(context.history, context.run, runs_max, bus_message_block)

    async def _run_sdk(self, given: ModelInput) -> RunResultStreaming:
        """Run the SDK to its end. The journal writes the events, so those of the SDK are only consumed."""
        journal = self._journal
        config = run_config(journal.failures.__setitem__, self._provider)
        options = accepted_options(
            self._start, {"context": self._context, "run_config": config, "max_turns": self._max_turns}
        )
        with translate_sdk_errors(lambda: journal.awaiting_response):
            agent = JournalledAgents(journal, self._provider).copy_of(self._agent)
            result = self._start(agent, input=given.items, **options)
            async with follow_events(result) as events:
                async for _ in events:
                    pass
            self._context.waiting[:] = waiting_calls(journal, interruptions(result))
        return result

    async def _emit_restarted(self, given: ModelInput) -> None:
        context = self._context
        event = RunEvent(
            conversation_id=context.conversation_id,
            status="restarted",
            envelope_id=context.envelope.id,
            reason=SHORTENED,
            history_left_out=given.left_out,
        )
        await self._journal.emit(self._journal.event(event, self._journal.turn, context.agent))

    async def _emit_output(self, result: RunResultStreaming, given: ModelInput) -> None:
        journal, context = self._journal, self._context
        event = OutputEvent(
            conversation_id=context.conversation_id,
            text=as_text(await final_output(result)),
            usage=usage_of(usage_of_run(result)),
        )
        turn = journal.output_turn
        speaker = getattr(getattr(result, "last_agent", None), "name", context.agent)
        fields: dict[str, object] = {"message_id": context.message_id(turn)}
        if given.left_out:
            fields["history_left_out"] = given.left_out
        await journal.emit({**journal.event(event, turn, speaker), **fields})
