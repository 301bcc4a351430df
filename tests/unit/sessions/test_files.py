"""Files on the log: what a deleted conversation, an erased owner and a sweep leave of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TypeVar

import pytest

from magent2.bus.interface import Engine
from magent2.bus.log import Log
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Operation, PutBlob, SweepBlobs, Topics
from magent2.bus.retention import RetentionPolicy
from magent2.directory.erasure import erase_user
from magent2.errors import FilesFull, FileTooLarge, InvalidInput, TopicDeleted
from magent2.models.files import decode_data_url, size_text
from magent2.sessions.files import (
    CHUNK_BYTES,
    UPLOAD_ABANDONED_S,
    FileLimits,
    Upload,
    delete_file,
    find_file,
    list_files,
    read_file,
    store_inline,
)
from magent2.sessions.store import create_session, delete_session
from magent2.sessions.sweep import sweep_log
from tests.support.files import PNG

R = TypeVar("R")

OWNER = "user:ann"
LIMITS = FileLimits()


@pytest.fixture
async def log() -> AsyncIterator[Log]:
    bus = MemoryBus()
    yield Log(bus)
    bus.close()


async def put(log: Log, name: str, content: bytes, owner: str = OWNER, limits: FileLimits = LIMITS) -> str:
    upload = Upload(log, limits, owner, name)
    await upload.write(content)
    return (await upload.finish()).file_id


async def left(bus: Engine) -> tuple[list[str], int]:
    """The topics of files, and the number of blobs that no record names."""
    found = await bus.acall(Topics("file:"))
    return [info.topic for info in found.topics], await bus.acall(SweepBlobs(0, dry_run=True))


async def now_ms(log: Log) -> int:
    return max(info.active_ms for info in (await log.topics("file:")).topics)


async def test_an_upload_is_not_visible_before_its_last_chunk(log: Log) -> None:
    upload = Upload(log, LIMITS, OWNER, "a.png")
    await upload.write(PNG + bytes(2 * CHUNK_BYTES))

    before = await find_file(log, upload.file_id), await list_files(log, OWNER)
    file = await upload.finish()

    assert before == (None, ([], None))
    assert await read_file(log, file) == PNG + bytes(2 * CHUNK_BYTES)


async def test_a_file_of_exactly_some_chunks_has_no_empty_one(log: Log) -> None:
    content = PNG + bytes(2 * CHUNK_BYTES - len(PNG))

    file = await find_file(log, await put(log, "a.png", content))

    assert file is not None
    assert await read_file(log, file) == content
    assert (await log.describe(f"file:{file.file_id}"))[0].last == 2


class InterleavedLog(Log):
    """Lets other tasks go on before every operation, as an engine on a server does."""

    async def run(self, operation: Operation[R]) -> R:
        await asyncio.sleep(0)
        return await super().run(operation)


async def test_two_uploads_at_once_do_not_exceed_the_limit_together(log: Log) -> None:
    limits = FileLimits(owner_max_bytes=3 * CHUNK_BYTES)

    async def upload(number: int) -> str | None:
        content = PNG + bytes([number]) * (2 * CHUNK_BYTES)
        one = Upload(InterleavedLog(log.bus), limits, OWNER, "a.png", expected_bytes=len(content))
        try:
            await one.write(content)
            return (await one.finish()).file_id
        except FilesFull:
            await one.abort()
            return None

    made = [file_id for file_id in await asyncio.gather(*map(upload, range(4))) if file_id is not None]

    assert len(made) <= 1
    assert await left(log.bus) == ([f"file:{file_id}" for file_id in made], 0)


async def test_the_chunk_of_an_upload_whose_owner_is_erased_goes_too(log: Log) -> None:
    upload = Upload(log, LIMITS, OWNER, "a.png")
    await upload.write(PNG + bytes(CHUNK_BYTES))
    await put(log, "b.png", PNG, "user:bob")

    erased = await erase_user(log, OWNER)
    with pytest.raises(TopicDeleted):
        await upload.write(b"x" * CHUNK_BYTES)
    await upload.abort()

    assert erased.files == (upload.file_id,)
    assert (await left(log.bus))[1] == 0
    assert [file.owner for file in (await list_files(log, None))[0]] == ["user:bob"]


async def test_a_file_inside_a_message_is_stored_once_and_goes_with_its_conversation(log: Log) -> None:
    for conversation in ("c1", "c2"):
        await create_session(log, conversation, OWNER)
    same = await asyncio.gather(*(store_inline(log, LIMITS, OWNER, "c1", PNG, "a.png") for _ in range(10)))
    other = await store_inline(log, LIMITS, OWNER, "c2", PNG, "a.png")
    uploaded = await put(log, "b.png", PNG)

    await delete_session(log, "c1")

    assert len({file.file_id for file in same}) == 1
    assert {file.file_id for file in (await list_files(log, OWNER))[0]} == {other.file_id, uploaded}
    assert await find_file(log, same[0].file_id) is None


async def test_a_file_inside_a_message_that_was_deleted_can_be_sent_again(log: Log) -> None:
    first = await store_inline(log, LIMITS, OWNER, "c1", PNG, "a.png")
    await delete_file(log, first.file_id)

    again = await store_inline(log, LIMITS, OWNER, "c1", PNG, "a.png")
    await delete_session(log, "c1")

    assert again.file_id != first.file_id
    assert await left(log.bus) == ([], 0)


async def test_a_sweep_removes_old_files_abandoned_uploads_and_nothing_else(log: Log) -> None:
    kept = await put(log, "a.png", PNG)
    upload = Upload(log, LIMITS, OWNER, "b.png")
    await upload.write(PNG + b"x" * (CHUNK_BYTES + 1))
    now = await now_ms(log)

    at_once = await sweep_log(log, RetentionPolicy(), now)
    dry = await sweep_log(log, RetentionPolicy(), now + round(UPLOAD_ABANDONED_S * 1000), dry_run=True)
    later = await sweep_log(log, RetentionPolicy(), now + round(UPLOAD_ABANDONED_S * 1000))
    between = [file.file_id for file in (await list_files(log, OWNER))[0]]
    aged = await sweep_log(log, RetentionPolicy(files_max_age_s=10), now + 20_000)

    assert (at_once.files, dry.files, later.files, aged.files) == (0, 1, 1, 1)
    assert between == [kept]
    assert await left(log.bus) == ([], 0)


async def test_a_sweep_removes_the_files_of_idle_conversations(log: Log) -> None:
    await create_session(log, "c1", OWNER)
    await store_inline(log, LIMITS, OWNER, "c1", PNG, "a.png")
    now = await now_ms(log)

    swept = await sweep_log(log, RetentionPolicy(idle_conversations_s=0), now + 1000)

    assert swept.conversations == 1
    assert await left(log.bus) == ([], 0)


async def test_a_sweep_removes_the_file_of_a_request_that_was_refused_before_its_session_existed(log: Log) -> None:
    await store_inline(log, LIMITS, OWNER, "never", PNG, "a.png")
    now = await now_ms(log)

    early = await sweep_log(log, RetentionPolicy(), now)
    late = await sweep_log(log, RetentionPolicy(), now + round(UPLOAD_ABANDONED_S * 1000))

    assert (early.files, late.files) == (0, 1)


async def test_blobs_that_no_record_names_go_after_a_week_by_default(log: Log) -> None:
    await log.run(PutBlob(b"cut off"))

    assert RetentionPolicy().blobs_after_s == 7 * 86_400
    assert (await sweep_log(log, RetentionPolicy(blobs_after_s=0), 0)).blobs == 1


def test_data_urls() -> None:
    assert decode_data_url("data:image/png;base64,aGk=", 2) == (b"hi", "image/png")
    assert decode_data_url("data:text/plain,a%20b", 10) == (b"a b", "text/plain")
    for bad in ("http://x", "data:image/png;base64", "data:;base64,###"):
        with pytest.raises(InvalidInput):
            decode_data_url(bad, 100)
    for large in ("data:;base64," + "QUFB" * 100, "data:," + "a" * 200):
        with pytest.raises(FileTooLarge):
            decode_data_url(large, 100)


def test_sizes_as_people_read_them() -> None:
    assert [size_text(size) for size in (1, 999, 1000, 12_345, 999_499, 2_500_000)] == [
        "1 bytes",
        "999 bytes",
        "1 kB",
        "12.3 kB",
        "999 kB",
        "2.5 MB",
    ]
