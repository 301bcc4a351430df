"""Operations of an engine, as values.

An operation is validated when it is created, so an engine never gets an invalid one. `Engine.call` and `Engine.acall`
run it; the result has the type `R` of `Operation[R]`. Every operation that changes the log is idempotent: after a lost
reply the same object can be run again.

An engine makes these checks of an append in this order and changes nothing unless all of them pass:
 1. owner: the token (`Fenced`), then the counter (a number already seen is a repeat, one too far a `CounterGap`);
 2. key: a known id with the same digest is a repeat and returns the first result; another digest is `IdConflict`;
 3. deleted topics (`TopicDeleted`);
 4. the other ids (`IdConflict`; a record with the same digest is left out, its seq is that of the first);
 5. conditions (`ConditionFailed`);
 6. blobs (`BlobMissing`);
 7. the size of heads after the change (`HeadTooLarge`).
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, Self, TypeAlias, TypeVar

from magent2.bus.records import (
    AppendResult,
    ClaimResult,
    CompactResult,
    LaneInfo,
    LogInfo,
    MailRef,
    NewRecord,
    Owner,
    Page,
    Record,
    TopicInfo,
    TopicList,
    TrimResult,
    WorkerInfo,
    canonical,
    check_blob_names,
    check_id,
    encode_object,
)
from magent2.errors import BlobTooLarge, HeadTooLarge, IdError, InvalidInput, LimitError, TopicError
from magent2.models.address import check_name, check_topic, conversation_topics
from magent2.models.json_types import JsonObject, JsonScalar

RECORDS_PER_APPEND_MAX = 1000
CONDITIONS_MAX = 256
READ_LIMIT_MAX = 10_000
CLAIM_LIMIT_MAX = 1000
CLAIM_MAIL_MAX = 16  # records of a lane's mail that a claim returns
AGENTS_PER_WORKER_MAX = 256
SHARE_MIN = 0.01
LEASE_MIN_S, LEASE_MAX_S = 0.01, 3600.0
DELAY_MAX_S = 365 * 86_400.0
HEAD_MAX_BYTES = 4096
HEAD_FIELD_MAX_CHARS = 64
BLOB_MAX_BYTES = 16 << 20
DUMP_LIMIT_MAX = 1000
DUMP_CHUNK_BYTES = 4 << 20  # a chunk of a dump ends after the row that exceeds this
REMOVED_PER_STEP_MAX = 1000  # records that one operation of retention looks at or removes: no writer waits long for it
BLOBS_PER_STEP_MAX = 64  # blobs that one operation removes; a blob is far larger than a record
DUMP_SCHEMA = 1  # of the rows of `Dump`, on every engine; how an engine stores them is the engine's own schema
IDS_KEPT = 10_000  # ids per topic that stay known after their records were dropped
INTAKE_MAX = 256  # records per inbox that one claim puts into lanes, so that no claim blocks others for long
IDLE_LANES_DROPPED_MAX = 256  # lanes without mail that one claim forgets
LANE_MEMORY_S = 86_400  # how long a lane without mail is remembered, so that a repeated settle is recognized

OLDEST = -1  # for `Read.after`: start with the oldest record that the topic still has

R_co = TypeVar("R_co", covariant=True)
DumpRow: TypeAlias = JsonObject  # its field `kind` says which fields it has


class Operation(Generic[R_co]):
    """An operation whose result has the type parameter as its type."""

    __slots__ = ()


AnyOperation: TypeAlias = Operation[object]


def _check_range(what: str, value: object, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise LimitError(f"{what} must be between {low:g} and {high:g}, not {value!r}")


# --- writing -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LastSeqIs:
    """Condition: the last seq of the topic is this one; 0 for a topic without records."""

    topic: str
    seq: int

    def __post_init__(self) -> None:
        check_topic(self.topic)
        _check_range("the seq of a condition", self.seq, 0, 2**53)


@dataclass(frozen=True, slots=True)
class HeadIs:
    """Condition: the field of the topic's head has this value; `None` for a field that is not set."""

    topic: str
    name: str
    value: JsonScalar

    def __post_init__(self) -> None:
        check_topic(self.topic)
        _check_field(self.name)

    @property
    def text(self) -> str:
        return "" if self.value is None else canonical(self.value)


Condition: TypeAlias = LastSeqIs | HeadIs


def _check_field(name: str) -> None:
    if not name.isidentifier() or len(name) > HEAD_FIELD_MAX_CHARS:
        raise InvalidInput(
            f"a field of a head must be an identifier of at most {HEAD_FIELD_MAX_CHARS} characters, not {name[:80]!r}"
        )


@dataclass(frozen=True, slots=True)
class SetHead:
    """Set fields of a topic's head; `None` removes one, others stay. `Topics` filters by the field `owner`."""

    topic: str
    fields: Mapping[str, object]
    texts: dict[str, str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_topic(self.topic)
        if not self.fields:
            raise InvalidInput("SetHead needs at least one field")
        encode_object({name: value for name, value in self.fields.items() if value is not None}, "head")
        for name in self.fields:
            _check_field(name)
        texts = {name: "" if value is None else canonical(value) for name, value in self.fields.items()}
        size = head_size(texts)
        if size > HEAD_MAX_BYTES:
            raise HeadTooLarge(head_too_large(self.topic, size))
        owner = self.fields.get("owner")
        if owner is not None:
            if not isinstance(owner, str):
                raise InvalidInput(f"the field owner must be a name, not {type(owner).__name__}")
            check_name(owner, "owner")
        object.__setattr__(self, "texts", texts)


def head_size(texts: Mapping[str, str]) -> int:
    """Return the size of a head in bytes: names and JSON texts of its fields."""
    return sum(map(len, texts)) + len("".join(texts.values()).encode())


def head_too_large(topic: str, size: int) -> str:
    return f"the head of {topic!r} would take {size} bytes, the limit is {HEAD_MAX_BYTES}; keep content in records"


@dataclass(slots=True, kw_only=True, eq=False)
class Write(Operation[AppendResult]):
    """Base of all appends: records for any topics, conditions and heads, applied atomically."""

    records: tuple[NewRecord, ...] = ()
    conditions: tuple[Condition, ...] = ()
    heads: tuple[SetHead, ...] = ()

    def __post_init__(self) -> None:
        if len(self.records) > RECORDS_PER_APPEND_MAX:
            raise LimitError(f"an append takes at most {RECORDS_PER_APPEND_MAX} records, not {len(self.records)}")
        if len(self.records) > 1:
            named = [(record.topic, record.id) for record in self.records if record.id is not None]
            if len(named) != len(set(named)):
                raise IdError("an append has two records with the same id in one topic; give each record its own id")
        if len(self.conditions) > CONDITIONS_MAX:
            raise LimitError(f"an append takes at most {CONDITIONS_MAX} conditions, not {len(self.conditions)}")
        if len(self.heads) > 1 and len({head.topic for head in self.heads}) != len(self.heads):
            raise InvalidInput("an append sets the head of one topic twice; merge the fields into one SetHead")

    def merge(self, *others: Write) -> Self:
        """Return this write with those of `others` after it, as one atomic step.

        Heads of one topic become one change, later fields over earlier ones. A condition on a head field that an
        earlier part sets is dropped: all conditions are checked before anything is written, so it could not hold yet.
        """
        conditions = dict.fromkeys(self.conditions)
        fields = {(head.topic, name) for head in self.heads for name in head.fields}
        for other in others:
            conditions.update(
                (item, None)
                for item in other.conditions
                if not (isinstance(item, HeadIs) and (item.topic, item.name) in fields)
            )
            fields.update((head.topic, name) for head in other.heads for name in head.fields)
        every: tuple[Write, ...] = (self, *others)
        return replace(
            self,
            records=tuple(record for write in every for record in write.records),
            conditions=tuple(conditions),
            heads=merge_heads(head for write in every for head in write.heads),
        )


def merge_heads(heads: Iterable[SetHead]) -> tuple[SetHead, ...]:
    """Return one change per topic, with later fields over earlier ones."""
    changes = tuple(heads)
    if len(changes) < 2:
        return changes
    merged: dict[str, SetHead] = {}
    for head in changes:
        earlier = merged.get(head.topic)
        if earlier is None or earlier.fields.keys() <= head.fields.keys():
            merged[head.topic] = head
        else:
            merged[head.topic] = SetHead(head.topic, {**earlier.fields, **head.fields})
    return tuple(merged.values())


@dataclass(slots=True, kw_only=True, eq=False)
class Append(Write):
    """Append without an owner. The first record is the key: if its id is known, the whole append is a repeat.

    A key record without an id gets one, so that running the operation again after a lost reply appends nothing twice.
    """

    def __post_init__(self) -> None:
        Write.__post_init__(self)
        if not self.records:
            raise InvalidInput("an append needs at least one record: the id of the first makes it happen only once")
        if self.records[0].id is None:
            key = replace(self.records[0], id=str(uuid.uuid4()))
            self.records = (key, *self.records[1:])


@dataclass(slots=True, kw_only=True, eq=False)
class OwnedAppend(Write):
    """Append as the owner of a lane. `n` counts 1, 2, 3 … per owner token; a known number returns the first result.

    `mail` is removed from the lane in the same step (steers that the answer has included). The owner keeps the lane.
    Only the result of the last number is remembered; for older numbers `seqs` is empty.
    """

    owner: Owner
    n: int
    mail: tuple[MailRef, ...] = ()

    def __post_init__(self) -> None:
        Write.__post_init__(self)
        _check_range("an owner's counter", self.n, 1, 2**53)
        _check_mail(self.owner, self.mail)


@dataclass(slots=True, kw_only=True, eq=False)
class Settle(Write):
    """End a run: remove its mail, append its last records, give the lane up.

    A lane with more mail goes to the end of the ready queue, and workers that watch the agent's inbox are woken.
    Mail that is no longer in the lane is ignored. The attempts start again at 1. Settling again with the same token
    returns the first result, until another owner has given the lane up; after that it is `Fenced`.
    """

    owner: Owner
    mail: tuple[MailRef, ...]

    def __post_init__(self) -> None:
        Write.__post_init__(self)
        if not self.mail:
            raise InvalidInput("Settle needs the mail that it settles; use Later to give a lane back without settling")
        _check_mail(self.owner, self.mail)


@dataclass(slots=True, kw_only=True, eq=False)
class Later(Write):
    """Give the lane up with its mail: ready again after `delay_s`, or, with `None`, parked until control mail comes.

    Control mail makes a waiting lane ready at once, at the front. A lane that already has control mail does not wait.
    `refund`: this attempt does not count (drained, paused, postponed, or left to a newer release). A repeat is handled
    as for `Settle`.
    """

    owner: Owner
    delay_s: float | None
    refund: bool = False

    def __post_init__(self) -> None:
        Write.__post_init__(self)
        if self.delay_s is not None:
            _check_range("a delay in seconds", self.delay_s, 0, DELAY_MAX_S)


def _check_mail(owner: Owner, mail: Iterable[MailRef]) -> None:
    inboxes = (f"chat:{owner.agent}", f"control:{owner.agent}")
    for ref in mail:
        if ref.topic not in inboxes or ref.seq < 1:
            raise InvalidInput(f"{ref.topic!r} {ref.seq} is not mail of agent {owner.agent!r}")


# --- lanes -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim(Operation[ClaimResult]):
    """Renew the worker's lease, return lanes of expired workers to the front, sort new mail, take up to `limit` lanes.

    A worker has one lease. A lane has one owner at a time; its mail is ordered: control first, then by seq.
    A claim with the same `nonce` (after a lost reply) returns the lanes that are still held from it, and no others.
    `limit=0` takes no lane. Mail whose record was erased is not sorted into a lane.

    The principal of a lane is the field `owner` in the head of its conversation's stream when the lane becomes ready.
    Of each agent, principals take turns: a claim takes one lane of each, then the next one of each. The lanes of one
    principal keep their order. Lanes whose conversation has no owner take turns with them, as one principal.
    `share`: a principal that has `slots` gets another lane only while `has_room`; then `limit` must be the number of
    free slots of the worker. `slots` are those that each principal uses before the claim.
    """

    worker: str
    agents: tuple[str, ...]
    limit: int
    lease_s: float
    nonce: str = field(default_factory=lambda: uuid.uuid4().hex)
    share: float = 1.0
    slots: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_name(self.worker, "worker id")
        _check_range("the number of agents", len(self.agents), 1, AGENTS_PER_WORKER_MAX)
        for agent in self.agents:
            check_name(agent, "agent name")
        _check_range("the limit of a claim", self.limit, 0, CLAIM_LIMIT_MAX)
        _check_range("a lease in seconds", self.lease_s, LEASE_MIN_S, LEASE_MAX_S)
        check_id(self.nonce)
        _check_range("the share of a principal", self.share, SHARE_MIN, 1)

    def has_room(self, principal: str, used: int, free: int) -> bool:
        """Return whether a principal that uses this many slots may take one of those that are free.

        Alone it gets `share` of all slots. The others stay free for principals that come later: the more principals
        use their share, the fewer each of them gets. Conversations without an owner belong to trusted code, which is
        not limited.
        """
        return not principal or used * (1 - self.share) < self.share * free


@dataclass(frozen=True, slots=True)
class Renew(Operation[bool]):
    """Extend a worker's lease. `False`: the worker has no lease (any more); its lanes may have other owners."""

    worker: str
    lease_s: float

    def __post_init__(self) -> None:
        check_name(self.worker, "worker id")
        _check_range("a lease in seconds", self.lease_s, LEASE_MIN_S, LEASE_MAX_S)


@dataclass(frozen=True, slots=True)
class Leave(Operation[int]):
    """End a worker's lease now, as if it had expired. Returns the number of lanes that it held."""

    worker: str

    def __post_init__(self) -> None:
        check_name(self.worker, "worker id")


@dataclass(frozen=True, slots=True)
class Pending(Operation[tuple[Record, ...]]):
    """Return the mail in the owner's lane, control first. `Fenced` if the token is not that of the current owner."""

    owner: Owner
    limit: int = CLAIM_MAIL_MAX

    def __post_init__(self) -> None:
        _check_range("limit", self.limit, 1, READ_LIMIT_MAX)


@dataclass(frozen=True, slots=True)
class Lanes(Operation[tuple[LaneInfo, ...]]):
    """List the lanes of an agent that have mail, oldest first. Mail that no claim has sorted yet is not included."""

    agent: str
    limit: int = 1000

    def __post_init__(self) -> None:
        check_name(self.agent, "agent name")
        _check_range("limit", self.limit, 1, READ_LIMIT_MAX)


@dataclass(frozen=True, slots=True)
class Workers(Operation[tuple[WorkerInfo, ...]]):
    """List the workers with a lease, including expired leases that no claim has removed yet."""


# --- reading -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Read(Operation[Page]):
    """Read up to `limit` records, oldest first.

    `after`: a seq or an id (exclusive), `OLDEST`, or `None` for the last `limit` records. `before`: a seq; returns the
    last records below it. A seq is a valid cursor while floor ≤ seq ≤ last, an id while its record is in the log;
    otherwise `UnknownCursor`. For a deleted topic every cursor returns an empty page with `deleted` set.
    A page ends before a malformed record. If that is the first record, `MalformedRecord` is raised.
    """

    topic: str
    after: int | str | None = None
    limit: int = 100
    before: int | None = None

    def __post_init__(self) -> None:
        check_topic(self.topic)
        _check_range("limit", self.limit, 1, READ_LIMIT_MAX)
        if self.after is not None and self.before is not None:
            raise InvalidInput("Read takes after or before, not both")
        if isinstance(self.after, str) and not self.after:
            raise IdError("an empty id is not a cursor; leave it out to read the last records")
        if self.before is not None:
            _check_range("before", self.before, 1, 2**53)


@dataclass(frozen=True, slots=True)
class Find(Operation[Record | None]):
    """Return the record with this id, or with the seq of `@{seq}`; `None` if the topic does not have it (any more)."""

    topic: str
    id: str

    def __post_init__(self) -> None:
        check_topic(self.topic)
        if not self.id:
            raise IdError("find needs an id")


@dataclass(frozen=True, slots=True)
class Describe(Operation[tuple[TopicInfo, ...]]):
    """Return the state of these topics at one moment. A topic that does not exist has last = 0."""

    topics: tuple[str, ...]

    def __post_init__(self) -> None:
        _check_range("the number of topics", len(self.topics), 1, READ_LIMIT_MAX)
        for topic in self.topics:
            check_topic(topic)


@dataclass(frozen=True, slots=True)
class Topics(Operation[TopicList]):
    """List topics that start with `prefix`, most recently active first (then by name, descending). No deleted ones.

    `owner`: only topics whose head has this owner. `before`: `TopicList.next` of the previous page.
    """

    prefix: str = ""
    owner: str | None = None
    before: tuple[int, str] | None = None
    limit: int = 100

    def __post_init__(self) -> None:
        _check_range("limit", self.limit, 1, READ_LIMIT_MAX)
        if not self.prefix.isprintable():
            raise TopicError(f"prefix {self.prefix[:80]!r} has characters that cannot be printed; topics have none")
        if self.owner is not None:
            check_name(self.owner, "owner")


@dataclass(frozen=True, slots=True)
class Info(Operation[LogInfo]):
    """Return the identity of the log."""


# --- maintenance -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Trim(Operation[TrimResult]):
    """Drop the oldest records: all but the last `keep`, those older than `max_age_s`, or up to the seq `through`.

    Drops at most `limit` records; while the result says `more`, run it again. Unsettled mail and the records after it
    are never dropped. At least the last 10,000 ids of dropped records stay known.
    """

    topic: str
    keep: int | None = None
    max_age_s: float | None = None
    through: int | None = None
    limit: int = REMOVED_PER_STEP_MAX

    def __post_init__(self) -> None:
        check_topic(self.topic)
        if [self.keep, self.max_age_s, self.through].count(None) != 2:
            raise InvalidInput("Trim takes exactly one of keep, max_age_s and through")
        if self.through is not None:
            _check_range("through", self.through, 0, 2**53)
        if self.keep is not None:
            _check_range("keep", self.keep, 0, 2**53)
        if self.max_age_s is not None:
            _check_range("max_age_s", self.max_age_s, 0, 1e11)
        _check_range("limit", self.limit, 1, REMOVED_PER_STEP_MAX)


@dataclass(frozen=True, slots=True)
class Compact(Operation[CompactResult]):
    """Drop drafts of a topic whose closing record is at least `min_age_s` old. The floor stays.

    Looks at no more than `limit` drafts, beginning after the seq `after`; continue with the `next` of the result.
    """

    topic: str
    min_age_s: float = 60.0
    after: int = 0
    limit: int = REMOVED_PER_STEP_MAX

    def __post_init__(self) -> None:
        check_topic(self.topic)
        _check_range("min_age_s", self.min_age_s, 0, 1e11)
        _check_range("after", self.after, 0, 2**53)
        _check_range("limit", self.limit, 1, REMOVED_PER_STEP_MAX)


@dataclass(frozen=True, slots=True)
class Erase(Operation[int]):
    """Remove the content of these records but keep seq and id; returns how many existed. Their blobs are released.

    No operation returns the content any more. `Scrub` says when the storage holds no copy of it either.
    The digest of the body stays, so that a repeat of the id is recognized. `forget` removes it too, because a digest
    confirms a guess of the text; every later append with the id is then `IdConflict`.
    """

    topic: str
    seqs: tuple[int, ...]
    forget: bool = False

    def __post_init__(self) -> None:
        check_topic(self.topic)
        _check_range("the number of records", len(self.seqs), 1, RECORDS_PER_APPEND_MAX)


@dataclass(frozen=True, slots=True)
class Delete(Operation[None]):
    """Delete topics permanently: records and head are removed, appends are `TopicDeleted`. The last seq stays.

    With a conversation, in the same step: its lanes are removed and their owners fenced. Its copies in other topics are
    erased before the operation returns; if the process dies in between, the next `Scrub` erases them.
    A topic that does not exist is marked as deleted too. No operation returns the content any more; `Scrub` says when
    the storage holds no copy of it either. Without `scrub`, the bytes may stay until the storage is scrubbed for
    another reason or uses the space again.
    """

    topics: tuple[str, ...]
    conversation: str | None = None
    scrub: bool = True

    def __post_init__(self) -> None:
        _check_range("the number of topics", len(self.topics), 1, RECORDS_PER_APPEND_MAX)
        for topic in self.topics:
            check_topic(topic)
        if self.conversation is not None:
            check_name(self.conversation, "conversation id")


@dataclass(frozen=True, slots=True)
class Expire(Operation[bool]):
    """Delete a conversation, as `Delete` without `scrub` does, unless it is in use. Returns whether it was deleted.

    It is in use if a record or a head was written to one of its topics in the last `idle_s` seconds, or if mail of it
    waits or is being processed. The check and the deletion are one step, so no message is lost between them.
    `dry_run` only checks.
    """

    conversation: str
    idle_s: float
    dry_run: bool = False

    def __post_init__(self) -> None:
        check_name(self.conversation, "conversation id")
        _check_range("idle_s", self.idle_s, 0, 1e11)

    @property
    def topics(self) -> tuple[str, ...]:
        return conversation_topics(self.conversation)


@dataclass(frozen=True, slots=True)
class Scrub(Operation[bool]):
    """Remove the bytes of deleted and erased content from the storage now. Engines do so by themselves later.

    They begin within `SCRUB_WITHIN_S` after the deletion (`bus/scrub.py`), also if the process that deleted has died,
    as long as a process uses the log. Returns whether the storage is clean. `False`: another process is scrubbing, or a
    reader still needs the old content; run the operation again. SQLite rewrites a file, and PostgreSQL tables, of
    more than `SCRUB_MAX_BYTES` only with `any_size`: writers wait meanwhile.
    """

    any_size: bool = False


@dataclass(frozen=True, slots=True)
class PutBlob(Operation[str]):
    """Store bytes under their sha256, which is returned. Storing them again resets their age."""

    data: bytes = field(repr=False)
    name: str = field(init=False)

    def __post_init__(self) -> None:
        if len(self.data) > BLOB_MAX_BYTES:
            raise BlobTooLarge(f"a blob takes at most {BLOB_MAX_BYTES} bytes, not {len(self.data)}")
        object.__setattr__(self, "name", hashlib.sha256(self.data).hexdigest())


# Run it to find out whether the store takes writes. It changes nothing that a reader of the log sees, and it takes no
# more space each time: only the age of one small blob changes.
WRITE_PROBE = PutBlob(b"magent2 write probe")


@dataclass(frozen=True, slots=True)
class GetBlob(Operation[bytes]):
    """Return the bytes with this name, or raise `BlobMissing`."""

    name: str

    def __post_init__(self) -> None:
        check_blob_names((self.name,))


@dataclass(frozen=True, slots=True)
class SweepBlobs(Operation[int]):
    """Drop up to `limit` blobs that no record names and that are at least `min_age_s` old; returns how many.

    `dry_run` drops nothing and returns the number of all such blobs.
    """

    min_age_s: float
    limit: int = BLOBS_PER_STEP_MAX
    dry_run: bool = False

    def __post_init__(self) -> None:
        _check_range("min_age_s", self.min_age_s, 0, 1e11)
        _check_range("limit", self.limit, 1, BLOBS_PER_STEP_MAX)


# --- export and import -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Dump(Operation[tuple[tuple[DumpRow, ...], str | None]]):
    """Export the log in the engine-neutral rows of `bus/transfer.py`, one chunk per call.

    Returns rows and the cursor of the next chunk. The first call has no cursor; after the last chunk it is `None`.
    """

    cursor: str = ""
    limit: int = 500

    def __post_init__(self) -> None:
        _check_range("limit", self.limit, 1, DUMP_LIMIT_MAX)


@dataclass(frozen=True, slots=True)
class Load(Operation[None]):
    """Import dumped rows with their seqs and times. `first`: the log has to be empty, otherwise `NotEmpty`."""

    rows: tuple[DumpRow, ...]
    first: bool = False

    def __post_init__(self) -> None:
        _check_range("the number of rows", len(self.rows), 1, DUMP_LIMIT_MAX)
