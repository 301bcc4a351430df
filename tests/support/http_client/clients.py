"""Clients that retry: they send until a message is accepted, and reconnect when a stream is cut.

Two kinds, which must see the same: the package's own client, and a plain one like a browser's `EventSource`.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import cycle
from typing import Protocol

import httpx2

from magent2.client import AsyncClient
from tests.support.http_client.audit import SeenEvent
from tests.support.worker_fixture import AGENT

PAUSE_S = 0.05
SILENCE_MAX_S = 30.0
PATIENCE_S = 120.0
SENDER = "user:ann"
TRY_AGAIN = {429, *range(500, 600)}


class ResilientClient(Protocol):
    """A client that sends and follows."""

    async def send(self, conversation: str, envelope_id: str, text: str) -> int: ...

    def follow(self, conversation: str, since: int | None) -> AsyncGenerator[SeenEvent]: ...

    async def aclose(self) -> None: ...


class PackageClient:
    """`magent2.client.AsyncClient`, at one gateway."""

    def __init__(self, address: str, token: str) -> None:
        self._client = AsyncClient(address, token, patience_s=PATIENCE_S)

    async def send(self, conversation: str, envelope_id: str, text: str) -> int:
        sent = await self._client.send(
            AGENT, text, conversation_id=conversation, sender=SENDER, envelope_id=envelope_id
        )
        return sent.seq

    async def follow(self, conversation: str, since: int | None) -> AsyncGenerator[SeenEvent]:
        async with aclosing(self._client.follow(conversation, since)) as events:
            async for event in events:
                yield SeenEvent(event.seq, event.kind, event.data)

    async def aclose(self) -> None:
        await self._client.aclose()


class PlainClient:
    """Switches gateways on errors, and resumes with `Last-Event-ID` as a browser does."""

    def __init__(self, addresses: Sequence[str], token: str, happened: Counter[str]) -> None:
        """Start at the first address."""
        self.retried: dict[str, datetime] = {}  # when a message was sent for the second time
        self._places: Iterator[str] = cycle(addresses)
        self._place = next(self._places)
        self._happened = happened
        self._http = httpx2.AsyncClient(
            headers={"Authorization": f"Bearer {token}"},
            timeout=SILENCE_MAX_S,
            limits=httpx2.Limits(max_connections=None),
            trust_env=False,
        )

    async def send(self, conversation: str, envelope_id: str, text: str) -> int:
        body = {
            "id": envelope_id,
            "conversation_id": conversation,
            "sender": SENDER,
            "recipient": f"agent:{AGENT}",
            "content": text,
        }
        while (seq := await self._try(body)) is None:
            await self._go_elsewhere()
            self._happened["retried sends"] += 1
            self.retried.setdefault(envelope_id, datetime.now(UTC))
        return seq

    async def _try(self, body: dict[str, str]) -> int | None:
        """Send once; return the seq, or `None` if the message must be sent again."""
        try:
            response = await self._http.post(f"{self._place}/send", json=body)
        except httpx2.ConnectError:
            return None
        except httpx2.TransportError:
            self._happened["lost answers"] += 1
            return None
        if response.status_code in TRY_AGAIN:
            self._happened[f"answers {response.status_code}"] += 1
            return None
        assert response.status_code == 200, response.text
        seq: int = response.json()["seq"]
        return seq

    async def follow(self, conversation: str, since: int | None) -> AsyncGenerator[SeenEvent]:
        frames = Frames(None if since is None else str(since))
        while True:
            try:
                async with aclosing(self._connection(conversation, frames)) as events:
                    async for event in events:
                        yield event
            except httpx2.ConnectError:
                self._happened["closed doors"] += 1
            except httpx2.TransportError:
                self._happened["cut streams"] += 1
            await self._go_elsewhere()

    async def _connection(self, conversation: str, frames: Frames) -> AsyncGenerator[SeenEvent]:
        frames.forget_half()
        headers = {} if frames.last_id is None else {"Last-Event-ID": frames.last_id}
        async with self._http.stream("GET", f"{self._place}/stream/{conversation}", headers=headers) as response:
            if response.status_code in TRY_AGAIN:
                return
            assert response.status_code == 200, response.status_code
            self._happened["resumed streams"] += frames.last_id is not None
            async for line in response.aiter_lines():
                event = frames.take(line)
                if event is not None:
                    yield event

    async def _go_elsewhere(self) -> None:
        self._place = next(self._places)
        await asyncio.sleep(PAUSE_S)

    async def aclose(self) -> None:
        await self._http.aclose()


@dataclass(slots=True)
class Frames:
    """Reads server-sent events line by line. `last_id` moves with whole events only."""

    last_id: str | None = None
    _fields: dict[str, str] = field(default_factory=dict)

    def forget_half(self) -> None:
        self._fields = {}

    def take(self, line: str) -> SeenEvent | None:
        """Return the event that this line completes, if any; `end` is not an event of the log."""
        name, _, value = line.partition(":")
        if line:
            self._fields[name] = value.removeprefix(" ")
            return None
        fields, self._fields = self._fields, {}
        self.last_id = fields.get("id", self.last_id)
        if "data" not in fields or fields.get("event") == "end":
            return None
        return SeenEvent(int(self.last_id or 0), fields.get("event", ""), json.loads(fields["data"]))


@dataclass(slots=True)
class Follower:
    """Follows a conversation and records its events."""

    conversation: str
    client: ResilientClient
    since: int | None = None
    seen: list[SeenEvent] = field(default_factory=list)

    async def run(self) -> None:
        async with aclosing(self.client.follow(self.conversation, self.since)) as events:
            async for event in events:
                self.seen.append(event)

    @property
    def cursor(self) -> int:
        return self.seen[-1].seq if self.seen else self.since or 0


def new_envelope_id() -> str:
    return str(uuid.uuid4())
