"""Records and results of the bus port. What an engine stores of a record is encoded and validated here, once."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from magent2.bus.interface import BusMessage
from magent2.errors import IdError, LimitError, PayloadError
from magent2.models.address import checked_topic, is_name
from magent2.models.json_types import JsonObject, JsonScalar

ID_MAX_CHARS = 256
HEADERS_MAX_BYTES = 2048
BLOBS_PER_RECORD_MAX = 64
DRAFT_MAX_CHARS = 256
ASSIGNED_ID_MARK = "@"  # `@17` is the id of record 17 whose sender gave none
DIGEST_BYTES = 16

_NUMBERS_AND_CONTAINERS = (float, dict, list, tuple)
_STRICT_JSON = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS


class MailRef(NamedTuple):
    """Reference to mail: its inbox (`chat:{agent}` or `control:{agent}`) and its seq there."""

    topic: str
    seq: int


def encode_object(value: object, what: str) -> bytes:
    """Encode a dict as JSON, or raise `PayloadError` with the reason."""
    if not isinstance(value, dict):
        raise PayloadError(f"{what} must be a JSON object (a dict with string keys), not {type(value).__name__}")
    try:
        text = orjson.dumps(value, option=_STRICT_JSON)
    except (orjson.JSONEncodeError, RecursionError) as error:
        raise PayloadError(f"{what} is not JSON: {error}") from error
    if b"null" in text:  # orjson writes NaN and infinity as null, which would change the value silently
        _refuse_non_finite(value, what)
    return text


def _refuse_non_finite(container: dict[str, object] | list[object] | tuple[object, ...], what: str) -> None:
    for item in container.values() if isinstance(container, dict) else container:
        if not isinstance(item, _NUMBERS_AND_CONTAINERS):  # most values are texts
            continue
        if not isinstance(item, float):
            _refuse_non_finite(item, what)
        elif not math.isfinite(item):
            raise PayloadError(f"{what} holds {item}, which JSON cannot carry; send null or a string")


def canonical(value: object) -> str:
    """Encode a JSON value with sorted keys, so that equal values have equal texts."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def digest_of(payload: Mapping[str, object]) -> str:
    """Return the digest by which two bodies are compared. It ignores `created_at`, which a retry may change."""
    chosen = dict(payload)
    chosen.pop("created_at", None)
    try:
        text = orjson.dumps(chosen, option=orjson.OPT_SORT_KEYS)
    except (orjson.JSONEncodeError, RecursionError) as error:
        raise PayloadError(f"the payload is not JSON: {error}") from error
    return hashlib.blake2b(text, digest_size=DIGEST_BYTES).hexdigest()


def conversation_of(payload: Mapping[str, object]) -> str:
    """Return the conversation id of a payload, or an empty string if it has no valid one."""
    value = payload.get("conversation_id")
    return str(value) if is_name(value) else ""


def lane_of(topic: str, payload: Mapping[str, object]) -> str | None:
    """Return the conversation whose lane gets this record as mail.

    `None`: not mail (another kind of topic, a conversation's own log, an agent's own message).
    Empty: mail without a valid conversation id. It goes into the lane with the empty name, where the worker moves it to
    the dead letters.
    """
    return _lane(*checked_topic(topic), conversation_of(payload), payload)


def _lane(kind: str, name: str, conversation: str, payload: Mapping[str, object]) -> str | None:
    if kind == "control":
        return conversation
    if kind != "chat" or conversation == name or payload.get("sender") == f"agent:{name}":
        return None
    return conversation


def check_id(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise IdError("a record id must be a non-empty string")
    if len(value) > ID_MAX_CHARS:
        raise IdError(f"record id has {len(value)} characters, the limit is {ID_MAX_CHARS}")
    if value.startswith(ASSIGNED_ID_MARK):
        raise IdError(f"record ids that begin with {ASSIGNED_ID_MARK!r} are assigned by the log; choose another id")
    if not value.isprintable():
        raise IdError(f"record id {value[:80]!r} has characters that cannot be printed; remove them")
    return value


def assigned_id(seq: int) -> str:
    return f"{ASSIGNED_ID_MARK}{seq}"


def assigned_seq(record_id: str) -> int | None:
    """Return the seq of an assigned id; `None` for an id that a sender chose."""
    number = record_id[1:]
    if record_id[:1] != ASSIGNED_ID_MARK or not (number.isascii() and number.isdigit()) or len(number) > 18:
        return None
    return int(number)


@dataclass(slots=True, eq=False)
class NewRecord:
    """A record to append. It is validated and encoded when it is created and must not be changed afterwards.

    `id`      chosen by the sender. Without one the log assigns `@{seq}`, and a repeat is not recognized.
    `headers` small metadata: principal, steer, hops, schema version.
    `draft`   name of the message that this record is a piece of. A later record that `closes` the same name contains
              the whole message; from then on the pieces may be compacted.
    `blobs`   sha256 names of blobs. They have to exist, and are kept as long as this record.
    `digest`  represents the body when ids are compared. By default it covers the payload without `created_at`.

    `body`, `header_text`, `lane` and `copy` are derived: the encoded payload and headers, the lane (see `lane_of`), and
    the conversation that this record is a copy of if the topic is not that conversation's own.
    """

    topic: str
    payload: JsonObject
    id: str | None = None
    headers: Mapping[str, JsonScalar] = field(default_factory=dict)
    draft: str | None = None
    closes: str | None = None
    blobs: tuple[str, ...] = ()
    digest: str = ""
    body: bytes = field(init=False, repr=False)
    header_text: bytes = field(init=False, repr=False)
    lane: str | None = field(init=False, repr=False)
    copy: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        kind, name = checked_topic(self.topic)
        payload = self.payload
        self.body = encode_object(payload, "payload")
        self.header_text = _encode_headers(self.headers) if self.headers else b""
        conversation = conversation_of(payload)
        self.lane = _lane(kind, name, conversation, payload)
        self.copy = "" if conversation == name else conversation
        if self.id is not None:
            check_id(self.id)
            self.digest = self.digest or digest_of(payload)
        if self.draft is not None or self.closes is not None:
            _check_draft(self.draft, self.closes)
        if self.blobs:
            check_blob_names(self.blobs)

    def also_in(self, topic: str, record_id: str | None) -> NewRecord:
        """Return the record for another topic, under the given id, without encoding and validating it again."""
        kind, name = checked_topic(topic)
        conversation = conversation_of(self.payload)
        other = object.__new__(NewRecord)
        other.topic, other.payload, other.body = topic, self.payload, self.body
        other.id, other.digest = record_id, self.digest
        other.headers, other.header_text = self.headers, self.header_text
        other.draft, other.closes, other.blobs = self.draft, self.closes, self.blobs
        other.lane = _lane(kind, name, conversation, self.payload)
        other.copy = "" if conversation == name else conversation
        return other

    def as_read(self, seq: int, at_ms: int) -> Record:
        """Return the record as readers get it. The texts are decoded, because readers share nothing with the sender."""
        return Record(
            self.topic,
            decode_object(self.body),
            self.id or "",
            seq,
            at_ms,
            decode_object(self.header_text) if self.header_text else None,
            self.draft,
            self.closes,
            self.blobs,
            size_bytes=len(self.body),
        )


def is_draft_name(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= DRAFT_MAX_CHARS and value.isprintable()


@lru_cache(maxsize=1024)  # a message has many pieces with the same names
def _check_draft(draft: str | None, closes: str | None) -> None:
    for name in (draft, closes):
        if name is not None and not is_draft_name(name):
            raise IdError(f"the name of a draft must have 1 to {DRAFT_MAX_CHARS} printable characters")
    if draft is not None and closes is not None:
        raise IdError("a record cannot be a draft and close one")


def _encode_headers(headers: Mapping[str, JsonScalar]) -> bytes:
    if not headers:
        return b""
    text = encode_object(dict(headers), "headers")
    if len(text) > HEADERS_MAX_BYTES:
        raise LimitError(
            f"headers take {len(text)} bytes, the limit is {HEADERS_MAX_BYTES}; put content into the payload"
        )
    return text


def check_blob_names(blobs: Sequence[str]) -> None:
    if len(blobs) > BLOBS_PER_RECORD_MAX:
        raise LimitError(f"a record names at most {BLOBS_PER_RECORD_MAX} blobs, not {len(blobs)}")
    for name in blobs:
        if len(name) != 64 or not set(name) <= set("0123456789abcdef"):
            raise IdError(f"a blob is named by its sha256 in 64 hexadecimal digits, not {name[:80]!r}")


@dataclass(frozen=True, init=False)
class Record(BusMessage):
    """A record as read from a log. Without an id of its sender it has the one that the log assigns."""

    seq: int = 0
    at_ms: int = 0  # the engine's wall clock at the append
    headers: Mapping[str, JsonScalar] = field(default_factory=dict)
    draft: str | None = None
    closes: str | None = None
    blobs: tuple[str, ...] = ()
    erased: bool = False
    malformed: str = ""  # why the payload could not be decoded; only set on mail, so that a worker can reject it
    size_bytes: int = field(default=0, compare=False)  # of the encoded payload

    def __init__(  # noqa: PLR0913, PLR0917 - the fields
        self,
        topic: str,
        payload: JsonObject,
        id: str = "",  # noqa: A002 - the name of the field
        seq: int = 0,
        at_ms: int = 0,
        headers: Mapping[str, JsonScalar] | None = None,
        draft: str | None = None,
        closes: str | None = None,
        blobs: tuple[str, ...] = (),
        erased: bool = False,
        malformed: str = "",
        size_bytes: int = 0,
    ) -> None:
        # The method that `dataclass` generates takes half as long again, and every record that is read comes here.
        # Filling `vars(self)` at once would be faster still, but a record would need another 340 bytes for that dict.
        put = object.__setattr__
        put(self, "topic", topic)
        put(self, "payload", payload)
        put(self, "id", id or assigned_id(seq))
        put(self, "seq", seq)
        put(self, "at_ms", at_ms)
        put(self, "headers", headers or {})
        put(self, "size_bytes", size_bytes)
        if draft is not None:
            put(self, "draft", draft)
        if closes is not None:
            put(self, "closes", closes)
        if blobs:
            put(self, "blobs", blobs)
        if erased:
            put(self, "erased", erased)
        if malformed:
            put(self, "malformed", malformed)

    @property
    def ref(self) -> MailRef:
        return MailRef(self.topic, self.seq)


def decode_object(text: bytes | str) -> JsonObject:
    """Decode a stored JSON object. Raises `ValueError` for anything else."""
    value = orjson.loads(text)
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, found {type(value).__name__}")
    return value


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """State of a topic, without its records."""

    topic: str
    last: int = 0
    floor: int = 0
    deleted: bool = False
    head: Mapping[str, Any] = field(default_factory=dict)
    active_ms: int = 0  # when the topic was created or its head was last set


@dataclass(frozen=True, slots=True)
class Page:
    """Records in order, and the state of the topic when they were read."""

    records: tuple[Record, ...]
    last: int
    floor: int
    deleted: bool


def page_after(cursor: int | str, records: Iterable[Record]) -> Page | None:
    """Return the page that a reader at this cursor would read, if these newest records begin right after the cursor."""
    if isinstance(cursor, str):
        return None
    following = tuple(record for record in records if record.seq > cursor)
    if not following or following[0].seq != cursor + 1 or following[-1].seq != cursor + len(following):
        return None
    return Page(following, following[-1].seq, 0, deleted=False)


@dataclass(frozen=True, slots=True)
class TopicList:
    """Topics, most recently active first. `next` is the cursor of the next page, `None` at the end."""

    topics: tuple[TopicInfo, ...]
    next: tuple[int, str] | None


@dataclass(frozen=True, slots=True)
class AppendResult:
    """Result of an append: the seq of each record, in order. `repeat`: the append had happened before."""

    seqs: tuple[int, ...]
    repeat: bool = False


@dataclass(frozen=True, slots=True)
class TrimResult:
    """Result of a trim: the floor after it, the number of dropped records, and whether there are `more` to drop."""

    floor: int
    dropped: int = 0
    more: bool = False


@dataclass(frozen=True, slots=True)
class CompactResult:
    """Result of a compaction step: the number of dropped drafts, and where the next step begins; `None` at the end."""

    dropped: int
    next: int | None = None


@dataclass(frozen=True, slots=True)
class Owner:
    """The right to write for one lane. Engines compare only `token`, which is never used twice."""

    worker: str
    agent: str
    conversation: str
    token: str


@dataclass(frozen=True, slots=True)
class ClaimedLane:
    """A lane that a worker has claimed, with its first mail: control first."""

    owner: Owner
    attempt: int  # 1 for the first
    mail: tuple[Record, ...]
    pending: int  # number of records in the lane, beyond `mail` too
    clock_ms: int = field(default=0, compare=False)  # the log clock at the claim; it never jumps (decision 28)
    principal: str = ""  # owner of the conversation; empty if it has none
    history_last: int | None = None  # last seq of the conversation's history at the claim; None if it is not known


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """Result of a claim.

    `more`: new mail is left to sort, so claim again. `wait_s`: time until a delayed lane is due or the lease of another
    worker expires; `None` if there is nothing to wait for. `over_share`: ready lanes were left because their principals
    use their share of slots, so claim again when a slot is free.
    """

    lanes: tuple[ClaimedLane, ...]
    more: bool
    wait_s: float | None
    over_share: bool = False


@dataclass(frozen=True, slots=True)
class LaneInfo:
    """A lane with mail, for operators. `state`: ready, held, later (due in `due_s`), parked."""

    agent: str
    conversation: str
    pending: int
    attempt: int
    state: str
    worker: str | None = None
    due_s: float | None = None


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker with a lease, for operators."""

    worker: str
    agents: tuple[str, ...]
    lease_s: float  # time left; negative if the lease has expired
    lanes: int


@dataclass(frozen=True, slots=True)
class LogInfo:
    """Identity of a log.

    `warnings`: settings of the server under which the log cannot keep its promises. `details`: what else an operator
    may want to know about it.
    """

    engine: str
    schema: int
    log_id: str
    release: str
    warnings: tuple[str, ...] = ()
    details: tuple[str, ...] = ()
