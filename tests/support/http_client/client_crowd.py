"""Clients of the gateways of a service: one sender and many followers per conversation."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from types import TracebackType
from typing import Self

from magent2.bus.operations import Describe
from tests.support.audit import whole_log
from tests.support.audited_lane import call_with_retry
from tests.support.http_client.audit import stream_findings
from tests.support.http_client.clients import Follower, PackageClient, PlainClient, ResilientClient, new_envelope_id
from tests.support.http_client.service import TOKEN, Service
from tests.support.waiting import eventually
from tests.support.worker_fixture import until

ALL_THERE_DEADLINE_S = 60.0
LATE_AFTER = 2  # messages; late followers start after them


class ClientCrowd:
    """Sends when the test allows it, and follows all the time. It runs on an event loop; faults come from a thread."""

    def __init__(self, service: Service) -> None:
        self.happened: Counter[str] = Counter()
        self.followers: list[Follower] = []
        self._service = service
        self._loop = asyncio.get_running_loop()
        self._sends_allowed = asyncio.Semaphore(0)
        self._under_way = 0
        self._clients: list[ResilientClient] = []
        self._listening: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._listening:
            task.cancel()
        ends = await asyncio.gather(*self._listening, return_exceptions=True)
        for client in self._clients:
            await client.aclose()
        for end in ends:
            if isinstance(end, Exception):
                raise end

    def _new_client(self) -> ResilientClient:
        """Every second client is the package's own. Both kinds start at each gateway in turn."""
        kind, turn = len(self._clients) % 2, len(self._clients) // 2
        addresses = self._service.addresses
        first = turn % len(addresses)
        client: ResilientClient = (
            PackageClient(addresses[first], TOKEN)
            if kind
            else PlainClient([*addresses[first:], *addresses[:first]], TOKEN, self.happened)
        )
        self._clients.append(client)
        return client

    # --- on the loop

    def listen(self, conversation: str, since: int | None = None) -> Follower:
        follower = Follower(conversation, self._new_client(), since)
        self.followers.append(follower)
        self._listening.append(asyncio.create_task(follower.run()))
        return follower

    async def talk(self, conversation: str, texts: Sequence[str], late: int = 0) -> None:
        """Send messages one after the other, each when it is allowed; `late` followers join in between."""
        client = self._new_client()
        for number, text in enumerate(texts, start=1):
            await self._sends_allowed.acquire()
            envelope_id = new_envelope_id()
            self._under_way += 1
            seq = await client.send(conversation, envelope_id, text)
            self._under_way -= 1
            self._service.accept(conversation, envelope_id, text, seq)
            if number == LATE_AFTER:
                for _ in range(late):
                    self.listen(conversation, seq)

    async def hear_all(self) -> None:
        """Wait until every follower has come to the end of its log."""
        await until(lambda: not self._behind(), ALL_THERE_DEADLINE_S)

    def _behind(self) -> list[str]:
        ends = {conversation: self._last(conversation) for conversation in self._service.sent}
        return [
            f"{follower.conversation}: {follower.cursor} of {ends[follower.conversation]}"
            for follower in self.followers
            if follower.cursor < ends[follower.conversation]
        ]

    def _last(self, conversation: str) -> int:
        (info,) = call_with_retry(self._service.engine, Describe((f"stream:{conversation}",)))
        return info.last

    # --- for the thread that injects faults

    def let_send(self, count: int) -> None:
        """Allow this many messages, and return while some are being sent."""
        before = self._service.posted()
        for _ in range(count):
            self._loop.call_soon_threadsafe(self._sends_allowed.release)
        eventually(lambda: self._under_way or self._service.posted() > before)

    def let_arrive(self, count: int) -> None:
        """Allow this many messages, and return when the first is accepted."""
        before = self._service.posted()
        self.let_send(count)
        eventually(lambda: self._service.posted() > before, ALL_THERE_DEADLINE_S)

    # --- the audit

    def findings(self) -> list[str]:
        return [
            f"{type(follower.client).__name__} of {follower.conversation}: {finding}"
            for follower in self.followers
            for finding in stream_findings(
                whole_log(self._service.engine, f"stream:{follower.conversation}"), follower.seen, follower.since or 0
            )
        ]

    def landed(self) -> int:
        """Count messages that were in the log before their sender repeated them."""
        retried = {
            envelope_id: moment
            for client in self._clients
            if isinstance(client, PlainClient)
            for envelope_id, moment in client.retried.items()
        }
        return sum(
            record.payload["event"] == "user_message"
            and record.payload["message_id"] in retried
            and datetime.fromisoformat(record.payload["created_at"]) < retried[record.payload["message_id"]]
            for conversation in self._service.sent
            for record in whole_log(self._service.engine, f"stream:{conversation}")
        )
