"""The client and the report of `make bench-peers`."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bench.peers.__main__ import AFTER_KILL, Result, table
from bench.peers.contestants import CONTESTANTS, AgentsSdk
from bench.peers.environments import REQUIREMENTS
from bench.peers.http_client import Disconnected, Frame, HttpClient, Refused
from bench.peers.processes import cpu_s_of, resident_mb_of, tree_of

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"

WITH_A_CHILD = """
import subprocess, sys
child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
print(child.pid, flush=True)
sys.stdin.read()
child.stdin.close()
child.wait()
"""


@asynccontextmanager
async def answering(*pieces: bytes) -> AsyncIterator[HttpClient]:
    """A server that sends these pieces one by one, then closes the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield HttpClient(server.sockets[0].getsockname()[1])


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def test_frames_that_are_split_anywhere_and_end_in_either_line_break_arrive_whole() -> None:
    sent = b"event: a\r\nid: 7\r\ndata: 1\r\n\r\n: heartbeat\n\ndata: 2\n\n"
    async with answering(HEAD, *(chunk(sent[n : n + 1]) for n in range(len(sent))), chunk(b"")) as client:
        frames = [frame async for frame in client.events("GET", "/")]

    assert frames == [Frame("a", "1", "7"), Frame("message", "2")]


async def test_a_stream_that_is_cut_off_is_not_taken_for_a_complete_one() -> None:
    async with answering(HEAD, chunk(b"data: 1\n\n")) as client:
        frames = client.events("GET", "/")

        assert (await anext(frames)).data == "1"
        with pytest.raises(Disconnected):
            await anext(frames)


async def test_a_server_that_does_not_listen_and_one_that_refuses_are_two_errors() -> None:
    async with answering(b"HTTP/1.1 500 Oh\r\ncontent-length: 2\r\n\r\nno") as client:
        with pytest.raises(Refused, match="500 oh no"):
            await client.json("GET", "/")
    with pytest.raises(Disconnected):
        await client.json("GET", "/")


def test_figures_are_medians_and_counts_after_a_kill_are_sums() -> None:
    result = Result(AgentsSdk)
    for speed, twice, recovery in ((1.0, 2, 3.0), (9.0, 3, math.nan), (2.0, 0, 4.0)):
        result.add({"runs_per_s": speed, "tool_calls_twice": twice, "recovery_s": recovery})

    assert (result.value("runs_per_s"), result.value("tool_calls_twice")) == (2.0, 5)
    assert result.value("recovery_s") is None  # in one turn not all runs recovered
    assert result.value("tokens_per_s") is None
    assert "—" in table([result], AFTER_KILL)


def test_every_contestant_has_a_name_of_its_own_and_pinned_requirements() -> None:
    assert len({contestant.name for contestant in CONTESTANTS}) == len(CONTESTANTS)
    for contestant in CONTESTANTS:
        if contestant.environment is not None:
            lines = (REQUIREMENTS / f"{contestant.environment}.txt").read_text().split()
            assert lines
            assert all("==" in line for line in lines), contestant.name


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_tree_of_processes_includes_children_and_their_use() -> None:
    with subprocess.Popen([sys.executable, "-c", WITH_A_CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())

        assert tree_of([child.pid]) >= {child.pid, grandchild}
        assert cpu_s_of([child.pid]) >= cpu_s_of([grandchild])
        assert resident_mb_of([child.pid]) > resident_mb_of([grandchild]) > 0
        child.stdin.close()
