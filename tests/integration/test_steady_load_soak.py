"""A gateway and a worker process under steady load, with the default retention: nothing grows after the warm-up.

Half of the users delete each conversation after a few messages. The others keep theirs, whose messages stay by design:
what is left of them is counted apart, and only their tokens must go.

Prints one line per minute: `make soak ARGS="-s tests/integration/test_steady_load_soak.py"`. `STEADY_MINUTES` shortens
it. The tokens of a conversation stay for ten minutes, so a shorter run needs shorter times of `MAGENT2_RETENTION_…`.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path

import pytest

from magent2.bus.sqlite_engine.connection import SEQ_BITS
from magent2.client import AsyncClient
from tests.support.ports import quiet_port
from tests.support.waiting import until

pytestmark = [pytest.mark.soak, pytest.mark.no_cover]

MINUTES = int(os.environ.get("STEADY_MINUTES", "30"))
SAMPLE_EVERY_S = 60.0
# Tokens stay for ten minutes, and a sweep comes every five. After twenty minutes of thirty, the oldest ones go as
# fast as new ones come.
WARM_UP_MINUTES = MINUTES * 2 // 3
USERS = 20
KEPT = "kept-"  # begins the names of conversations that are not deleted
MESSAGES_PER_CONVERSATION = 5
WORDS = " ".join(f"word{number}" for number in range(200))  # the agent answers with one token per word
KEPT_RECORD_BYTES = 6000  # of a message of `WORDS` with its ids and indexes, in the file and in the write-ahead log
PAUSE_S = 5.0  # of a user between two messages
START_DEADLINE_S = 60.0
TOKEN = "token-of-the-steady-load"  # of a server on loopback that lives for minutes


@dataclass(frozen=True, slots=True)
class Sample:
    """What both processes and the log use at one moment."""

    minute: int
    answered: int
    gateway_mb: float
    worker_mb: float
    gateway_files: int
    worker_files: int
    disk_mb: float
    tokens: int  # draft records
    others: int  # other records that have content, without those of kept conversations
    kept: int  # such records of kept conversations
    emptied: int  # records whose content was erased with their conversation; their ids stay known


class SteadyLoad:
    """Users who talk to one agent, each in one conversation at a time."""

    def __init__(self, client: AsyncClient) -> None:
        self.answered = 0
        self._client = client

    async def talk(self, prefix: str) -> None:
        while True:
            conversation = f"{prefix}{uuid.uuid4()}"
            for _ in range(MESSAGES_PER_CONVERSATION):
                sent = await self._client.send("general", WORDS, conversation_id=conversation)
                reply = await self._client.wait(sent, timeout_s=60.0)
                assert reply.text == WORDS
                self.answered += 1
                await asyncio.sleep(PAUSE_S)
            if prefix != KEPT:
                await self._client.delete(conversation)


@contextmanager
def magent2_process(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    ours = ("MAGENT2_", "AGENT_", "OPENAI_", "REDIS_")
    retention = "MAGENT2_RETENTION_"
    kept = {
        name: value for name, value in os.environ.items() if name.startswith(retention) or not name.startswith(ours)
    }
    variables = {**kept, "MAGENT2_DATA_DIR": str(folder), "MAGENT2_BUS_URL": f"sqlite:///{folder / 'log.db'}"}
    with (folder / f"{arguments[0]}.log").open("wb") as output:
        process = subprocess.Popen([sys.executable, "-m", "magent2.cli", *arguments], env=variables, stderr=output)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(START_DEADLINE_S)


def take_sample(minute: int, answered: int, folder: Path, gateway: int, worker: int) -> Sample:
    with closing(sqlite3.connect(f"file:{folder / 'log.db'}?mode=ro", uri=True)) as log:
        ((tokens, others, kept, emptied),) = log.execute(
            "SELECT count(*) FILTER (WHERE draft <> ''),"
            " count(*) FILTER (WHERE draft = '' AND payload IS NOT NULL AND NOT kept),"
            " count(*) FILTER (WHERE draft = '' AND payload IS NOT NULL AND kept),"
            " count(*) FILTER (WHERE payload IS NULL)"
            " FROM (SELECT *, name LIKE '%:' || ?1 || '%' OR copy LIKE ?1 || '%' AS kept"
            " FROM records JOIN topics ON tid = rid >> ?2)",
            (KEPT, SEQ_BITS),
        )
    disk = sum(path.stat().st_size for path in folder.glob("log.db*"))
    return Sample(
        minute=minute,
        answered=answered,
        gateway_mb=_resident_mb(gateway),
        worker_mb=_resident_mb(worker),
        gateway_files=_open_files(gateway),
        worker_files=_open_files(worker),
        disk_mb=disk / 1e6,
        tokens=tokens,
        others=others,
        kept=kept,
        emptied=emptied,
    )


def _resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _open_files(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def print_row(values: list[object]) -> None:
    shown = (f"{value:.1f}" if isinstance(value, float) else str(value) for value in values)
    print(" ".join(f"{text:>13}" for text in shown), flush=True)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
async def test_disk_memory_records_and_open_files_are_flat_under_steady_load(tmp_path: Path) -> None:
    samples: list[Sample] = []
    port = quiet_port()
    with (
        magent2_process(tmp_path, "gateway", "--port", str(port), "--token", TOKEN) as gateway,
        magent2_process(tmp_path, "worker") as worker,
    ):
        async with AsyncClient(f"http://127.0.0.1:{port}", TOKEN) as client:
            load = SteadyLoad(client)
            users = [asyncio.create_task(load.talk(KEPT if number % 2 else "")) for number in range(USERS)]
            await until(lambda: load.answered, START_DEADLINE_S)
            print_row([field.name for field in fields(Sample)])
            began = time.monotonic()
            for minute in range(1, MINUTES + 1):
                await asyncio.wait(
                    users, timeout=began + minute * SAMPLE_EVERY_S - time.monotonic(), return_when="FIRST_EXCEPTION"
                )
                for user in users:
                    if user.done():
                        user.result()
                samples.append(take_sample(minute, load.answered, tmp_path, gateway.pid, worker.pid))
                print_row([getattr(samples[-1], field.name) for field in fields(Sample)])
            for user in users:
                user.cancel()
            await asyncio.gather(*users, return_exceptions=True)

    check_flat(samples)


def check_flat(samples: list[Sample]) -> None:
    """Compare the two halves of the time after the warm-up. A leak grows with every message, so it would show."""
    steady = [sample for sample in samples if sample.minute > WARM_UP_MINUTES]
    if len(steady) < 2:
        pytest.skip(f"the warm-up takes {WARM_UP_MINUTES} minutes")
    half = len(steady) // 2
    allowed = {
        "gateway_mb": 1.1,
        "worker_mb": 1.1,
        "gateway_files": 1.1,
        "worker_files": 1.1,
        "tokens": 1.25,  # a sweep takes away five minutes of them at once
        "others": 1.25,
    }
    grown = {}
    for name, ratio in allowed.items():
        before, after = (max(getattr(sample, name) for sample in part) for part in (steady[:half], steady[half:]))
        if after > ratio * before:
            grown[name] = (before, after)
    assert not grown, f"these grew after the warm-up: {grown}"
    first, last = min(steady[:half], key=lambda sample: sample.disk_mb), min(steady[half:], key=lambda one: one.disk_mb)
    allowed_mb = 1.1 * first.disk_mb + KEPT_RECORD_BYTES * (last.kept - first.kept) / 1e6
    assert last.disk_mb <= allowed_mb, f"the file grew to {last.disk_mb:.1f} MB, not {allowed_mb:.1f}"
