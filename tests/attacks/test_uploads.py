"""Uploads that try to fill the memory or the disk of a gateway, or to keep it busy."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from magent2.bus.connect import connect
from magent2.bus.operations import SweepBlobs, Topics
from tests.support.files import PNG
from tests.support.gateway_process import MIB, TOKEN, RawClient, gateway_process
from tests.support.waiting import eventually

TOTAL_MIB = 2048
PIECE = b"x" * MIB
MEMORY_MAX_MIB = 100.0  # a gateway that kept what it receives would take 2 GB
DISK_MAX_MIB = 80.0  # one upload up to its limit, and the write-ahead log


def head(length: str) -> bytes:
    fields = f"host: localhost\r\nauthorization: Bearer {TOKEN}\r\ncontent-type: image/png\r\n{length}\r\n\r\n"
    return f"POST /api/files?name=a.png HTTP/1.1\r\n{fields}".encode()


def disk_mib(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file()) / MIB


def left_in(folder: Path) -> tuple[int, int]:
    """The number of files and uploads on the log, and of blobs that no record names."""
    with closing(connect(f"sqlite:///{folder / 'log.db'}")) as bus:
        return len(bus.call(Topics("file:")).topics), bus.call(SweepBlobs(0, dry_run=True))


def stream(client: RawClient, first: bytes, piece: bytes, look: Callable[[], None]) -> None:
    """Send up to 2 GB, as long as the other end takes it. A gateway discards for two seconds what it has refused."""
    client.send(first)
    for number in range(TOTAL_MIB):
        if not client.send(piece):
            return
        if number % 8 == 0:
            look()


@pytest.fixture(params=["declared", "chunked"])
def parts(request: pytest.FixtureRequest) -> Iterator[tuple[bytes, bytes]]:
    """The beginning of an upload of 2 GB, and the pieces that follow."""
    if request.param == "declared":
        yield head(f"content-length: {TOTAL_MIB * MIB}") + PNG, PIECE
    else:
        first = b"%x\r\n%b\r\n" % (len(PNG), PNG)
        yield head("transfer-encoding: chunked") + first, b"%x\r\n%b\r\n" % (MIB, PIECE)


def test_two_gigabytes_are_refused_without_filling_memory_or_disk(tmp_path: Path, parts: tuple[bytes, bytes]) -> None:
    with gateway_process(tmp_path) as gateway:
        before, peaks = gateway.memory_mib(), [0.0, 0.0]

        def look() -> None:
            peaks[0] = max(peaks[0], gateway.memory_mib() - before)
            peaks[1] = max(peaks[1], disk_mib(tmp_path))

        client = gateway.connect()
        stream(client, *parts, look)
        answer = client.answer()
        look()

        assert (answer.status, answer.code) == (413, "file_too_large")
        assert (peaks[0] < MEMORY_MAX_MIB, peaks[1] < DISK_MAX_MIB) == (True, True), peaks
        assert left_in(tmp_path) == (0, 0)
        assert gateway.health() == 200


def test_an_upload_that_is_cut_leaves_nothing(tmp_path: Path) -> None:
    with gateway_process(tmp_path) as gateway:
        for number in range(2):
            client = gateway.connect()
            client.send(head(f"content-length: {3 * MIB}") + PNG + PIECE + PIECE[:100])
            eventually(lambda: left_in(tmp_path)[0] == 1)
            if number == 0:
                client.plain.shutdown(socket.SHUT_WR)
            else:
                client.close()
            eventually(lambda: left_in(tmp_path) == (0, 0))

        assert gateway.health() == 200


def test_an_upload_that_drips_or_stops_is_ended_and_leaves_nothing(tmp_path: Path) -> None:
    with gateway_process(tmp_path, body_max_s=1, upload_max_s=2) as gateway:
        silent, dripping = gateway.connect(), gateway.connect()
        for client in (silent, dripping):
            client.send(head(f"content-length: {3 * MIB}") + PNG + PIECE)

        eventually(lambda: not dripping.send(b"x"))
        answer = silent.answer()

        assert (answer.status, answer.code) == (408, "body_too_slow")
        eventually(lambda: left_in(tmp_path) == (0, 0))
