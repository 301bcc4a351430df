"""The client for event loops: the same names as `Client`, awaited."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import httpx2

from magent2.client import calls
from magent2.client.address import GatewayAddress
from magent2.client.calls import Call, problem
from magent2.client.following import PATIENCE_S, WAITING_KINDS, Awaiting, Following, Patience, may_repeat
from magent2.client.transport import EVENT_MAX_BYTES, Deadline, http_options, lost, stream_timeout
from magent2.client.values import (
    AgentInfo,
    Answer,
    Approval,
    Conversation,
    ConversationPage,
    EventPage,
    LetterPage,
    Receipt,
    Sent,
    Steered,
    Stopping,
    StreamEvent,
    ToolResult,
)
from magent2.errors import AnswerPending, GatewayUnreachable, TransientError

log = logging.getLogger(__name__)

T = TypeVar("T")


class AsyncClient:
    """A gateway, seen from an event loop. See `Client` for what it promises."""

    def __init__(self, url: str | None = None, token: str | None = None, *, patience_s: float = PATIENCE_S) -> None:
        self.address = GatewayAddress.find(url, token)
        self._patience_s = patience_s
        self._http = httpx2.AsyncClient(**http_options(self.address))  # type: ignore[arg-type]

    async def send(
        self,
        recipient: str,
        text: str,
        *,
        conversation_id: str | None = None,
        sender: str | None = None,
        envelope_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Sent:
        """Send a message to an agent (`Bob`, `agent:Bob`) or into a conversation (`chat:c1`), once."""
        return await self._run(
            calls.send(
                recipient,
                text,
                conversation_id=conversation_id,
                sender=sender,
                envelope_id=envelope_id,
                metadata=metadata,
            )
        )

    async def wait(self, sent: Sent, timeout_s: float | None = None) -> Answer:
        """The answer to a message; `RunFailed` or `RunStopped` when there is none, `AnswerPending` when not in time."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._await_answer(sent)
        except TimeoutError:
            raise AnswerPending(f"no answer to {sent.envelope_id} yet; the run goes on") from None

    async def ask(self, recipient: str, text: str, *, timeout_s: float | None = None, **message: Any) -> Answer:
        """Send and wait."""
        return await self.wait(await self.send(recipient, text, **message), timeout_s)

    async def replies(self, sent: Sent) -> AsyncGenerator[StreamEvent]:
        """The events of the run that answers a message, as they come, to its end; raises as `wait` does."""
        awaiting = Awaiting(sent)
        async with aclosing(self._follow(Following(sent.conversation_id, sent.seq))) as events:
            async for event in events:
                answer = awaiting.take(event)
                if awaiting.is_ours(event):
                    yield event
                if answer is not None:
                    return

    def follow(
        self, conversation_id: str, since: int | None = None, kinds: Iterable[str] | None = None
    ) -> AsyncGenerator[StreamEvent]:
        """Every event after `since`, in order, none twice; see `Client.follow`."""
        return self._follow(Following(conversation_id, since, kinds))

    async def create_session(self, session_id: str | None = None, agent: str | None = None) -> str:
        """A conversation that an agent has; its id."""
        return await self._run(calls.create_session(session_id, agent))

    async def run_tool(
        self, session_id: str, tool: str, args: Mapping[str, Any], *, timeout_s: float | None = None
    ) -> ToolResult:
        """Run a tool of the conversation's agent, without a model, and wait for what it says."""
        ran = await self._run(calls.run_tool(session_id, tool, args))
        if isinstance(ran, ToolResult):
            return ran
        return ToolResult(session_id, tool, "", (await self.wait(ran, timeout_s)).text)

    async def stop(self, conversation_id: str, agent: str | None = None, sender: str | None = None) -> Stopping:
        """Stop the run of the conversation's active agent, or of another."""
        return await self._run(calls.stop(conversation_id, agent, sender))

    async def steer(
        self,
        conversation_id: str,
        text: str,
        *,
        target: str | None = None,
        require_active: bool = False,
        client_message_id: str | None = None,
    ) -> Steered:
        """Say something to the runs under way, or to that of one agent, once; see `receipt` for what became of it."""
        return await self._run(
            calls.steer(
                conversation_id,
                text,
                target=target,
                require_active=require_active,
                client_message_id=client_message_id,
            )
        )

    async def receipt(self, conversation_id: str, receipt_id: str, wait_s: float = 0.0) -> Receipt:
        """What became of a message; with `wait_s` after an agent has seen it, if it does so in time."""
        return await self._run(calls.receipt(conversation_id, receipt_id, wait_s))

    async def seen(self, steered: Steered, timeout_s: float | None = None) -> Receipt:
        """Wait until an agent has seen what was said; `AnswerPending` when none has in time."""
        waiting = Deadline(timeout_s)
        while True:
            found = await self.receipt(steered.conversation_id, steered.receipt_id, waiting.part_s())
            if found.status != "accepted":
                return found
            if waiting.is_over:
                raise AnswerPending(f"nobody has seen {steered.receipt_id} yet; it waits")

    async def approvals(self, conversation_id: str) -> tuple[Approval, ...]:
        """The calls that a person was asked about, oldest first."""
        return await self._run(calls.approvals(conversation_id))

    async def decide(
        self, conversation_id: str, call_id: str, decision: Literal["approve", "reject"], reason: str | None = None
    ) -> Approval:
        """Decide on a call, once; `Conflict` when it was decided otherwise."""
        return await self._run(calls.decide(conversation_id, call_id, decision, reason))

    async def conversations(
        self, limit: int = 50, before: str | None = None, owner: str | None = None
    ) -> ConversationPage:
        return await self._run(calls.conversations(limit, before, owner))

    async def conversation(self, conversation_id: str) -> Conversation:
        return await self._run(calls.conversation(conversation_id))

    async def events(self, conversation_id: str, since: int = 0, limit: int = 100) -> EventPage:
        return await self._run(calls.events(conversation_id, since, limit))

    async def delete(self, conversation_id: str) -> None:
        await self._run(calls.delete(conversation_id))

    async def agents(self) -> tuple[AgentInfo, ...]:
        return await self._run(calls.agents())

    async def dead(self, agent: str | None = None, after: str | int | None = None) -> LetterPage:
        return await self._run(calls.dead(agent, after))

    async def retry_dead(self, agent: str, seq: int) -> None:
        await self._run(calls.retry_dead(agent, seq))

    async def drop_dead(self, agent: str, seq: int) -> None:
        await self._run(calls.drop_dead(agent, seq))

    async def health(self) -> Mapping[str, Any]:
        return await self._run(calls.health())

    async def ready(self) -> Mapping[str, Any]:
        return await self._run(calls.ready())

    async def aclose(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    # --- inside

    async def _await_answer(self, sent: Sent) -> Answer:
        awaiting = Awaiting(sent)
        async with aclosing(self._follow(Following(sent.conversation_id, sent.seq, WAITING_KINDS))) as events:
            async for event in events:
                if (answer := awaiting.take(event)) is not None:
                    return answer
        raise GatewayUnreachable(f"the stream from {self.address.url} has ended", sent=True)

    async def _run(self, call: Call[T]) -> T:
        patience = Patience(self._patience_s)
        while True:
            try:
                return await self._once(call)
            except TransientError as error:
                if not may_repeat(error, call.repeatable):
                    raise
                await asyncio.sleep(patience.pause(error, asyncio.get_running_loop().time()))

    async def _once(self, call: Call[T]) -> T:
        try:
            response = await self._http.request(call.method, call.path, params=call.params, json=call.body)
        except httpx2.TransportError as error:
            raise lost(error, self.address) from error
        return call.read(response.status_code, response.headers, response.content)

    async def _follow(self, following: Following) -> AsyncGenerator[StreamEvent]:
        patience = Patience(self._patience_s)
        while not following.ended:
            try:
                async with aclosing(self._connection(following, patience)) as events:
                    async for event in events:
                        yield event
            except TransientError as error:
                pause_s = patience.pause(error, asyncio.get_running_loop().time(), following.retry_s)
                log.warning("the stream was lost; trying again", extra={"error": str(error)})
                await asyncio.sleep(pause_s)

    async def _connection(self, following: Following, patience: Patience) -> AsyncGenerator[StreamEvent]:
        """The events of one connection. It raises when the connection ends before the stream does."""
        try:
            async with self._http.stream(
                "GET", following.path, params=following.params, timeout=stream_timeout(None)
            ) as response:
                if response.status_code == 204:
                    yield following.gone()
                    return
                if response.status_code != 200:
                    raise problem(response.status_code, response.headers, await response.aread())
                patience.reset()
                async for frame in httpx2.EventSource(response, EVENT_MAX_BYTES):
                    event = following.take(frame)
                    if event is not None:
                        yield event
                    if following.ended:
                        return
        except httpx2.TransportError as error:
            raise lost(error, self.address) from error
        raise GatewayUnreachable(f"the stream from {self.address.url} has ended", sent=True)
