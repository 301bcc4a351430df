"""Conversion between operations and the arguments and replies of the Redis functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from magent2.bus.operations import HeadIs, Write, head_too_large
from magent2.bus.records import (
    AppendResult,
    MailRef,
    NewRecord,
    Owner,
    Record,
    TopicInfo,
    decode_object,
)
from magent2.bus.redis_engine.functions import Argument, Reply
from magent2.errors import (
    BlobMissing,
    ConditionFailed,
    CounterGap,
    Fenced,
    HeadTooLarge,
    IdConflict,
    Magent2Error,
    PayloadTooLarge,
    StorageCorrupt,
    TopicDeleted,
    UnknownCursor,
)

_ACCEPTED = (b"done", b"repeat")  # first item of the reply to a write; any other is a refusal
NOTIFICATION_LINES = 8  # seq, when, id, headers, blobs, mark, name, body


# --- to the server -----------------------------------------------------------------------------------------------


def check_size(record: NewRecord, payload_max_bytes: int) -> None:
    if len(record.body) > payload_max_bytes:
        raise PayloadTooLarge(
            f"the payload for {record.topic!r} has {len(record.body)} bytes, the limit is {payload_max_bytes};"
            " put the content into a blob and refer to it, or raise the limit"
        )


def lane_field(record: NewRecord) -> str:
    """The stored field that says whether a record is mail, a copy, or both (see `entries` in records.lua)."""
    if record.lane is None:
        return f"-{record.copy}" if record.copy else ""
    return f"={record.lane}" if record.lane == record.copy else f"~{record.lane}"


def is_plain(record: NewRecord) -> bool:
    """Whether a record has none of the optional fields."""
    return not (record.header_text or record.draft or record.closes or record.blobs)


def record_arguments(record: NewRecord) -> tuple[Argument, ...]:
    return (
        record.topic,
        record.id or "",
        record.digest,
        lane_field(record),
        record.body,
        b"" if is_plain(record) else optional_fields(record),
    )


def optional_fields(record: NewRecord) -> bytes:
    """Headers, blobs and draft as one argument: `headers\\nblobs\\nmark\\nname` (see `more_parts` in records.lua)."""
    mark = "d" if record.draft else "c" if record.closes else "-"
    rest = f"\n{','.join(record.blobs)}\n{mark}\n{record.draft or record.closes or ''}"
    return record.header_text + rest.encode()


def write_arguments(write: Write, payload_max_bytes: int) -> list[Argument]:
    """Records, conditions and heads, each list preceded by its length."""
    arguments: list[Argument] = [len(write.records)]
    for record in write.records:
        check_size(record, payload_max_bytes)
        arguments += record_arguments(record)
    arguments.append(len(write.conditions))
    for condition in write.conditions:
        if isinstance(condition, HeadIs):
            arguments += ("head", condition.topic, condition.name, condition.text)
        else:
            arguments += ("at", condition.topic, "", condition.seq)
    arguments.append(len(write.heads))
    for head in write.heads:
        arguments += (head.topic, len(head.texts))
        for name, text in head.texts.items():
            arguments += (name, text)
    return arguments


def owner_arguments(owner: Owner) -> tuple[Argument, ...]:
    return owner.agent, owner.conversation, owner.worker, owner.token


def mail_members(mail: Sequence[MailRef]) -> list[Argument]:
    return [len(mail), *(f"{'c' if ref.topic.startswith('control:') else 'm'}{ref.seq}" for ref in mail)]


# --- from the server ---------------------------------------------------------------------------------------------


def decode_record(topic: str, seq: int, fields: Sequence[bytes]) -> Record:
    """Decode a stream entry. Raises `ValueError` if another program has written it."""
    found = dict(zip(fields[::2], fields[1::2], strict=False))
    try:
        body = found[b"p"]
        payload, at_ms, record_id = decode_object(body), int(found[b"a"]), found[b"i"].decode()
    except KeyError as error:
        raise ValueError(f"the field {error.args[0].decode()!r} is missing") from error
    if len(found) == 4:
        return Record(topic, payload, record_id, seq, at_ms, size_bytes=len(body))
    headers, blobs = found.get(b"h"), found.get(b"b")
    return Record(
        topic,
        payload,
        record_id,
        seq,
        at_ms,
        decode_object(headers) if headers else None,
        _text(found.get(b"d")),
        _text(found.get(b"c")),
        tuple(blobs.decode().split(",")) if blobs else (),
        size_bytes=len(body),
    )


def decode_erased(topic: str, kept: bytes) -> Record:
    seq, at_ms, record_id, mark, name = kept.split(b"\n", 4)
    return Record(
        topic,
        {},
        record_id.decode(errors="replace"),
        int(seq),
        int(at_ms),
        draft=name.decode(errors="replace") if mark == b"d" else None,
        closes=name.decode(errors="replace") if mark == b"c" else None,
        erased=True,
    )


def decode_notification(topic: str, message: bytes) -> list[Record]:
    """The records in a notification: eight lines each, as `notification` in append.lua writes them."""
    lines = message.split(b"\n")
    if len(lines) % NOTIFICATION_LINES:
        return []
    return [
        _decode_notified(topic, lines[start : start + NOTIFICATION_LINES])
        for start in range(0, len(lines), NOTIFICATION_LINES)
    ]


def _decode_notified(topic: str, lines: Sequence[bytes]) -> Record:
    number, at_ms, record_id, headers, blobs, mark, name, body = lines
    seq = int(number)
    return Record(
        topic,
        decode_object(body),
        record_id.decode(),
        seq,
        int(at_ms),
        decode_object(headers) if headers else None,
        name.decode() if mark == b"d" else None,
        name.decode() if mark == b"c" else None,
        tuple(blobs.decode().split(",")) if blobs else (),
        size_bytes=len(body),
    )


def decode_mail(reply: Reply) -> tuple[Record, ...]:
    """Decode mail. Malformed and erased mail is returned too, because it has to be settled."""
    return tuple(_decode_mail_record(topic.decode(), int(seq), found) for topic, seq, found in reply)


def _decode_mail_record(topic: str, seq: int, found: list[bytes] | bytes) -> Record:
    if not found:
        return Record(topic, {}, seq=seq, erased=True)
    if isinstance(found, bytes):
        return decode_erased(topic, found)
    try:
        return decode_record(topic, seq, found)
    except ValueError as error:
        return Record(topic, {}, seq=seq, malformed=str(error))


def entry_seq(topic: str, entry_id: bytes) -> int:
    first, _, seq = entry_id.partition(b"-")
    if first != b"0":
        raise _foreign(topic)
    return int(seq)


def decode_topic(reply: Reply) -> TopicInfo:
    topic, last, floor, deleted, active, *head = reply
    texts = zip(head[::2], head[1::2], strict=True)
    fields = decode_object(b"{" + b",".join(b'"%b":%b' % pair for pair in texts) + b"}")
    return TopicInfo(topic.decode(), last, floor, bool(deleted), fields, int(float(active)))


def decode_append_result(reply: Reply) -> AppendResult:
    status = reply[0]
    if status not in _ACCEPTED:
        check_reply(reply)
    answer: bytes = reply[1]
    seqs = tuple(map(int, answer.split(b","))) if answer else ()
    return AppendResult(seqs, status == b"repeat")


def check_reply(reply: list[bytes]) -> list[bytes]:
    """Return the reply, or raise the error that it names."""
    refusal = _REFUSALS.get(reply[0])
    if refusal is not None:
        raise refusal(*(part.decode() for part in reply[1:]))
    return reply


def _text(value: bytes | None) -> str | None:
    return value.decode() if value else None


# --- refusals ----------------------------------------------------------------------------------------------------


def _id_conflict(topic: str, record_id: str, seqs: str) -> Magent2Error:
    first = seqs.partition(",")[0]
    return IdConflict(
        f"id {record_id!r} of {topic!r} is record {first} with another body; use a new id or send the same body"
    )


def _condition_failed(kind: str, topic: str, name: str, wanted: str, found: str) -> Magent2Error:
    if kind == "at":
        return ConditionFailed(f"{topic!r} is at {found}, not at {wanted}; read the new records and decide again")
    return ConditionFailed(
        f"head field {name!r} of {topic!r} is {found or 'not set'}, not {wanted or 'absent'}; read it and decide again"
    )


def _foreign(topic: str) -> Magent2Error:
    return StorageCorrupt(
        f"the stream of {topic!r} has entries with ids of another program;"
        " remove them with XDEL and set the stream back with XSETID"
    )


# The first item of a refused reply → the error that the other items describe.
_REFUSALS: dict[bytes, Callable[..., Magent2Error]] = {
    b"Fenced": lambda agent, conversation: Fenced(
        f"the lane of agent {agent!r} in conversation {conversation!r} has another owner now; stop this run"
    ),
    b"CounterGap": lambda n, seen: CounterGap(f"append {n} of this owner follows {seen}; send {int(seen) + 1} first"),
    b"IdConflict": _id_conflict,
    b"TopicDeleted": lambda topic: TopicDeleted(f"{topic!r} was deleted; nothing can be written to it"),
    b"ConditionFailed": _condition_failed,
    b"BlobMissing": lambda name: BlobMissing(f"unknown blob {name}; put it first"),
    b"HeadTooLarge": lambda topic, size: HeadTooLarge(head_too_large(topic, int(size))),
    b"UnknownCursor": lambda topic, cursor, floor, last: UnknownCursor(
        f"{cursor!r} is not in {topic!r}, which has {floor} to {last}; start again from the floor"
    ),
    b"StorageCorrupt": _foreign,
}
