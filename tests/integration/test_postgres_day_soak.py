"""The shape of a day in ten minutes on PostgreSQL: 50,000 conversations, with retention on.

Every user has one conversation with one message. Sweeps delete conversations and settled mail after a minute and a
half; tokens go after fifteen seconds. After the warm-up the log holds as much as before, autovacuum keeps up, and no
process grows. What stays of a deleted conversation by design, its topics without content, is counted apart.

Prints one line per minute: `make soak ARGS="-s tests/integration/test_postgres_day_soak.py"`. `DAY_CONVERSATIONS` makes
it shorter. On a busy machine the day takes longer than ten minutes, with the same conversations; `load` in the table is
the load average of the last minute.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path

import psycopg
import pytest

from magent2.bus.servers import DEFAULT_PREFIX
from magent2.client import AsyncClient
from tests.support.http_client.service import answers_at
from tests.support.ports import quiet_port
from tests.support.postgres_server import PostgresServer
from tests.support.waiting import eventually

pytestmark = [pytest.mark.soak, pytest.mark.no_cover, pytest.mark.postgres]

CONVERSATIONS = int(os.environ.get("DAY_CONVERSATIONS", "50000"))
DAY_S = 600.0
CONVERSATIONS_PER_S = 50_000 / DAY_S
AT_ONCE = 64  # conversations that wait for their answer
SAMPLE_EVERY_S = 60.0
WORDS = " ".join(f"word{number}" for number in range(20))  # the agent answers with one token per word
RETENTION = {
    "MAGENT2_RETENTION_TOKENS_AFTER_S": "15",
    "MAGENT2_RETENTION_IDLE_CONVERSATIONS_DAYS": "0.001",
    "MAGENT2_RETENTION_MAIL_MAX_AGE_DAYS": "0.001",
    "MAGENT2_RETENTION_SWEEP_EVERY_S": "5",
}
TOPIC_BYTES = 600  # of a deleted topic with its entries in indexes
DEAD_ROWS_SHARE_MAX = 0.5  # of all rows; autovacuum looks every 15 s, and a sweep removes many rows in that time
START_DEADLINE_S = 60.0
TOKEN = "token-of-the-day"  # of a server on loopback that lives for minutes


@dataclass(frozen=True, slots=True)
class Sample:
    """What the processes and the log use at one moment."""

    minutes: float
    load: float
    answered: int
    gateway_mb: float
    worker_mb: float
    disk_mb: float
    records: int
    open_topics: int
    deleted_topics: int
    dead_rows: int
    vacuums: int


@contextmanager
def magent2_process(folder: Path, url: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    ours = ("MAGENT2_", "AGENT_", "OPENAI_", "REDIS_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    variables = {**kept, **RETENTION, "MAGENT2_DATA_DIR": str(folder), "MAGENT2_BUS_URL": url}
    with (folder / f"{arguments[0]}.log").open("wb") as output:
        process = subprocess.Popen([sys.executable, "-m", "magent2.cli", *arguments], env=variables, stderr=output)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(START_DEADLINE_S)


def take_sample(url: str, begun: float, answered: int, gateway: int, worker: int) -> Sample:
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        connection.execute(f"SET search_path = {DEFAULT_PREFIX}")
        row = connection.execute(
            "SELECT"
            " (SELECT sum(pg_total_relation_size(relid)) / 1e6 FROM pg_stat_user_tables WHERE schemaname = %(log)s),"
            " (SELECT count(*) FROM records), (SELECT count(*) FROM topics WHERE NOT deleted),"
            " (SELECT count(*) FROM topics WHERE deleted),"
            " (SELECT sum(n_dead_tup) FROM pg_stat_user_tables WHERE schemaname = %(log)s),"
            " (SELECT sum(autovacuum_count) FROM pg_stat_user_tables WHERE schemaname = %(log)s)",
            {"log": DEFAULT_PREFIX},
        ).fetchone()
    assert row is not None
    disk_mb, records, open_topics, deleted_topics, dead_rows, vacuums = row
    return Sample(
        (time.monotonic() - begun) / 60,
        os.getloadavg()[0],
        answered,
        resident_mb(gateway),
        resident_mb(worker),
        float(disk_mb),
        records,
        open_topics,
        deleted_topics,
        int(dead_rows),
        int(vacuums),
    )


async def keep_sweeping(folder: Path, url: str) -> None:
    """Apply the retention to all conversations again and again. A worker does so once a day, and leaves pauses."""
    variables = {**os.environ, **RETENTION, "MAGENT2_DATA_DIR": str(folder), "MAGENT2_BUS_URL": url}
    command = (sys.executable, "-m", "magent2.cli", "sweep")
    quiet = asyncio.subprocess.DEVNULL
    while True:
        process = await asyncio.create_subprocess_exec(*command, env=variables, stdout=quiet, stderr=quiet)
        try:
            assert await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


def line_of(sample: Sample) -> str:
    values = (getattr(sample, field.name) for field in fields(Sample))
    shown = (f"{value:.1f}" if isinstance(value, float) else str(value) for value in values)
    return " ".join(f"{text:>14}" for text in shown)


def resident_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6


class Day:
    """Users who come one after the other, as many per second as in a day that takes ten minutes."""

    def __init__(self, client: AsyncClient) -> None:
        self.answered = 0
        self._client = client
        self._places = asyncio.Semaphore(AT_ONCE)

    async def live(self) -> None:
        begun = time.monotonic()
        async with asyncio.TaskGroup() as users:
            for number in range(CONVERSATIONS):
                await asyncio.sleep(max(0.0, begun + number / CONVERSATIONS_PER_S - time.monotonic()))
                await self._places.acquire()
                users.create_task(self._talk())

    async def _talk(self) -> None:
        try:
            sent = await self._client.send("general", WORDS, conversation_id=str(uuid.uuid4()))
            reply = await self._client.wait(sent, timeout_s=60.0)
            assert reply.text == WORDS
            self.answered += 1
        finally:
            self._places.release()


async def test_a_day_of_conversations_leaves_disk_and_memory_flat(tmp_path: Path) -> None:
    server = PostgresServer({"shared_buffers": "128MB", "autovacuum_naptime": "15s"})
    samples: list[Sample] = []
    port = quiet_port()
    try:
        server.start()
        with (
            magent2_process(tmp_path, server.url, "gateway", "--port", str(port), "--token", TOKEN) as gateway,
            magent2_process(tmp_path, server.url, "worker") as worker,
        ):
            async with AsyncClient(f"http://127.0.0.1:{port}", TOKEN) as client:
                await asyncio.to_thread(eventually, lambda: answers_at(port), START_DEADLINE_S)
                day = Day(client)
                print(" ".join(f"{field.name:>14}" for field in fields(Sample)), flush=True)
                begun = time.monotonic()
                sweeping = asyncio.create_task(keep_sweeping(tmp_path, server.url))
                living = asyncio.create_task(day.live())
                while not living.done():
                    await asyncio.wait([living], timeout=SAMPLE_EVERY_S)
                    samples.append(
                        await asyncio.to_thread(take_sample, server.url, begun, day.answered, gateway.pid, worker.pid)
                    )
                    print(line_of(samples[-1]), flush=True)
                    assert not sweeping.done(), sweeping
                living.result()
                sweeping.cancel()
                await asyncio.wait([sweeping])
    finally:
        server.remove()

    assert samples[-1].answered == CONVERSATIONS
    assert_flat(samples)


def assert_flat(samples: Sequence[Sample]) -> None:
    """Compare the second half with the first, which includes the warm-up.

    Peaks are compared: what is in use at one moment depends on how many users have just come.
    """
    first, second = samples[: len(samples) // 2], samples[len(samples) // 2 :]
    deleted = second[-1].deleted_topics - first[-1].deleted_topics
    assert deleted, "no conversation was deleted: the test shows nothing"
    assert second[-1].vacuums > first[-1].vacuums, "autovacuum did not run: the test shows nothing"
    assert peak(second, "disk_mb") < 1.2 * peak(first, "disk_mb") + TOPIC_BYTES * deleted / 1e6
    assert peak(second, "records") < 1.2 * peak(first, "records")
    assert peak(second, "gateway_mb") < 1.2 * peak(first, "gateway_mb")
    assert peak(second, "worker_mb") < 1.2 * peak(first, "worker_mb")
    for sample in samples:
        rows = sample.records + sample.open_topics + sample.deleted_topics
        assert sample.dead_rows < DEAD_ROWS_SHARE_MAX * rows, sample


def peak(samples: Sequence[Sample], field: str) -> float:
    return max(float(getattr(sample, field)) for sample in samples)
