"""The client for threads."""

from __future__ import annotations

import logging
import socket as sockets
import threading
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
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


class Client:
    """A gateway, seen from Python. Threads may share one.

    What is lost on the way is asked for again, for up to `patience_s` seconds: a message has one id however often it is
    sent, a stream goes on behind its last event. Errors are in `magent2.errors`: `GatewayProblem` is what the gateway
    answered, `GatewayUnreachable` that it did not.
    """

    def __init__(self, url: str | None = None, token: str | None = None, *, patience_s: float = PATIENCE_S) -> None:
        self.address = GatewayAddress.find(url, token)
        self._patience_s = patience_s
        self._http = httpx2.Client(**http_options(self.address))  # type: ignore[arg-type]

    def send(
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
        return self._run(
            calls.send(
                recipient,
                text,
                conversation_id=conversation_id,
                sender=sender,
                envelope_id=envelope_id,
                metadata=metadata,
            )
        )

    def wait(self, sent: Sent, timeout_s: float | None = None) -> Answer:
        """The answer to a message; `RunFailed` or `RunStopped` when there is none, `AnswerPending` when not in time."""
        awaiting = Awaiting(sent)
        with closing(self._follow(Following(sent.conversation_id, sent.seq, WAITING_KINDS), timeout_s)) as events:
            for event in events:
                if (answer := awaiting.take(event)) is not None:
                    return answer
        raise AnswerPending(f"no answer to {sent.envelope_id} yet; the run goes on")

    def ask(self, recipient: str, text: str, *, timeout_s: float | None = None, **message: Any) -> Answer:
        """Send and wait."""
        return self.wait(self.send(recipient, text, **message), timeout_s)

    def replies(self, sent: Sent) -> Generator[StreamEvent]:
        """The events of the run that answers a message, as they come, to its end; raises as `wait` does."""
        awaiting = Awaiting(sent)
        with closing(self._follow(Following(sent.conversation_id, sent.seq))) as events:
            for event in events:
                answer = awaiting.take(event)
                if awaiting.is_ours(event):
                    yield event
                if answer is not None:
                    return

    def follow(
        self, conversation_id: str, since: int | None = None, kinds: Iterable[str] | None = None
    ) -> Generator[StreamEvent]:
        """Every event after `since`, in order, none twice, over as many connections as it takes.

        Without `since` from the oldest. Ends with an `end` event when the conversation is deleted or the token revoked;
        a `gap` event says that retention was faster.
        """
        return self._follow(Following(conversation_id, since, kinds))

    def create_session(self, session_id: str | None = None, agent: str | None = None) -> str:
        """A conversation that an agent has; its id."""
        return self._run(calls.create_session(session_id, agent))

    def run_tool(
        self, session_id: str, tool: str, args: Mapping[str, Any], *, timeout_s: float | None = None
    ) -> ToolResult:
        """Run a tool of the conversation's agent, without a model, and wait for what it says."""
        ran = self._run(calls.run_tool(session_id, tool, args))
        if isinstance(ran, ToolResult):
            return ran
        return ToolResult(session_id, tool, "", self.wait(ran, timeout_s).text)

    def stop(self, conversation_id: str, agent: str | None = None, sender: str | None = None) -> Stopping:
        """Stop the run of the conversation's active agent, or of another."""
        return self._run(calls.stop(conversation_id, agent, sender))

    def steer(
        self,
        conversation_id: str,
        text: str,
        *,
        target: str | None = None,
        require_active: bool = False,
        client_message_id: str | None = None,
    ) -> Steered:
        """Say something to the runs under way, or to that of one agent, once; see `receipt` for what became of it."""
        return self._run(
            calls.steer(
                conversation_id,
                text,
                target=target,
                require_active=require_active,
                client_message_id=client_message_id,
            )
        )

    def receipt(self, conversation_id: str, receipt_id: str, wait_s: float = 0.0) -> Receipt:
        """What became of a message; with `wait_s` after an agent has seen it, if it does so in time."""
        return self._run(calls.receipt(conversation_id, receipt_id, wait_s))

    def seen(self, steered: Steered, timeout_s: float | None = None) -> Receipt:
        """Wait until an agent has seen what was said; `AnswerPending` when none has in time."""
        waiting = Deadline(timeout_s)
        while True:
            found = self.receipt(steered.conversation_id, steered.receipt_id, waiting.part_s())
            if found.status != "accepted":
                return found
            if waiting.is_over:
                raise AnswerPending(f"nobody has seen {steered.receipt_id} yet; it waits")

    def approvals(self, conversation_id: str) -> tuple[Approval, ...]:
        """The calls that a person was asked about, oldest first."""
        return self._run(calls.approvals(conversation_id))

    def decide(
        self, conversation_id: str, call_id: str, decision: Literal["approve", "reject"], reason: str | None = None
    ) -> Approval:
        """Decide on a call, once; `Conflict` when it was decided otherwise."""
        return self._run(calls.decide(conversation_id, call_id, decision, reason))

    def conversations(self, limit: int = 50, before: str | None = None, owner: str | None = None) -> ConversationPage:
        return self._run(calls.conversations(limit, before, owner))

    def conversation(self, conversation_id: str) -> Conversation:
        return self._run(calls.conversation(conversation_id))

    def events(self, conversation_id: str, since: int = 0, limit: int = 100) -> EventPage:
        return self._run(calls.events(conversation_id, since, limit))

    def delete(self, conversation_id: str) -> None:
        self._run(calls.delete(conversation_id))

    def agents(self) -> tuple[AgentInfo, ...]:
        return self._run(calls.agents())

    def dead(self, agent: str | None = None, after: str | int | None = None) -> LetterPage:
        return self._run(calls.dead(agent, after))

    def retry_dead(self, agent: str, seq: int) -> None:
        self._run(calls.retry_dead(agent, seq))

    def drop_dead(self, agent: str, seq: int) -> None:
        self._run(calls.drop_dead(agent, seq))

    def health(self) -> Mapping[str, Any]:
        return self._run(calls.health())

    def ready(self) -> Mapping[str, Any]:
        return self._run(calls.ready())

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- inside

    def _run(self, call: Call[T]) -> T:
        patience = Patience(self._patience_s)
        while True:
            try:
                return self._once(call)
            except TransientError as error:
                if not may_repeat(error, call.repeatable):
                    raise
                time.sleep(patience.pause(error, time.monotonic()))

    def _once(self, call: Call[T]) -> T:
        try:
            response = self._http.request(call.method, call.path, params=call.params, json=call.body)
        except httpx2.TransportError as error:
            raise lost(error, self.address) from error
        return call.read(response.status_code, response.headers, response.content)

    def _follow(self, following: Following, timeout_s: float | None = None) -> Generator[StreamEvent]:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        patience = Patience(self._patience_s)
        while not following.ended:
            try:
                yield from self._connection(following, patience, deadline)
            except TransientError as error:
                if _is_over(deadline):
                    return
                pause_s = patience.pause(error, time.monotonic(), following.retry_s)
                log.warning("the stream was lost; trying again", extra={"error": str(error)})
                time.sleep(pause_s if deadline is None else max(0.0, min(pause_s, deadline - time.monotonic())))

    def _connection(self, following: Following, patience: Patience, deadline: float | None) -> Generator[StreamEvent]:
        """The events of one connection. It raises when the connection ends before the stream does."""
        left_s = None if deadline is None else max(deadline - time.monotonic(), 0.001)
        try:
            with (
                self._http.stream(
                    "GET", following.path, params=following.params, timeout=stream_timeout(left_s)
                ) as response,
                cut_off(response, left_s),
            ):
                if response.status_code == 204:
                    yield following.gone()
                    return
                if response.status_code != 200:
                    raise problem(response.status_code, response.headers, response.read())
                patience.reset()
                for frame in httpx2.EventSource(response, EVENT_MAX_BYTES):
                    event = following.take(frame)
                    if event is not None:
                        yield event
                    if following.ended:
                        return
        except httpx2.TransportError as error:
            raise lost(error, self.address) from error
        raise GatewayUnreachable(f"the stream from {self.address.url} has ended", sent=True)


def _is_over(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() >= deadline


@contextmanager
def cut_off(response: httpx2.Response, left_s: float | None) -> Iterator[None]:
    """End the connection at the deadline: the library's timeouts start again with every heartbeat."""
    if left_s is None:
        yield
        return
    socket = response.extensions["network_stream"].get_extra_info("socket")
    timer = threading.Timer(left_s, _shut, (socket,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def _shut(socket: Any) -> None:
    try:
        socket.shutdown(sockets.SHUT_RDWR)
    except OSError:  # it was closed at the same moment
        log.debug("the stream had ended already")
