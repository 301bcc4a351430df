"""A gateway on real sockets with misbehaving clients, networks and buses."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx2
import orjson
import pytest

from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Append
from magent2.bus.postgres import PostgresBus
from magent2.bus.records import NewRecord
from magent2.bus.redis_adapter import RedisBus
from magent2.gateway.access.auth import Access
from magent2.gateway.limits import GatewayLimits
from magent2.token import TokenFile
from tests.support.gateway import ServedGateway, last_id, message, parse_frames, serve_gateway
from tests.support.postgres_server import FAST, PostgresServer
from tests.support.redis_server import RedisServer, skip_if_left_out
from tests.support.waiting import DEADLINE_S
from tests.support.worker_fixture import until

TOKENS = 1100
SMALL_BUFFER_BYTES = 4096


@pytest.fixture
async def bus() -> AsyncIterator[MemoryBus]:
    bus = MemoryBus()
    yield bus
    await bus.aclose()


def publish(bus: MemoryBus, count: int, conversation: str = "one", text: str = "token") -> None:
    event = {"event": "token", "conversation_id": conversation, "text": text}
    bus.call(Append(records=tuple(NewRecord(f"stream:{conversation}", event) for _ in range(count))))


class RawConnection:
    """A connection that does just what it is told, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, port: int, buffer_bytes: int | None = None, *, first: str = "") -> RawConnection:
        """Connect, and send `first` before the gateway has accepted: the time that it gives a client has not begun."""
        plain = socket.socket()
        if buffer_bytes is not None:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        plain.connect(("127.0.0.1", port))
        plain.sendall(first.encode())
        plain.setblocking(False)
        return cls(*await asyncio.open_connection(sock=plain, limit=SMALL_BUFFER_BYTES))

    async def say(self, text: str) -> None:
        self.writer.write(text.encode())
        await self.writer.drain()

    async def ask(self, path: str, *headers: str, method: str = "GET") -> None:
        await self.say(request_head(path, *headers, method=method))

    async def read_until(self, mark: str) -> str:
        """All up to the mark."""
        heard = await asyncio.wait_for(self.reader.readuntil(mark.encode()), DEADLINE_S)
        return heard.decode()

    async def read_all(self) -> str:
        """All until the other end hangs up; a connection that was dropped has no more to say."""
        try:
            return (await asyncio.wait_for(self.reader.read(), DEADLINE_S)).decode()
        except ConnectionResetError:
            return ""

    def close(self) -> None:
        self.writer.transport.abort()


def request_head(path: str, *headers: str, method: str = "GET") -> str:
    lines = [f"{method} {path} HTTP/1.1", "host: localhost", *headers]
    return "\r\n".join(lines) + "\r\n\r\n"


async def resume_until(client: httpx2.AsyncClient, path: str, cursor: int, last: int) -> list[int]:
    """Read on after the cursor; the seqs up to the last."""
    seen: list[int] = []
    async with client.stream("GET", path, headers={"last-event-id": str(cursor)}) as answer:
        text = ""
        async for piece in answer.aiter_text():
            text += piece
            if (last_id(text.rpartition("\n\n")[0]) or 0) >= last:
                break
    seen += [event.id for event in parse_frames(text) if event.id is not None]
    return seen


# --- streams


async def test_a_slow_reader_is_cut_off_and_resumes_where_it_was_with_every_token_in_order(bus: MemoryBus) -> None:
    text = "x" * 4000  # more than the buffers of both ends hold
    async with serve_gateway(bus, limits=GatewayLimits(send_max_s=0.3)) as served:
        line = await RawConnection.open(served.port, SMALL_BUFFER_BYTES)
        await line.ask("/stream/one")
        await line.read_until("retry: 1000\n\n")
        for _ in range(TOKENS // 100):
            publish(bus, 100, text=text)
            await asyncio.sleep(0)

        await until(lambda: served.streams_open == 0)  # it has not read a byte for too long
        heard = await line.read_all()
        line.close()
        whole = heard.rpartition("\n\n")[0].replace("\r\n", "\n")
        first = [int(row[4:]) for row in whole.split("\n") if row.startswith("id: ")]
        # The last frame may have been cut; its id then came, but not its end.
        complete = first[:-1]

        assert 0 < len(complete) < TOKENS
        rest = await resume_until(served.client, "/stream/one", complete[-1], TOKENS)
        assert [*complete, *rest] == list(range(1, TOKENS + 1))


async def test_a_slow_reader_does_not_delay_others(bus: MemoryBus) -> None:
    async with serve_gateway(bus) as served:
        slow = await RawConnection.open(served.port, SMALL_BUFFER_BYTES)
        await slow.ask("/stream/one")
        await slow.read_until("retry: 1000\n\n")
        publish(bus, 1000, text="x" * 4000)

        assert await resume_until(served.client, "/stream/one", 0, 1000) == list(range(1, 1001))
        slow.close()


async def test_a_client_that_disconnects_frees_its_connection(bus: MemoryBus) -> None:
    async with serve_gateway(bus, limits=GatewayLimits(streams_max=1)) as served:
        line = await RawConnection.open(served.port)
        await line.ask("/stream/one")
        await line.read_until("retry: 1000\n\n")
        full = await served.client.get("/stream/one")
        assert (full.status_code, full.json()["code"]) == (503, "too_many_streams")

        line.close()

        await until(lambda: served.streams_open == 0)
        publish(bus, 1)
        assert await resume_until(served.client, "/stream/one", 0, 1) == [1]


async def test_quiet_streams_are_kept_alive_by_heartbeats(bus: MemoryBus) -> None:
    async with serve_gateway(bus, limits=GatewayLimits(heartbeat_s=0.1)) as served:
        line = await RawConnection.open(served.port)
        await line.ask("/stream/one")
        for _ in range(3):
            await line.read_until(": \n\n")
        line.close()


async def test_a_drain_ends_streams_by_name_and_the_server_stops(bus: MemoryBus) -> None:
    async with serve_gateway(bus) as served:
        lines = [await RawConnection.open(served.port) for _ in range(5)]
        for line in lines:
            await line.ask("/stream/one")
            await line.read_until("retry: 1000\n\n")

        served.gateway.drain()

        for line in lines:
            heard = await line.read_all()
            assert '"reason":"drain"' in heard
            assert heard.endswith("0\r\n\r\n")
            line.close()


async def test_a_new_token_ends_the_streams_of_the_old_one(bus: MemoryBus, tmp_path: Path) -> None:
    file = TokenFile.within(tmp_path)
    old = file.obtain()
    async with serve_gateway(bus, Access.by_file(file, loopback=True), GatewayLimits(heartbeat_s=0.3)) as served:
        line = await RawConnection.open(served.port)
        await line.ask("/stream/one", f"authorization: Bearer {old}")
        await line.read_until("retry: 1000\n\n")

        file.rotate()

        assert '"reason":"revoked"' in await line.read_until('"reason":"revoked"')
        line.close()
        refused = await served.client.get("/stream/one", headers={"authorization": f"Bearer {old}"})
        assert refused.status_code == 401


# --- connections


async def test_headers_that_arrive_too_slowly_are_refused(bus: MemoryBus) -> None:
    async with serve_gateway(bus, limits=GatewayLimits(headers_max_s=0.2)) as served:
        silent = await RawConnection.open(served.port)
        dripping = await RawConnection.open(served.port, first="GET /health HTTP/1.1\r\nhost: local")
        second = await RawConnection.open(served.port, first=request_head("/health"))
        await second.read_until('{"status":"ok"}')
        await second.say("GET /health HT")

        assert await silent.read_all() == ""
        for line in (dripping, second):
            heard = await line.read_all()
            assert heard.startswith("HTTP/1.1 408")
            assert '"code":"head_too_slow"' in heard
        other = await RawConnection.open(served.port, first=request_head("/health"))
        await other.read_until('{"status":"ok"}')
        for line in (silent, dripping, second, other):
            line.close()


async def test_a_body_that_arrives_too_slowly_is_refused(bus: MemoryBus) -> None:
    async with serve_gateway(bus, limits=GatewayLimits(body_max_s=0.2)) as served:
        head = request_head("/send", "content-type: application/json", "content-length: 500", method="POST")
        line = await RawConnection.open(served.port, first=head + '{"conversation')

        heard = await line.read_all()

        line.close()
        assert heard.startswith("HTTP/1.1 408")
        assert '"code":"body_too_slow"' in heard


@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_that_is_too_large_is_refused_before_it_is_all_there(bus: MemoryBus, declared: bool) -> None:
    async with serve_gateway(bus, limits=GatewayLimits(body_max_bytes=10_000)) as served:
        line = await RawConnection.open(served.port)
        length = "content-length: 50000000" if declared else "transfer-encoding: chunked"
        await line.ask("/send", "content-type: application/json", length, method="POST")
        if not declared:
            await line.say("4e20\r\n" + "x" * 20_000 + "\r\n")

        heard = await line.read_until("}")

        line.close()
        assert heard.startswith("HTTP/1.1 413")
        assert '"code":"too_large"' in heard


async def test_a_client_that_disconnects_within_its_body_does_not_affect_others(bus: MemoryBus) -> None:
    async with serve_gateway(bus) as served:
        for _ in range(5):
            line = await RawConnection.open(served.port)
            await line.ask("/send", "content-type: application/json", "content-length: 500", method="POST")
            await line.say('{"conversation')
            line.close()

        assert (await served.client.post("/send", json=message())).status_code == 200
        assert len(bus.read("chat:Ada")) == 1


@pytest.mark.parametrize("nonsense", ["\0\0\0\0", "GET\r\n\r\n", "HELLO WORLD\r\n\r\n", "GET / HTTP/9.9\r\n\r\n"])
async def test_what_is_not_http_is_refused(bus: MemoryBus, nonsense: str) -> None:
    async with serve_gateway(bus, limits=GatewayLimits(headers_max_s=1.0)) as served:
        line = await RawConnection.open(served.port, first=nonsense)

        heard = await line.read_all()

        line.close()
        assert heard.startswith("HTTP/1.1 400")
        assert '"code":"bad_request"' in heard
        assert (await served.client.get("/health")).status_code == 200


async def test_more_connections_than_allowed_are_refused_with_an_error(bus: MemoryBus) -> None:
    limit = 50
    async with serve_gateway(bus, limits=GatewayLimits(connections_max=limit)) as served:
        lines = [await RawConnection.open(served.port) for _ in range(limit)]
        for line in lines:
            await line.ask("/health")
            await line.read_until('{"status":"ok"}')

        for _ in range(100):
            refused = await RawConnection.open(served.port, first=request_head("/api/me"))
            heard = await refused.read_all()
            refused.close()
            assert heard.startswith("HTTP/1.1 503")
            assert "retry-after: 1" in heard
            assert orjson.loads(heard.partition("\r\n\r\n")[2])["code"] == "too_many_connections"

        await lines[0].ask("/health")  # those who are in stay in
        await lines[0].read_until('{"status":"ok"}')
        for line in lines:
            line.close()
        await until(lambda: not served.gateway.connections)
        assert (await served.client.get("/health")).status_code == 200


# --- who is calling


async def test_a_wrong_token_a_foreign_host_and_a_foreign_origin_are_refused_on_the_wire(bus: MemoryBus) -> None:
    token = "0123456789abcdefghij"
    async with serve_gateway(bus, Access.by_token(token, loopback=True)) as served:
        bearer = {"authorization": f"Bearer {token}"}
        refusals = [
            ({}, 401),
            ({"authorization": "Bearer wrong"}, 401),
            ({**bearer, "host": "rebound.example"}, 421),
            ({**bearer, "origin": "http://evil.example"}, 403),
        ]
        for headers, status in refusals:
            answer = await served.client.post("/send", json=message(), headers=headers)
            assert answer.status_code == status
        assert bus.read("chat:Ada") == []
        own = {**bearer, "origin": served.url}
        assert (await served.client.post("/send", json=message(), headers=own)).status_code == 200


# --- the bus is away


@pytest.fixture(
    params=[pytest.param("redis", marks=pytest.mark.redis), pytest.param("postgres", marks=pytest.mark.postgres)]
)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisServer | PostgresServer]:
    """A server that keeps what it acknowledged."""
    if request.param == "postgres":
        with PostgresServer(FAST) as postgres:
            postgres.start()
            yield postgres
        return
    skip_if_left_out()
    redis = RedisServer(tmp_path, "--appendonly", "yes", "--appendfsync", "always", "--save", "")
    redis.start()
    yield redis
    redis.stop()


async def test_during_a_bus_outage_sends_fail_by_name_and_streams_resume_afterwards(
    server: RedisServer | PostgresServer,
) -> None:
    bus_type = RedisBus if isinstance(server, RedisServer) else PostgresBus
    bus = bus_type(server.url, retry_for_s=0.3)
    try:
        async with serve_gateway(bus, limits=GatewayLimits(heartbeat_s=0.2)) as served:
            await served.client.post("/send", json=message("before", id="m1"))
            line = await RawConnection.open(served.port)
            await line.ask("/stream/one")
            await line.read_until('"seq":1}\n\n')
            server.stop()

            away = await served.client.post("/send", json=message("meanwhile", id="m2"))
            stream = await served.client.get("/stream/one")
            ready = await served.client.get("/ready")
            await line.read_until(": \n\n")

            assert (away.status_code, away.json()["code"]) == (503, "bus_unavailable")
            assert stream.status_code == ready.status_code == 503
            server.start()
            await _send_until_taken(served, message("meanwhile", id="m2"))
            heard = await line.read_until('"seq":2}\n\n')
            assert "meanwhile" in heard
            line.close()
            assert await resume_until(served.client, "/stream/one", 0, 2) == [1, 2]
    finally:
        await bus.aclose()


@pytest.mark.redis
async def test_a_log_that_lost_what_it_had_shows_as_a_gap(tmp_path: Path) -> None:
    skip_if_left_out()
    server = RedisServer(tmp_path)  # it keeps nothing
    server.start()
    bus = RedisBus(server.url, retry_for_s=0.3)
    try:
        async with serve_gateway(bus) as served:
            for number in range(3):
                await served.client.post("/send", json=message(str(number)))
            line = await RawConnection.open(served.port)
            await line.ask("/stream/one")
            await line.read_until('"seq":3}\n\n')
            server.stop()
            server.start()

            await _send_until_taken(served, message("anew", id="m1"))

            heard = await line.read_until("anew")
            line.close()
            assert heard.index("event: gap") < heard.index("anew")
            assert '"cursor":"3"' in heard
    finally:
        await bus.aclose()
        server.stop()


async def _send_until_taken(served: ServedGateway, envelope: dict[str, object]) -> None:
    """As a client does that was told to try again."""
    for _ in range(50):
        answer = await served.client.post("/send", json=envelope)
        if answer.status_code == 200:
            return
        assert answer.status_code == 503
        await asyncio.sleep(0.1)
    pytest.fail("the send was never taken")
