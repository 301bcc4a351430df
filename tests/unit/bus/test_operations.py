from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from magent2.bus.operations import (
    BLOB_MAX_BYTES,
    HEAD_MAX_BYTES,
    Append,
    Claim,
    Compact,
    Delete,
    Describe,
    Dump,
    Erase,
    Expire,
    Find,
    GetBlob,
    HeadIs,
    Lanes,
    LastSeqIs,
    Later,
    Leave,
    Load,
    OwnedAppend,
    Pending,
    PutBlob,
    Read,
    Renew,
    SetHead,
    Settle,
    SweepBlobs,
    Topics,
    Trim,
    head_size,
)
from magent2.bus.records import MailRef, NewRecord, Owner
from magent2.errors import (
    AddressError,
    BlobTooLarge,
    HeadTooLarge,
    IdError,
    InvalidInput,
    LimitError,
    PayloadError,
    TopicError,
)

OWNER = Owner("w1", "A", "c1", "w1/n/1")
MAIL = (MailRef("chat:A", 1),)
RECORD = NewRecord("stream:a", {}, "r1")


def claim(**fields: Any) -> Claim:
    good: dict[str, Any] = {"worker": "w1", "agents": ("A",), "limit": 1, "lease_s": 1.0}
    return Claim(**good | fields)


BAD: dict[str, tuple[Callable[[], object], type[InvalidInput], str]] = {
    # writing
    "append of nothing": (Append, InvalidInput, "at least one record"),
    "append of too many": (
        lambda: Append(records=(NewRecord("stream:a", {}),) * 1001),
        LimitError,
        "at most 1000 records",
    ),
    "one id twice": (lambda: Append(records=(RECORD, RECORD)), IdError, "the same id in one topic"),
    "too many conditions": (
        lambda: Append(records=(RECORD,), conditions=(LastSeqIs("stream:a", 0),) * 257),
        LimitError,
        "at most 256 conditions",
    ),
    "one head twice": (
        lambda: Append(records=(RECORD,), heads=(SetHead("stream:a", {"x": 1}), SetHead("stream:a", {"y": 1}))),
        InvalidInput,
        "head of one topic twice",
    ),
    "condition on no topic": (lambda: LastSeqIs("", 0), TopicError, "non-empty"),
    "condition on a negative seq": (lambda: LastSeqIs("stream:a", -1), LimitError, "seq of a condition"),
    "condition on a field": (lambda: HeadIs("stream:a", "not a name", 1), InvalidInput, "identifier"),
    "head with an owner that is no name": (
        lambda: SetHead("stream:a", {"owner": 7}),
        InvalidInput,
        "owner must be a name",
    ),
    "head without fields": (lambda: SetHead("stream:a", {}), InvalidInput, "at least one field"),
    "head with an odd field": (lambda: SetHead("stream:a", {"a b": 1}), InvalidInput, "identifier"),
    "head with a long field": (lambda: SetHead("stream:a", {"x" * 65: 1}), InvalidInput, "at most 64"),
    "head that is not JSON": (lambda: SetHead("stream:a", {"x": {1}}), PayloadError, "head"),
    "head too large": (
        lambda: SetHead("stream:a", {"x": "y" * HEAD_MAX_BYTES}),
        HeadTooLarge,
        "keep content in records",
    ),
    "owner that is no name": (lambda: SetHead("stream:a", {"owner": " x"}), AddressError, "owner"),
    "counter from zero": (lambda: OwnedAppend(owner=OWNER, n=0), LimitError, "counter"),
    "mail of another agent": (
        lambda: OwnedAppend(owner=OWNER, n=1, mail=(MailRef("chat:B", 1),)),
        InvalidInput,
        "not mail of agent 'A'",
    ),
    "mail without a number": (lambda: Settle(owner=OWNER, mail=(MailRef("chat:A", 0),)), InvalidInput, "not mail"),
    "settle without mail": (lambda: Settle(owner=OWNER, mail=()), InvalidInput, "use Later"),
    "negative delay": (lambda: Later(owner=OWNER, delay_s=-1), LimitError, "delay"),
    "endless delay": (lambda: Later(owner=OWNER, delay_s=float("inf")), LimitError, "delay"),
    # lanes
    "worker without a name": (lambda: claim(worker=""), AddressError, "worker id"),
    "no agents": (lambda: claim(agents=()), LimitError, "number of agents"),
    "agent without a name": (lambda: claim(agents=("A", " ")), AddressError, "agent name"),
    "negative claim": (lambda: claim(limit=-1), LimitError, "limit of a claim"),
    "no lease": (lambda: claim(lease_s=0), LimitError, "lease"),
    "endless lease": (lambda: claim(lease_s=1e9), LimitError, "lease"),
    "nonce": (lambda: claim(nonce=""), IdError, "non-empty"),
    "renew without a name": (lambda: Renew("", 1), AddressError, "worker id"),
    "renew for no time": (lambda: Renew("w1", 0), LimitError, "lease"),
    "leave without a name": (lambda: Leave(""), AddressError, "worker id"),
    "pending none": (lambda: Pending(OWNER, limit=0), LimitError, "limit"),
    "lanes of no agent": (lambda: Lanes(""), AddressError, "agent name"),
    "no lanes": (lambda: Lanes("A", limit=0), LimitError, "limit"),
    # reading
    "read no topic": (lambda: Read(""), TopicError, "non-empty"),
    "read none": (lambda: Read("stream:a", limit=0), LimitError, "limit must be between 1 and 10000"),
    "read too many": (lambda: Read("stream:a", limit=10_001), LimitError, "limit"),
    "read true": (lambda: Read("stream:a", limit=True), LimitError, "not True"),
    "after and before": (lambda: Read("stream:a", after=1, before=2), InvalidInput, "not both"),
    "empty cursor": (lambda: Read("stream:a", after=""), IdError, "leave it out"),
    "before nothing": (lambda: Read("stream:a", before=0), LimitError, "before"),
    "find nothing": (lambda: Find("stream:a", ""), IdError, "needs an id"),
    "describe nothing": (lambda: Describe(()), LimitError, "number of topics"),
    "describe a bad topic": (lambda: Describe(("stream:a", "")), TopicError, "non-empty"),
    "list none": (lambda: Topics(limit=0), LimitError, "limit"),
    # maintenance
    "trim by nothing": (lambda: Trim("stream:a"), InvalidInput, "exactly one of keep, max_age_s and through"),
    "trim by both": (lambda: Trim("stream:a", keep=1, max_age_s=1), InvalidInput, "exactly one"),
    "trim by a seq and a number": (lambda: Trim("stream:a", keep=1, through=1), InvalidInput, "exactly one"),
    "trim through less than nothing": (lambda: Trim("stream:a", through=-1), LimitError, "through"),
    "keep less than nothing": (lambda: Trim("stream:a", keep=-1), LimitError, "keep"),
    "older than never": (lambda: Trim("stream:a", max_age_s=-1), LimitError, "max_age_s"),
    "compact backwards": (lambda: Compact("stream:a", min_age_s=-1), LimitError, "min_age_s"),
    "trim more than a step": (lambda: Trim("stream:a", keep=1, limit=1001), LimitError, "limit"),
    "compact nothing": (lambda: Compact("stream:a", limit=0), LimitError, "limit"),
    "compact after nowhere": (lambda: Compact("stream:a", after=-1), LimitError, "after"),
    "expire a bad conversation": (lambda: Expire("", 1.0), AddressError, "conversation id"),
    "expire backwards": (lambda: Expire("c1", -1.0), LimitError, "idle_s"),
    "sweep more than a step": (lambda: SweepBlobs(1.0, limit=65), LimitError, "limit"),
    "erase nothing": (lambda: Erase("stream:a", ()), LimitError, "number of records"),
    "delete nothing": (lambda: Delete(()), LimitError, "number of topics"),
    "delete a bad conversation": (lambda: Delete(("stream:a",), ""), AddressError, "conversation id"),
    "blob too large": (lambda: PutBlob(bytes(BLOB_MAX_BYTES + 1)), BlobTooLarge, "at most"),
    "blob of no name": (lambda: GetBlob("x"), IdError, "64 hexadecimal digits"),
    "sweep backwards": (lambda: SweepBlobs(-1), LimitError, "min_age_s"),
    # export and import
    "dump none": (lambda: Dump(limit=0), LimitError, "limit"),
    "load nothing": (lambda: Load(()), LimitError, "number of rows"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_operation_is_refused_when_it_is_made_and_says_why(case: str) -> None:
    build, error, advice = BAD[case]

    with pytest.raises(error, match=advice) as caught:
        build()

    assert type(caught.value) is error


def test_the_key_of_an_append_is_given_an_id_so_that_a_lost_reply_cannot_double_it() -> None:
    operation = Append(records=(NewRecord("stream:a", {}), NewRecord("stream:a", {})))

    key, second = operation.records
    assert key.id
    assert (key.digest != "", second.id) == (True, None)


def test_the_key_keeps_the_id_that_its_sender_gave() -> None:
    assert Append(records=(RECORD,)).records == (RECORD,)


def test_one_id_may_stand_in_two_topics_of_an_append() -> None:
    assert len(Append(records=(RECORD, NewRecord("stream:b", {}, "r1"))).records) == 2


@pytest.mark.parametrize(
    ("value", "text"), [(None, ""), ("x", '"x"'), (7, "7"), (True, "true"), (1.5, "1.5"), ("", '""')]
)
def test_a_head_is_compared_by_its_json_text(value: Any, text: str) -> None:
    assert HeadIs("stream:a", "x", value).text == text
    assert SetHead("stream:a", {"x": value}).texts == {"x": text}


def test_the_text_of_a_field_does_not_depend_on_the_order_inside() -> None:
    assert SetHead("stream:a", {"x": {"b": 1, "a": 2}}).texts == SetHead("stream:a", {"x": {"a": 2, "b": 1}}).texts


def test_the_size_of_a_head_is_counted_in_bytes() -> None:
    assert head_size({"x": '"ä"', "gone": ""}) == 1 + 4 + 4


def test_a_blob_is_named_when_it_is_made_and_does_not_print_its_bytes() -> None:
    operation = PutBlob(b"secret bytes")

    assert operation.name == hashlib.sha256(b"secret bytes").hexdigest()
    assert "secret" not in repr(operation)


def test_two_claims_have_two_nonces() -> None:
    assert claim().nonce != claim().nonce


def test_a_merged_append_has_all_records_in_order_and_one_head_per_topic() -> None:
    first = Append(records=(NewRecord("chat:a", {}),), heads=(SetHead("stream:a", {"x": 1, "y": 1}),))
    second = Append(records=(NewRecord("chat:b", {}),), heads=(SetHead("stream:a", {"x": 2}),))

    merged = first.merge(second)

    assert [record.topic for record in merged.records] == ["chat:a", "chat:b"]
    assert [(head.topic, head.fields) for head in merged.heads] == [("stream:a", {"x": 2, "y": 1})]


def test_a_merged_append_drops_conditions_on_fields_that_an_earlier_part_sets() -> None:
    first = Append(records=(NewRecord("chat:a", {}),), heads=(SetHead("stream:a", {"x": 1}),))
    second = Append(
        records=(NewRecord("chat:b", {}),), conditions=(HeadIs("stream:a", "x", 1), HeadIs("stream:a", "y", None))
    )

    assert first.merge(second).conditions == (HeadIs("stream:a", "y", None),)
    assert second.merge(first).conditions == second.conditions
