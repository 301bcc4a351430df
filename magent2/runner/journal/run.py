"""A run of the SDK through the journal, from the input of the model to the output.

The input starts with the last compaction of the conversation and has the runs behind it, each of them whole. A request
that gets too long for the model is compacted (`compaction.py`). The field `history_left_out` of the output says how
many older runs were left out without a summary.

An output that does not match its schema is recorded like any turn, with a `run` event (`restarted`, reason `output
mismatch: …`). Then the model is told what is wrong, in one more turn. If that one does not match either, the run fails.
The check is a function of records, so another worker that takes the run over comes to the same decision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from agents import Agent, ModelProvider, RunResultStreaming

from magent2.context.block import bus_message_block
from magent2.errors import OutputMismatch
from magent2.fair_share import FairThreads
from magent2.models.envelope import OutputEvent
from magent2.models.events import RunEvent
from magent2.runner.attachments import REQUEST_FILES_MAX_BYTES
from magent2.runner.context import RunContext
from magent2.runner.event_mapping import as_text, usage_of
from magent2.runner.journal.agents import JournalledAgents
from magent2.runner.journal.approvals import waiting_calls
from magent2.runner.journal.compaction import RequestPolicy
from magent2.runner.journal.journal import Journal
from magent2.runner.journal.output import correction, fault_of
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
from magent2.sessions.folds import InputItem, ModelInput, model_input

MISMATCH = "output mismatch"


@dataclass(frozen=True, slots=True)
class _Answer:
    """The output of a run, its usage, and the agent that gave it."""

    output: object
    usage: dict[str, int] | None
    speaker: str


def _sum(first: dict[str, int] | None, second: dict[str, int] | None) -> dict[str, int] | None:
    names = (first or {}).keys() | (second or {}).keys()
    return {name: (first or {}).get(name, 0) + (second or {}).get(name, 0) for name in sorted(names)} or None


class JournalledRun:
    """One attempt at one run. `start` is the SDK's `Runner.run_streamed`. `threads` run its synchronous tools.

    `contexts` says what the requests of each agent may contain. `files_max_bytes` limits the files in one request.
    """

    def __init__(
        self,
        context: RunContext,
        agent: object,
        provider: ModelProvider,
        start: Callable[..., RunResultStreaming],
        max_turns: int,
        threads: FairThreads | None = None,
        contexts: Mapping[str, RequestPolicy] | None = None,
        files_max_bytes: int = REQUEST_FILES_MAX_BYTES,
    ) -> None:
        self._context = context
        self._agent = agent
        self._provider = provider
        self._start = start
        self._max_turns = max_turns
        self._contexts = contexts or {}
        self._journal = Journal(context, threads, files_max_bytes)

    def stream(self, runs_max: int | None = None) -> RunStream:
        """Return the events of the run. With `runs_max` the model gets no more earlier runs, and no summary of them."""
        return self._journal.stream(lambda: self._work(runs_max))

    async def _work(self, runs_max: int | None) -> None:
        context = self._context
        given = model_input(context.history, context.run, runs_max, bus_message_block)
        self._journal.window.begin(given)
        self._journal.window.learn_from(context.history, context.run)
        answer = await self._answer(given)
        if answer is not None:
            await self._emit_output(answer, given)

    async def _answer(self, given: ModelInput) -> _Answer | None:
        """Run the SDK until its output matches; `None` if calls wait for approval. Raises `OutputMismatch`."""
        with translate_sdk_errors(lambda: False):
            agent = JournalledAgents(self._journal, self._provider, self._contexts).copy_of(self._agent)
        result = await self._run_sdk(agent, given.items, self._max_turns)
        if result is None:
            return None
        output = await final_output(result)
        usage = usage_of(usage_of_run(result))
        fault = fault_of(result.last_agent, output)
        if fault is None:
            return _Answer(output, usage, result.last_agent.name)
        await self._reject(fault, result.last_agent.name)
        told: InputItem = {"role": "user", "content": correction(result.last_agent, fault)}
        turns_left = max(1, self._max_turns - self._journal.turn)
        result = await self._run_sdk(result.last_agent, [*result.to_input_list(), told], turns_left)
        if result is None:
            self._context.usage = _sum(usage, self._context.usage)
            return None
        output = await final_output(result)
        fault = fault_of(result.last_agent, output)
        if fault is not None:
            raise OutputMismatch(f"the answer does not match its schema, also when the model was told so: {fault}")
        return _Answer(output, _sum(usage, usage_of(usage_of_run(result))), result.last_agent.name)

    async def _reject(self, fault: str, speaker: str) -> None:
        """Record that the last output is not the answer, unless an earlier attempt did."""
        journal = self._journal
        turn = journal.output_turn
        restarted = RunEvent(
            conversation_id=self._context.conversation_id,
            status="restarted",
            envelope_id=self._context.envelope.id,
            reason=f"{MISMATCH}: {fault}",
        )
        event = journal.event(restarted, turn, speaker)
        await journal.reject_output({**event, "message_id": self._context.message_id(turn)})

    async def _run_sdk(self, agent: Agent, items: Sequence[object], max_turns: int) -> RunResultStreaming | None:
        """Run the SDK to its end; return `None` if calls wait for approval.

        The journal writes the events, so those of the SDK are only consumed.
        """
        journal = self._journal
        config = run_config(journal.failures.__setitem__, self._provider)
        options = accepted_options(
            self._start, {"context": self._context, "run_config": config, "max_turns": max_turns}
        )
        with translate_sdk_errors(lambda: journal.awaiting_response):
            result = self._start(agent, input=items, **options)
            async with follow_events(result) as events:
                async for _ in events:
                    pass
            self._context.waiting[:] = waiting_calls(journal, interruptions(result))
            if self._context.waiting:
                self._context.usage = _sum(usage_of(usage_of_run(result)), usage_of(journal.window.usage))
        return None if self._context.waiting else result

    async def _emit_output(self, answer: _Answer, given: ModelInput) -> None:
        journal, context = self._journal, self._context
        event = OutputEvent(
            conversation_id=context.conversation_id,
            text=as_text(answer.output),
            usage=_sum(answer.usage, usage_of(journal.window.usage)),
        )
        turn = journal.output_turn
        fields: dict[str, object] = {"message_id": context.message_id(turn)}
        if model := journal.last_model:
            fields["model"] = model
        if reason := journal.incomplete_reason:
            fields["incomplete_reason"] = reason
        if given.left_out:
            fields["history_left_out"] = given.left_out
        await journal.emit({**journal.event(event, turn, answer.speaker), **fields})
