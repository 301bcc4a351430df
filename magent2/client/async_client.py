"""The client for asyncio. `make sync-client` generates `sync_client.py` from this file."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import date, datetime
from types import TracebackType
from typing import Literal, Self, TypeVar, overload

import httpx2

from magent2.client import api_requests
from magent2.client.api_requests import ApiRequest, problem
from magent2.client.results import (
    AsyncApprovalCallback,
    ConversationEvent,
    Decision,
    EventPage,
    MessageReply,
    SentMessage,
    SteeredMessage,
    ToolResult,
)
from magent2.client.streams import REPLY_KINDS, ReplyMatcher, StreamCursor, approval_needed
from magent2.client.structured import ModelT, parse_output, with_output_schema
from magent2.client.transport import (
    EVENT_MAX_BYTES,
    LONG_POLL_S,
    PATIENCE_S,
    Backoff,
    Deadline,
    GatewayAddress,
    async_shut_down_at,
    connection_lost,
    http_options,
    may_repeat,
)
from magent2.client.uploads import FileSource, async_pieces
from magent2.errors import AnswerPending, Conflict, GatewayUnreachable, NotFound, TransientError
from magent2.models.api.administration import AgentInfo, DeadLetterPage, DeadLettersResponse
from magent2.models.api.files import FileInfo, FileList
from magent2.models.api.messages import ApprovalInfo, MessageReceipt, WhenBusy
from magent2.models.api.schedules import Missed, ScheduleDetail, ScheduleList
from magent2.models.api.sessions import Conversation, ConversationPage, StopResponse
from magent2.models.api.usage import BudgetInfo, BudgetList, UsageReportInfo
from magent2.models.api.webhooks import WebhookDelivery, WebhookInfo, WebhookScope
from magent2.models.budgets import BudgetKind
from magent2.models.webhook_events import WebhookEvent

log = logging.getLogger(__name__)

T = TypeVar("T")


class AsyncClient:
    """Client of a gateway for asyncio. Tasks may share one instance.

    Lost requests and streams are retried for up to `patience_s` seconds. A message keeps its id over all attempts, so
    it is accepted once. A stream resumes after its last event. Errors are in `magent2.errors`: `GatewayProblem` is an
    error response of the gateway, `GatewayUnreachable` means that there was no response.
    """

    def __init__(self, url: str | None = None, token: str | None = None, *, patience_s: float = PATIENCE_S) -> None:
        self.address = GatewayAddress.find(url, token)
        self._patience_s = patience_s
        self._http = httpx2.AsyncClient(**http_options(self.address))  # type: ignore[arg-type]

    # --- messages

    async def send(
        self,
        recipient: str,
        text: str,
        *,
        conversation_id: str | None = None,
        sender: str | None = None,
        envelope_id: str | None = None,
        metadata: Mapping[str, object] | None = None,
        when_busy: WhenBusy = "queue",
        files: Iterable[FileSource | FileInfo] = (),
    ) -> SentMessage:
        """Send a message to an agent (`Bob`, `agent:Bob`) or to a conversation (`chat:c1`).

        `when_busy` says what to do while another message of the conversation waits or is being answered: wait for its
        end (`queue`), join its run (`steer`), stop its run first (`interrupt`), or raise `Conflict` with the code
        `busy` and change nothing (`reject`).
        `files` are attached to it: each is a path, or a name and bytes, which are uploaded first, or a file that
        `upload` returned. With a file, the text may be empty.
        """
        file_ids = [one.file_id if isinstance(one, FileInfo) else (await self.upload(one)).file_id for one in files]
        return await self._request(
            api_requests.send(recipient, text, conversation_id, sender, envelope_id, metadata, when_busy, file_ids)
        )

    async def upload(self, source: FileSource) -> FileInfo:
        """Upload a file: a path, or a name and bytes. It can be attached to any number of messages."""
        return await self._request(api_requests.upload(source))

    async def files(self, limit: int = 50, before: str | None = None) -> FileList:
        """Return a page of uploaded files, newest first. Pass `next` of the last page as `before`."""
        return await self._request(api_requests.files(limit, before))

    async def download(self, file_id: str) -> bytes:
        """Return the content of a file."""
        return await self._request(api_requests.download(file_id))

    async def delete_file(self, file_id: str) -> None:
        """Delete a file. Messages that had it keep its name."""
        await self._request(api_requests.delete_file(file_id))

    # --- schedules

    async def create_schedule(  # noqa: PLR0913  one parameter per field
        self,
        text: str,
        *,
        session_id: str | None = None,
        agent: str | None = None,
        at: datetime | str | None = None,
        in_: float | str | None = None,
        cron: str | None = None,
        timezone: str | None = None,
        missed: Missed = "once",
        when_busy: WhenBusy = "queue",
        until: datetime | str | None = None,
        max_runs: int | None = None,
        schedule_id: str | None = None,
    ) -> ScheduleDetail:
        """Create a schedule that sends a message to a session, or to an agent in a session of its own.

        Exactly one of `at` (an instant), `in_` (seconds, or a text such as `"15m"`) and `cron` (five fields, in
        `timezone`) says when. `missed` is what to do with slots for which no worker was there in time.
        """
        when = {"at": at, "in": in_, "cron": cron, "timezone": timezone, "until": until}
        return await self._request(
            api_requests.create_schedule(text, session_id, agent, when, missed, when_busy, max_runs, schedule_id)
        )

    async def schedules(
        self, *, session_id: str | None = None, limit: int = 50, before: str | None = None, owner: str | None = None
    ) -> ScheduleList:
        """Return a page of schedules, most recently changed first. Pass `next` of the last page as `before`."""
        return await self._request(api_requests.schedules(session_id, limit, before, owner))

    async def schedule(self, schedule_id: str) -> ScheduleDetail:
        """Return a schedule with its text and its last slots."""
        return await self._request(api_requests.schedule(schedule_id))

    async def pause_schedule(self, schedule_id: str) -> ScheduleDetail:
        """Pause a schedule. Slots until it is resumed are not sent, now or later."""
        return await self._request(api_requests.change_schedule(schedule_id, "pause"))

    async def resume_schedule(self, schedule_id: str) -> ScheduleDetail:
        """Resume a paused schedule, with its next slot."""
        return await self._request(api_requests.change_schedule(schedule_id, "resume"))

    async def run_schedule(self, schedule_id: str, *, client_message_id: str | None = None) -> SentMessage:
        """Send the message of a schedule now. Its slots stay as they are."""
        return await self._request(api_requests.run_schedule(schedule_id, client_message_id))

    async def delete_schedule(self, schedule_id: str) -> None:
        """Delete a schedule. Messages that it has sent stay."""
        await self._request(api_requests.delete_schedule(schedule_id))

    async def wait(
        self, sent: SentMessage, timeout_s: float | None = None, *, on_approval: AsyncApprovalCallback | None = None
    ) -> MessageReply:
        """Wait for the reply to a message.

        `on_approval` is called with each tool call of the run that waits for approval. It returns `approve`, `reject`
        or `None`, which leaves the decision to another person. Without it, such a call raises `ApprovalNeeded`.
        Raises `RunFailed` or `RunStopped` if the run ended without a reply, `AnswerPending` if the timeout ended first.
        """
        matcher = ReplyMatcher(sent)
        cursor = StreamCursor(sent.conversation_id, sent.seq, REPLY_KINDS)
        async with aclosing(self._read_stream(cursor, Deadline(timeout_s))) as events:
            async for event in events:
                if (reply := matcher.reply(event)) is not None:
                    return reply
                if matcher.requests_approval(event):
                    await self._request_decision(sent.conversation_id, event, on_approval)
        raise AnswerPending(
            f"no reply to {sent.envelope_id} yet; the run goes on, follow it with 'magent2 tail {sent.conversation_id}'"
        )

    async def _request_decision(
        self, conversation_id: str, event: ConversationEvent, on_approval: AsyncApprovalCallback | None
    ) -> None:
        """Have the call of an `approval` event decided. Does nothing if it was decided since the event."""
        found = await self.approvals(conversation_id)
        pending = [one for one in found if one.status == "pending" and one.run_id == event.data.get("run_id")]
        call = next((one for one in pending if one.call_id == event.data.get("tool_call_id")), None)
        if call is None:
            return
        if on_approval is None:
            raise approval_needed(pending)
        decision = await on_approval(call)
        if decision is None:
            return
        try:
            await self.decide(conversation_id, call.call_id, decision)
        except (Conflict, NotFound) as error:  # another person decided first, or the run was stopped
            log.info("the decision came too late", extra={"call_id": call.call_id, "error": str(error)})

    @overload
    async def ask(
        self,
        recipient: str,
        text: str,
        *,
        conversation_id: str | None = None,
        sender: str | None = None,
        envelope_id: str | None = None,
        metadata: Mapping[str, object] | None = None,
        when_busy: WhenBusy = "queue",
        files: Iterable[FileSource | FileInfo] = (),
        schema: None = None,
        timeout_s: float | None = None,
        on_approval: AsyncApprovalCallback | None = None,
    ) -> MessageReply: ...

    @overload
    async def ask(
        self,
        recipient: str,
        text: str,
        *,
        conversation_id: str | None = None,
        sender: str | None = None,
        envelope_id: str | None = None,
        metadata: Mapping[str, object] | None = None,
        when_busy: WhenBusy = "queue",
        files: Iterable[FileSource | FileInfo] = (),
        schema: type[ModelT],
        timeout_s: float | None = None,
        on_approval: AsyncApprovalCallback | None = None,
    ) -> ModelT: ...

    async def ask(  # noqa: PLR0913  one parameter per option
        self,
        recipient: str,
        text: str,
        *,
        conversation_id: str | None = None,
        sender: str | None = None,
        envelope_id: str | None = None,
        metadata: Mapping[str, object] | None = None,
        when_busy: WhenBusy = "queue",
        files: Iterable[FileSource | FileInfo] = (),
        schema: type[ModelT] | None = None,
        timeout_s: float | None = None,
        on_approval: AsyncApprovalCallback | None = None,
    ) -> MessageReply | ModelT:
        """Send a message and wait for the reply. See `send` and `wait`.

        With `schema`, a pydantic model, the answer has to match its JSON schema and is returned as an instance of it.
        Raises `OutputMismatch` if it does not pass the validators of the model, which only the client knows.
        """
        sent = await self.send(
            recipient,
            text,
            conversation_id=conversation_id,
            sender=sender,
            envelope_id=envelope_id,
            metadata=metadata if schema is None else with_output_schema(metadata, schema),
            when_busy=when_busy,
            files=files,
        )
        reply = await self.wait(sent, timeout_s, on_approval=on_approval)
        return reply if schema is None else parse_output(schema, reply.text)

    async def replies(self, sent: SentMessage) -> AsyncGenerator[ConversationEvent]:
        """Iterate over the events of the run that answers a message, up to its reply.

        Raises as `wait` does, but yields the `approval` event of a call that waits and goes on.
        """
        matcher = ReplyMatcher(sent)
        async with aclosing(self._read_stream(StreamCursor(sent.conversation_id, sent.seq), Deadline())) as events:
            async for event in events:
                reply = matcher.reply(event)
                if matcher.matches(event):
                    yield event
                if reply is not None:
                    return

    def follow(
        self, conversation_id: str, since: int | None = None, kinds: Iterable[str] | None = None
    ) -> AsyncGenerator[ConversationEvent]:
        """Iterate over all events after `since`, in order and each once, over as many connections as needed.

        Without `since` it starts at the oldest event. It ends with an `end` event when the conversation is deleted or
        the token is revoked. A `gap` event says that retention removed events that were not read yet.
        """
        return self._read_stream(StreamCursor(conversation_id, since, kinds), Deadline())

    async def stop(self, conversation_id: str, agent: str | None = None, sender: str | None = None) -> StopResponse:
        """Stop the run of an agent: of the conversation's active agent, if none is named."""
        return await self._request(api_requests.stop(conversation_id, agent, sender))

    async def steer(
        self,
        conversation_id: str,
        text: str,
        *,
        target: str | None = None,
        require_active: bool = False,
        client_message_id: str | None = None,
    ) -> SteeredMessage:
        """Send a message to the runs in progress, or to the run of the agent `target`. See `seen` and `receipt`."""
        return await self._request(api_requests.steer(conversation_id, text, target, require_active, client_message_id))

    async def regenerate(self, conversation_id: str, *, client_message_id: str | None = None) -> SentMessage:
        """Have the last message answered again, in place of its answer. Pass the result to `wait` or `replies`.

        Raises `Conflict` with the code `busy` while a message waits or is being answered.
        """
        return await self._request(api_requests.regenerate(conversation_id, client_message_id))

    async def edit(
        self, conversation_id: str, message_id: str | None, text: str, *, client_message_id: str | None = None
    ) -> SentMessage:
        """Replace the last message of a person by another text and have that answered. See `regenerate`.

        If another message than `message_id` is the last, nothing is replaced. `None` is whichever is the last.
        """
        return await self._request(api_requests.edit(conversation_id, message_id, text, client_message_id))

    async def receipt(self, conversation_id: str, receipt_id: str, wait_s: float = 0.0) -> MessageReceipt:
        """Return the status of a message. Waits up to `wait_s` seconds until an agent has seen it."""
        return await self._request(api_requests.receipt(conversation_id, receipt_id, wait_s))

    async def seen(self, steered: SteeredMessage, timeout_s: float | None = None) -> MessageReceipt:
        """Wait until an agent has seen a message to runs in progress. Raises `AnswerPending` after the timeout."""
        deadline = Deadline(timeout_s)
        while True:
            found = await self.receipt(steered.conversation_id, steered.receipt_id, deadline.limit(LONG_POLL_S))
            if found.status != "accepted":
                return found
            if deadline.is_over:
                raise AnswerPending(f"no agent has seen {steered.receipt_id} yet; the message waits")

    async def approvals(self, conversation_id: str | None = None) -> tuple[ApprovalInfo, ...]:
        """Return the tool calls of a conversation that need or needed approval, oldest first.

        Without a conversation, return the calls of all conversations that wait for approval now.
        """
        if conversation_id is not None:
            return await self._request(api_requests.approvals(conversation_id))
        found: list[ApprovalInfo] = []
        page = await self._request(api_requests.pending_approvals(None))
        while page.next is not None:
            found += page.approvals
            page = await self._request(api_requests.pending_approvals(page.next))
        return (*found, *page.approvals)

    async def decide(
        self, conversation_id: str, call_id: str, decision: Decision, reason: str | None = None
    ) -> ApprovalInfo:
        """Approve or reject a tool call. Raises `Conflict` if the opposite was decided before."""
        return await self._request(api_requests.decide(conversation_id, call_id, decision, reason))

    async def run_tool(
        self, session_id: str, tool: str, args: Mapping[str, object], *, timeout_s: float | None = None
    ) -> ToolResult:
        """Run a tool of the conversation's agent without a model, and wait for its result."""
        started = await self._request(api_requests.run_tool(session_id, tool, args))
        if isinstance(started, ToolResult):
            return started
        return ToolResult(session_id, tool, "", (await self.wait(started, timeout_s)).text)

    # --- conversations

    async def create_session(self, session_id: str | None = None, agent: str | None = None) -> str:
        """Create a conversation with an active agent. Returns its id."""
        return await self._request(api_requests.create_session(session_id, agent))

    async def conversations(
        self, limit: int = 50, before: str | None = None, owner: str | None = None
    ) -> ConversationPage:
        """Return a page of conversations, most recently active first. Pass `next` of the last page as `before`."""
        return await self._request(api_requests.conversations(limit, before, owner))

    async def conversation(self, conversation_id: str) -> Conversation:
        """Return one conversation."""
        return await self._request(api_requests.conversation(conversation_id))

    async def events(self, conversation_id: str, since: int = 0, limit: int = 100) -> EventPage:
        """Return a page of recorded events. Pass `next_since` of the last page as `since`."""
        return await self._request(api_requests.events(conversation_id, since, limit))

    async def delete(self, conversation_id: str) -> None:
        """Delete a conversation permanently."""
        await self._request(api_requests.delete(conversation_id))

    # --- webhooks

    async def create_webhook(
        self,
        url: str,
        events: Sequence[WebhookEvent] | None = None,
        *,
        secret: str | None = None,
        secret_env: str | None = None,
        scope: WebhookScope | None = None,
        allow_private: bool = False,
    ) -> WebhookInfo:
        """Register a webhook. Without a secret the gateway makes one; only this result has it.

        It is told of the conversations that the caller owns. `secret_env`, `allow_private` and the scope `deployment`,
        all conversations, are for administrators; that scope is their default.
        """
        return await self._request(api_requests.create_webhook(url, events, secret, secret_env, scope, allow_private))

    async def webhooks(self, owner: str | None = None) -> tuple[WebhookInfo, ...]:
        """Return the caller's webhooks; for administrators all, or those of an owner."""
        return await self._request(api_requests.webhooks(owner))

    async def update_webhook(
        self,
        webhook_id: str,
        *,
        url: str | None = None,
        events: Sequence[WebhookEvent] | None = None,
        secret: str | None = None,
        rotate_secret: bool = False,
    ) -> WebhookInfo:
        """Change a webhook; what is not given stays. With `rotate_secret`, only this result has the new secret."""
        return await self._request(api_requests.update_webhook(webhook_id, url, events, secret, rotate_secret))

    async def delete_webhook(self, webhook_id: str) -> None:
        """Delete a webhook with its secret."""
        await self._request(api_requests.delete_webhook(webhook_id))

    async def test_webhook(self, webhook_id: str) -> WebhookDelivery:
        """Send a notification that tests a webhook. `webhook_deliveries` says what became of it."""
        return await self._request(api_requests.test_webhook(webhook_id))

    async def webhook_deliveries(self, webhook_id: str, state: str | None = None) -> tuple[WebhookDelivery, ...]:
        """Return the last 100 notifications of a webhook, oldest first."""
        return await self._request(api_requests.webhook_deliveries(webhook_id, state))

    async def retry_webhook_delivery(self, webhook_id: str, delivery_id: str) -> WebhookDelivery:
        """Send a notification again that is `dead` or `unknown`."""
        return await self._request(api_requests.retry_webhook_delivery(webhook_id, delivery_id))

    # --- administration

    async def usage(
        self,
        *by: str,
        since: date | None = None,
        until: date | None = None,
        user: str | None = None,
        conversation: str | None = None,
    ) -> UsageReportInfo:
        """Report what model calls have used, added up by `day`, `user`, `agent`, `model` or `conversation`.

        Without `since`, the last 30 days. The usage is your own; that of others needs the rights of an administrator.
        """
        return await self._request(api_requests.usage(by, since, until, user, conversation))

    async def budgets(self, conversation: str | None = None, user: str | None = None) -> BudgetList:
        """List your budgets, those of a conversation or user, and the runs that wait for more."""
        return await self._request(api_requests.budgets(conversation, user))

    async def set_budget(self, budget: BudgetKind, name: str = "", **limits: float | None) -> BudgetInfo:
        """Set a limit and let the runs go on that wait for it.

        `limits` are `tokens`, `calls` and `cost_usd`, at least one of them. One that is left out stays as it is, `None`
        removes it.
        """
        return await self._request(api_requests.set_budget(budget, name, limits))

    async def reset_budget(self, budget: BudgetKind, name: str = "") -> BudgetInfo:
        """Restore the limit of the configuration."""
        return await self._request(api_requests.reset_budget(budget, name))

    async def agents(self) -> tuple[AgentInfo, ...]:
        """Return all agents, with their workers and pending messages."""
        return await self._request(api_requests.agents())

    async def dead(self, agent: str | None = None, after: int | None = None) -> DeadLetterPage:
        """Return a page of dead letters, oldest first. Pass `next` of the last page as `after`."""
        return await self._request(api_requests.dead(agent, after))

    async def retry_dead(self, agent: str, seq: int) -> None:
        """Put a dead letter back into the agent's inbox."""
        await self._request(api_requests.retry_dead(agent, seq))

    async def drop_dead(self, agent: str, seq: int) -> None:
        """Remove a dead letter."""
        await self._request(api_requests.drop_dead(agent, seq))

    def retry_dead_letters(
        self,
        agent: str | None = None,
        since: datetime | None = None,
        reason: str | None = None,
        *,
        all_letters: bool = False,
        dry_run: bool = False,
    ) -> AsyncGenerator[DeadLettersResponse]:
        """Retry the dead letters that meet all of these conditions, batch by batch. With `dry_run`, only return them.

        `reason` is a text that the reason contains. `all_letters` is needed without a condition. Letters that are
        buried meanwhile are left out.
        """
        return self._process_dead("retry", agent, since, reason, all_letters, dry_run)

    def drop_dead_letters(
        self,
        agent: str | None = None,
        since: datetime | None = None,
        reason: str | None = None,
        *,
        all_letters: bool = False,
        dry_run: bool = False,
    ) -> AsyncGenerator[DeadLettersResponse]:
        """Remove the dead letters that meet all of these conditions, batch by batch. See `retry_dead_letters`."""
        return self._process_dead("drop", agent, since, reason, all_letters, dry_run)

    async def _process_dead(
        self,
        action: Literal["retry", "drop"],
        agent: str | None,
        since: datetime | None,
        reason: str | None,
        all_letters: bool,
        dry_run: bool,
    ) -> AsyncGenerator[DeadLettersResponse]:
        request = api_requests.process_dead(action, agent, since, reason, all_letters, dry_run)
        while True:
            batch = await self._request(request)
            yield batch
            if batch.next is None:
                return
            request = replace(request, body={**(request.body or {}), "after": batch.next})

    async def health(self) -> dict[str, object]:
        """Return the response of `/health`."""
        return await self._request(api_requests.health())

    async def ready(self) -> dict[str, object]:
        """Return the response of `/ready`."""
        return await self._request(api_requests.ready())

    async def aclose(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    # --- requests and streams over HTTP

    async def _request(self, request: ApiRequest[T]) -> T:
        """Send a request until there is a response, as far as it may be repeated."""
        backoff = Backoff(self._patience_s)
        while True:
            try:
                return await self._send_once(request)
            except TransientError as error:
                if not may_repeat(error, request.repeatable):
                    raise
                await asyncio.sleep(backoff.pause_s(error, time.monotonic()))

    async def _send_once(self, request: ApiRequest[T]) -> T:
        upload = request.upload
        try:
            response = await self._http.request(
                request.method,
                request.path,
                params=request.params,
                json=request.body,
                content=None if upload is None else async_pieces(upload),
                headers=None if upload is None else upload.headers,
            )
        except httpx2.TransportError as error:
            raise connection_lost(error, self.address) from error
        return request.read(response.status_code, response.headers, response.content)

    async def _read_stream(self, cursor: StreamCursor, deadline: Deadline) -> AsyncGenerator[ConversationEvent]:
        """Read a stream over as many connections as needed, up to its end or to the deadline."""
        backoff = Backoff(self._patience_s)
        while not cursor.ended:
            try:
                async with aclosing(self._read_connection(cursor, backoff, deadline)) as events:
                    async for event in events:
                        yield event
            except TransientError as error:
                if deadline.is_over:
                    return
                pause_s = backoff.pause_s(error, time.monotonic(), cursor.retry_s)
                log.warning("the stream was lost; trying again", extra={"error": str(error)})
                await asyncio.sleep(deadline.limit(pause_s))

    async def _read_connection(
        self, cursor: StreamCursor, backoff: Backoff, deadline: Deadline
    ) -> AsyncGenerator[ConversationEvent]:
        """Read one connection. Raises `GatewayUnreachable` if it ends before the stream does."""
        try:
            async with self._http.stream(
                "GET", cursor.path, params=cursor.params, timeout=deadline.stream_timeout()
            ) as response:
                with async_shut_down_at(response, deadline):
                    if response.status_code == 204:
                        yield cursor.end_deleted()
                        return
                    if response.status_code != 200:
                        raise problem(response.status_code, response.headers, await response.aread())
                    backoff.reset()
                    async for frame in httpx2.EventSource(response, EVENT_MAX_BYTES):
                        event = cursor.advance(frame)
                        if event is not None:
                            yield event
                        if cursor.ended:
                            return
        except httpx2.TransportError as error:
            raise connection_lost(error, self.address) from error
        raise GatewayUnreachable(f"the stream from {self.address.url} has ended", sent=True)
