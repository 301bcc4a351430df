"""Files that people and programs upload. The log holds them; there is no other store.

The content of a file is cut into chunks. Each chunk is a blob, and a record of the topic `file:{id}` names it. The head
of the topic describes the file. Its field `status` is `uploading` until the append of the last chunk, so a file exists
completely or not at all. An upload that fails deletes its topic, and with it the chunks. After a crash, a sweep does.

Only the topic of a file names its blobs. A message names the file, so that deleting a file removes its content
everywhere, and deleting a conversation leaves the files of its owner. A file that came inside a message
(`store_inline`) has no other home: it belongs to the conversation and is deleted with it.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass

from magent2.bus.log import Log
from magent2.bus.operations import OLDEST, Append, Delete, GetBlob, LastSeqIs, PutBlob, SetHead
from magent2.bus.records import NewRecord, TopicInfo
from magent2.errors import (
    BlobMissing,
    ConditionFailed,
    FilesFull,
    FileTooLarge,
    IdConflict,
    InvalidInput,
    TopicDeleted,
    UnknownFile,
)
from magent2.models.address import checked_topic, file_topic, is_name
from magent2.models.files import FILE_ID_MAX_CHARS, FileAttachment, check_file_name
from magent2.models.media import TEXT_TYPES, TextCheck, upload_type

CHUNK_BYTES = 1 << 20
FILE_MAX_BYTES = 32 << 20
FILES_PER_PRINCIPAL_MAX_BYTES = 1 << 30
FILES_PER_PRINCIPAL_MAX = 2_000  # files of one owner, whatever their size
UPLOAD_ABANDONED_S = 7200.0  # an upload without a new chunk for this long is deleted; `upload_max_s` is shorter
LIST_PAGE = 1000
PUT_ATTEMPTS = 3
KEYED_FILES_MAX = 100  # files that were uploaded under one key and deleted again

UPLOADING, COMPLETE = "uploading", "complete"


@dataclass(frozen=True, slots=True)
class FileLimits:
    """The limits of uploads: of one file, and of all files of one owner."""

    file_max_bytes: int = FILE_MAX_BYTES
    owner_max_bytes: int = FILES_PER_PRINCIPAL_MAX_BYTES
    owner_max_files: int = FILES_PER_PRINCIPAL_MAX


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file, from the head of its topic. `conversation`: it belongs to that conversation and is deleted with it."""

    file_id: str
    owner: str
    name: str
    media_type: str
    size: int
    sha256: str
    created_ms: int
    conversation: str | None = None

    @property
    def attachment(self) -> FileAttachment:
        return FileAttachment(file_id=self.file_id, name=self.name, media_type=self.media_type, size=self.size)


def _stored_file(info: TopicInfo) -> StoredFile | None:
    """The file of a topic; `None` if there is none, or if it is not complete."""
    head = info.head
    if info.deleted or head.get("status") != COMPLETE:
        return None
    return StoredFile(
        checked_topic(info.topic)[1],
        head["owner"],
        head["name"],
        head["media_type"],
        head["size"],
        head["sha256"],
        info.active_ms,
        head.get("conversation"),
    )


# --- reading


async def find_file(log: Log, file_id: str) -> StoredFile | None:
    """The file; `None` if it does not exist, is not complete yet, or was deleted."""
    if not file_id or len(file_id) > FILE_ID_MAX_CHARS or not is_name(file_id):
        return None
    (info,) = await log.describe(file_topic(file_id))
    return _stored_file(info)


async def get_file(log: Log, file_id: str) -> StoredFile:
    found = await find_file(log, file_id)
    if found is None:
        raise unknown_file(file_id)
    return found


def unknown_file(file_id: str) -> UnknownFile:
    return UnknownFile(f"there is no file {file_id[:80]!r}; upload it first")


async def read_chunks(log: Log, file: StoredFile) -> AsyncIterator[bytes]:
    """Yield the content of a file in pieces. Raises `UnknownFile` if it is deleted meanwhile."""
    for name in await _chunk_names(log, file.file_id):
        try:
            yield await log.run(GetBlob(name))
        except BlobMissing:
            raise unknown_file(file.file_id) from None


async def _chunk_names(log: Log, file_id: str) -> list[str]:
    names: list[str] = []
    after = OLDEST
    while True:
        page = await log.read(file_topic(file_id), after, LIST_PAGE)
        names += [record.blobs[0] for record in page.records if record.blobs]
        if not page.records or page.records[-1].seq >= page.last:
            return names
        after = page.records[-1].seq


async def read_file(log: Log, file: StoredFile) -> bytes:
    """The whole content of a file. Raises `UnknownFile` if it was deleted meanwhile."""
    content = b"".join([chunk async for chunk in read_chunks(log, file)])
    if len(content) != file.size:
        raise unknown_file(file.file_id)
    return content


async def list_files(
    log: Log, owner: str | None, before: tuple[int, str] | None = None, limit: int = 100
) -> tuple[list[StoredFile], tuple[int, str] | None]:
    """One page of files, newest first, and the position of the next page. Uploads in progress are left out."""
    page = await log.topics("file:", owner, before, limit)
    files = (_stored_file(info) for info in page.topics)
    return [file for file in files if file is not None], page.next


# --- deleting


async def delete_file(log: Log, file_id: str, *, scrub: bool = True) -> None:
    """Delete a file and its content. Messages that had it keep its name. For `scrub` see `Delete`."""
    # With a conversation, blobs that no other record names are removed in the same step. No conversation can have this
    # name, so nothing else is.
    topic = file_topic(file_id)
    await log.run(Delete((topic,), conversation=f"retention:{topic}", scrub=scrub))


async def delete_files_of(log: Log, owner: str) -> list[str]:
    """Delete all files of an owner, uploads in progress included. Return their ids."""
    deleted: list[str] = []
    while page := (await log.topics("file:", owner, limit=LIST_PAGE)).topics:
        for info in page:
            deleted.append(checked_topic(info.topic)[1])
            await delete_file(log, deleted[-1])
    return deleted


async def delete_files_in(log: Log, conversation: str, *, scrub: bool = True) -> None:
    """Delete the files that belong to a conversation."""
    while page := (await log.topics(file_topic(_inline_prefix(conversation)), limit=LIST_PAGE)).topics:
        for info in page:
            await delete_file(log, checked_topic(info.topic)[1], scrub=scrub)


def is_abandoned(info: TopicInfo, now_ms: int) -> bool:
    """Whether a topic is an upload that has got no chunk for so long that its gateway must have died."""
    return info.head.get("status") == UPLOADING and info.active_ms <= now_ms - round(UPLOAD_ABANDONED_S * 1000)


# --- writing


def new_file_id() -> str:
    return f"file-{uuid.uuid4().hex}"


KEY_REUSED = "this Idempotency-Key was used for another file; take another key"


def keyed_file_id(owner: str, key: str) -> str:
    """The id of the file that an owner uploads with a key of the client."""
    return "file-" + hashlib.blake2b("\x1f".join((owner, key)).encode(), digest_size=16).hexdigest()


class Upload:
    """Writes one file, piece by piece. No more than a chunk of it is in memory.

    With a `key`, the same content is one file however often it is uploaded. Its chunks have the same ids, so a repeat
    writes nothing, or what the first upload has not written. Another content raises `IdConflict`.

    Call `write` with each piece, then `finish`, or `abort` after any error. The type is found from the first chunk, so
    a file that is refused for its type leaves nothing in the store.
    """

    def __init__(
        self,
        log: Log,
        limits: FileLimits,
        owner: str,
        name: str,
        declared: str = "",
        *,
        expected_bytes: int | None = None,
        conversation: str | None = None,
        key: str | None = None,
    ) -> None:
        """`declared` is the type that the client names, `expected_bytes` the size, if it is known."""
        self._keyed_id = None if key is None else keyed_file_id(owner, key)
        self._deletions = 0  # files under the key that were deleted before
        self._is_repeat = False
        self._use_id(self._keyed_id or new_file_id())
        self._log = log
        self._limits = limits
        self._owner = owner
        self._name = check_file_name(name)
        self._declared = declared
        self._conversation = conversation
        # A file of unknown size counts as one of the largest size until it is complete.
        self._reserved = limits.file_max_bytes if expected_bytes is None else min(expected_bytes, limits.file_max_bytes)
        self._buffer = bytearray()
        self._size = 0
        self._sha256 = hashlib.sha256()
        self._media_type = ""
        self._text: TextCheck | None = None

    async def write(self, piece: bytes) -> None:
        self._size += len(piece)
        self._check_size(self._size)
        self._sha256.update(piece)
        self._buffer += piece
        while len(self._buffer) > CHUNK_BYTES:  # not `>=`: the last chunk completes the file and must not be empty
            chunk = bytes(self._buffer[:CHUNK_BYTES])
            del self._buffer[:CHUNK_BYTES]
            await self._store(chunk, {"size": max(self._reserved, self._size), "status": UPLOADING})

    async def finish(self) -> StoredFile:
        """Store the rest of the file and make it visible."""
        self._check_size(self._size, complete=True)
        head = {"size": self._size, "status": COMPLETE, "sha256": self._sha256.hexdigest()}
        await self._store(bytes(self._buffer), head, last=True)
        self._buffer.clear()
        if self._is_repeat:
            (info,) = await self._log.describe(self._topic)
            if info.head.get("sha256") != head["sha256"]:
                raise IdConflict(KEY_REUSED)
        return await get_file(self._log, self.file_id)

    async def abort(self) -> None:
        """Remove what was stored. It is safe to call it at any time before `finish` returns, and again.

        What an earlier upload with the same key has stored stays.
        """
        self._buffer.clear()
        if self._stored and not self._is_repeat:
            await delete_file(self._log, self.file_id)

    async def _store(self, chunk: bytes, head: Mapping[str, object], *, last: bool = False) -> None:
        first = not self._stored
        if first:
            self._media_type = upload_type(chunk, self._declared, self._name)
            self._text = TextCheck() if self._media_type in TEXT_TYPES else None
            await self._check_owner_limits(self._size if last else self._reserved)
        if self._text is not None:
            self._text.take(chunk, final=last)
        await self._append([chunk], {**head, **(self._description() if first else {})})
        if first:  # others may have uploaded since the first check; now each of them sees the others
            await self._check_owner_limits(0)

    def _check_size(self, size: int, *, complete: bool = False) -> None:
        if complete and not size:
            raise InvalidInput("the file is empty; choose one with content")
        if size > self._limits.file_max_bytes:
            raise FileTooLarge(f"a file has at most {self._limits.file_max_bytes} bytes")

    def _description(self) -> dict[str, object]:
        found: dict[str, object] = {"owner": self._owner, "name": self._name, "media_type": self._media_type}
        return found if self._conversation is None else {**found, "conversation": self._conversation}

    async def store_whole(self, content: bytes, file_id: str) -> StoredFile:
        """Store a file that is in memory with one append. If another caller has stored it meanwhile, return that."""
        self._check_size(len(content), complete=True)
        self._media_type = upload_type(content, self._declared, self._name)
        if self._media_type in TEXT_TYPES:
            TextCheck().take(content, final=True)
        await self._check_owner_limits(len(content))
        self._use_id(file_id)
        head = {
            **self._description(),
            "size": len(content),
            "status": COMPLETE,
            "sha256": hashlib.sha256(content).hexdigest(),
        }
        chunks = [content[start : start + CHUNK_BYTES] for start in range(0, len(content), CHUNK_BYTES)]
        try:
            await self._append(chunks, head)
        except ConditionFailed:
            return await get_file(self._log, file_id)
        except TopicDeleted:  # the same file was deleted before: it gets another id
            self._use_id(file_id.rpartition("~")[0] + "~" + uuid.uuid4().hex)
            await self._append(chunks, head)
        return await get_file(self._log, self.file_id)

    def _use_id(self, file_id: str) -> None:
        self.file_id, self._topic = file_id, file_topic(file_id)
        self._stored = 0  # chunks that records name

    async def _append(self, chunks: Sequence[bytes], head: Mapping[str, object]) -> None:
        """Append the records of chunks. If another file that shares one is deleted meanwhile, store them again."""
        first = self._stored + 1
        self._stored += len(chunks)  # before the append, which may happen although its reply is lost
        for attempts_left in reversed(range(PUT_ATTEMPTS)):
            names = await self._put(chunks)
            try:
                await self._append_once(self._chunk_records(first, chunks, names), head)
            except BlobMissing:
                if not attempts_left:
                    raise
                continue
            except IdConflict:
                self._is_repeat = True  # what is there belongs to another upload with the same key
                await self._discard(names)
                raise IdConflict(KEY_REUSED) from None
            except TopicDeleted:  # the owner was erased, or the upload took too long
                if first > 1 or not self._use_next_id():
                    await self._discard(names)
                    raise
                await self._append(chunks, head)
            return

    async def _put(self, chunks: Sequence[bytes]) -> list[str]:
        return [await self._log.run(PutBlob(chunk)) for chunk in chunks]

    async def _append_once(self, records: Sequence[NewRecord], head: Mapping[str, object]) -> None:
        """Append the records; the first ones only to an empty topic. Note whether those were there already."""
        is_first = records[0].id == "chunk-1"
        conditions = (LastSeqIs(self._topic, 0),) if is_first else ()
        append = Append(records=tuple(records), conditions=conditions, heads=(SetHead(self._topic, head),))
        appended = await self._log.append(append)
        self._is_repeat = appended.repeat if is_first else self._is_repeat

    def _chunk_records(self, first: int, chunks: Sequence[bytes], names: Sequence[str]) -> tuple[NewRecord, ...]:
        return tuple(
            NewRecord(self._topic, {"size": len(chunk)}, id=f"chunk-{number}", blobs=(name,), digest=name)
            for number, (chunk, name) in enumerate(zip(chunks, names, strict=True), first)
        )

    def _use_next_id(self) -> bool:
        """Use the next id of a key whose file was deleted. Return whether there is one."""
        if self._keyed_id is None or self._deletions >= KEYED_FILES_MAX:
            return False
        self._deletions += 1
        self._use_id(f"{self._keyed_id}~{self._deletions}")
        return True

    async def _discard(self, blobs: Sequence[str]) -> None:
        """Remove blobs that no record names: a blob goes with the topic that names it."""
        other = new_file_id()
        records = tuple(NewRecord(file_topic(other), {}, blobs=(blob,)) for blob in blobs)
        await self._log.append(Append(records=records))
        await delete_file(self._log, other)

    async def _check_owner_limits(self, more_bytes: int) -> None:
        """Raise `FilesFull` if the files of the owner and this one exceed a limit."""
        limits, number, size = self._limits, int(bool(more_bytes)), more_bytes
        before: tuple[int, str] | None = None
        while True:
            page = await self._log.topics("file:", self._owner, before, LIST_PAGE)
            number += len(page.topics)
            size += sum(int(info.head.get("size", 0)) for info in page.topics)
            if number > limits.owner_max_files:
                raise FilesFull(f"you have {limits.owner_max_files} files, which is the limit; delete some first")
            if size > limits.owner_max_bytes:
                raise FilesFull(f"your files would take more than {limits.owner_max_bytes} bytes; delete some first")
            if page.next is None:
                return
            before = page.next


# --- files inside messages


def _inline_prefix(conversation: str) -> str:
    """What the ids of a conversation's own files begin with. The separator makes them a range of an engine's index."""
    return f"file-{hashlib.blake2b(conversation.encode(), digest_size=16).hexdigest()}~"


async def store_inline(
    log: Log, limits: FileLimits, owner: str, conversation: str, content: bytes, name: str, declared: str = ""
) -> FileAttachment:
    """Store a file that came inside a message. It belongs to the conversation and is deleted with it.

    Its id derives from conversation, name and content, so requests that repeat each other store it once.
    `decode_data_url` gives content and declared type. Raises what `Upload` raises.
    """
    named = hashlib.blake2b(content, digest_size=16, key=hashlib.sha256(name.encode()).digest()).hexdigest()
    file_id = _inline_prefix(conversation) + named
    known = await find_file(log, file_id)
    if known is not None:
        return known.attachment
    upload = Upload(log, limits, owner, name, declared, expected_bytes=len(content), conversation=conversation)
    return (await upload.store_whole(content, file_id)).attachment
