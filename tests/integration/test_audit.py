"""Tests of the auditor: it reports each kind of broken guarantee."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from magent2.bus.interface import Engine
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Claim
from magent2.bus.records import ClaimedLane, MailRef, Record
from tests.support.audit import (
    HANDED_BACK,
    SETTLED,
    STARTED,
    append_findings,
    lane_findings,
    sequence_findings,
    series_findings,
    share_findings,
    whole_log,
)
from tests.support.audited_lane import hand_back_append, mail_to, settle_append, start_append
from tests.support.numbered_appends import numbered_append

AGENT, TRAIL, LANE = "Ada", "audit:lanes", "one"
TOPICS = ("stream:one", "history:one")


@pytest.fixture
def logs() -> dict[str, list[Record]]:
    """Two topics with six atomic appends of two writers."""
    bus = MemoryBus()
    for n in range(1, 4):
        for writer in ("ann", "bob"):
            bus.call(numbered_append(TOPICS, writer, n))
    return {topic: whole_log(bus, topic) for topic in TOPICS}


def claim_one(bus: Engine, worker: str) -> ClaimedLane:
    (lane,) = bus.call(Claim(worker=worker, agents=(AGENT,), limit=1, lease_s=60.0)).lanes
    return lane


@pytest.fixture
def trail() -> list[Record]:
    """Three messages settled in one lane; the first was handed back once."""
    bus = MemoryBus()
    bus.call(mail_to(AGENT, [LANE] * 3))
    for worker in ("w1", "w2", "w3", "w4"):
        lane = claim_one(bus, worker)
        bus.call(start_append(TRAIL, lane))
        bus.call(hand_back_append(TRAIL, lane, 2, 0.0) if worker == "w1" else settle_append(TRAIL, lane, 2))
    return whole_log(bus, TRAIL)


MAIL = {LANE: [MailRef(f"chat:{AGENT}", seq) for seq in (1, 2, 3)]}


def changed(record: Record, **fields: Any) -> Record:
    return replace(record, payload={**record.payload, **fields})


def test_a_clean_log_has_no_findings(logs: dict[str, list[Record]], trail: list[Record]) -> None:
    assert append_findings(logs, ["ann-1", "bob-3"]) == []
    assert series_findings(logs[TOPICS[0]]) == []
    assert lane_findings(MAIL, trail) == []
    assert [record.payload["act"] for record in trail] == [STARTED, HANDED_BACK, *[STARTED, SETTLED] * 3]


def test_a_missing_record_is_found(logs: dict[str, list[Record]]) -> None:
    del logs[TOPICS[0]][2]

    assert "seq 4 stands where 3 belongs" in sequence_findings(logs[TOPICS[0]])
    assert "ann wrote 3 after 1" in series_findings(logs[TOPICS[0]])
    assert f"ann-2 is torn: missing in {TOPICS[0]}" in append_findings(logs, [])


def test_a_doubled_record_is_found(logs: dict[str, list[Record]]) -> None:
    records = logs[TOPICS[0]]
    records.append(replace(records[0], seq=7))

    assert sequence_findings(records) == ["ann-1 is there 2 times"]
    assert series_findings(records) == ["ann wrote 1 after 3"]


def test_reordered_records_are_found(logs: dict[str, list[Record]]) -> None:
    records = logs[TOPICS[0]]
    random.Random(1).shuffle(records)

    assert sequence_findings(records)
    assert series_findings(records)


def test_an_acknowledged_append_that_is_gone_is_found(logs: dict[str, list[Record]]) -> None:
    assert append_findings(logs, ["cat-1"]) == ["cat-1 was acknowledged and is gone"]


def test_a_writer_that_starves_is_found() -> None:
    writers = ["ann", "bob"] * 3 + ["ann"] * 6 + ["ann", "bob"] * 3

    assert share_findings(writers, {"ann", "bob"}) == ["bob is not in part 2 of 3"]


def test_mail_that_was_not_settled_is_found(trail: list[Record]) -> None:
    assert lane_findings(MAIL, trail[:-1]) == [f"lane 'one': chat:{AGENT} 3 was not settled"]


def test_mail_that_was_settled_twice_is_found(trail: list[Record]) -> None:
    again = changed(trail[-1], token="w5/x/5", n=1)

    assert f"lane 'one': chat:{AGENT} 3 was settled 2 times" in lane_findings(MAIL, [*trail, again])


def test_mail_settled_out_of_order_is_found(trail: list[Record]) -> None:
    swapped = [*trail]
    swapped[5] = changed(trail[5], mail=trail[7].payload["mail"])
    swapped[7] = changed(trail[7], mail=trail[5].payload["mail"])

    assert lane_findings(MAIL, swapped) == [f"lane 'one': chat:{AGENT} 2 was settled after 3"]


def test_mail_of_another_lane_is_found(trail: list[Record]) -> None:
    swapped = [*trail, changed(trail[-1], lane="two")]

    assert "lane 'two' was never given any mail" in lane_findings(MAIL, swapped)


def test_a_settle_by_an_old_owner_is_found(trail: list[Record]) -> None:
    """The first owner comes back between start and settle of the second."""
    swapped = [*trail]
    swapped[3] = changed(trail[3], token=trail[0].payload["token"], n=3)

    findings = lane_findings(MAIL, swapped)

    assert f"lane 'one': old owner {trail[0].payload['token']} wrote (settled)" in findings


def test_a_write_after_the_end_of_a_run_is_found(trail: list[Record]) -> None:
    late = changed(trail[-1], act=STARTED, n=3, mail=[])

    assert lane_findings(MAIL, [*trail, late]) == [
        f"lane 'one': {late.payload['token']} wrote (started) after it had settled"
    ]


def test_a_lost_or_repeated_number_is_found(trail: list[Record]) -> None:
    lost = [*trail]
    lost[3] = changed(trail[3], n=3)

    assert lane_findings(MAIL, lost) == [f"lane 'one': {trail[3].payload['token']} wrote number 3 after 1"]


def test_attempts_that_do_not_count_are_found(trail: list[Record]) -> None:
    lost = [changed(record, attempt=1) for record in trail]

    (finding,) = lane_findings(MAIL, lost)

    assert finding.startswith("lane 'one': attempt 1 of w2/")
    assert finding.endswith("follows attempt 1")
