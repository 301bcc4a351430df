"""Promises 1 and 2: records are numbered without gaps, and an append happens once."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from magent2.bus.interface import BusMessage
from magent2.bus.operations import Append, LastSeqIs, Trim
from magent2.bus.records import AppendResult, NewRecord
from magent2.errors import IdConflict, TopicError
from tests.contracts.bus.driver import BusDriver

WRITERS = 4
EACH = 25
MANY_IDS = 22_000  # more than twice the ids that are remembered of dropped records


class AppendTests:
    # --- numbers

    def test_records_of_a_topic_are_numbered_from_one(self, bus: BusDriver) -> None:
        seqs = [bus.put("stream:a", {"n": n}) for n in range(3)]

        assert seqs == [1, 2, 3]
        assert [(record.seq, record.payload) for record in bus.read("stream:a")] == [
            (1, {"n": 0}),
            (2, {"n": 1}),
            (3, {"n": 2}),
        ]

    def test_each_topic_counts_for_itself(self, bus: BusDriver) -> None:
        bus.put("stream:a")

        assert bus.put("stream:b") == 1
        assert bus.put("stream:a") == 2

    def test_writers_on_many_threads_leave_no_hole_and_lose_nothing(self, bus: BusDriver) -> None:
        def write(writer: int) -> list[int]:
            return [
                bus.engine.call(Append(records=(NewRecord("stream:a", {"by": writer, "n": n}),))).seqs[0]
                for n in range(EACH)
            ]

        with ThreadPoolExecutor(WRITERS) as pool:
            given = [seq for seqs in pool.map(write, range(WRITERS)) for seq in seqs]

        records = bus.read("stream:a")
        assert sorted(given) == [record.seq for record in records] == list(range(1, WRITERS * EACH + 1))
        for writer in range(WRITERS):
            assert [r.payload["n"] for r in records if r.payload["by"] == writer] == list(range(EACH))

    def test_writers_in_many_tasks_leave_no_hole_and_lose_nothing(self, bus: BusDriver) -> None:
        async def write(writer: int) -> None:
            for n in range(EACH):
                await bus.ado(Append(records=(NewRecord("stream:a", {"by": writer, "n": n}),)))

        async def write_all() -> None:
            await asyncio.gather(*(write(writer) for writer in range(WRITERS)))

        bus.run(write_all())

        records = bus.read("stream:a")
        assert [record.seq for record in records] == list(range(1, WRITERS * EACH + 1))
        for writer in range(WRITERS):
            assert [r.payload["n"] for r in records if r.payload["by"] == writer] == list(range(EACH))

    def test_threads_and_tasks_write_at_the_same_time(self, bus: BusDriver) -> None:
        def write() -> None:
            for _ in range(EACH):
                bus.engine.call(Append(records=(NewRecord("stream:a", {}),)))

        async def write_both() -> None:
            threads = [asyncio.to_thread(write) for _ in range(2)]
            tasks = [bus.engine.acall(Append(records=(NewRecord("stream:a", {}),))) for _ in range(EACH)]
            await asyncio.gather(*threads, *tasks)

        bus.run(write_both())

        assert bus.seqs("stream:a") == list(range(1, 3 * EACH + 1))

    # --- what comes back

    def test_a_record_comes_back_as_it_was_sent(self, bus: BusDriver) -> None:
        payload = {
            "text": 'ä "quoted"\n\0 🦉',
            "deep": [{"x": [1, -2.5, True, None, []]}, {}],
            "big": 2**53 + 1,
            "": "",
            "small": 1e-300,
        }
        headers = {"principal": "user:ann", "steer": True, "hops": 3, "none": None}

        bus.put("stream:a", payload, "id-1", headers=headers, draft="m1")
        bus.put("stream:a", {}, closes="m1")

        first, second = bus.read("stream:a")
        assert (first.topic, first.payload, first.id, dict(first.headers)) == ("stream:a", payload, "id-1", headers)
        assert (first.draft, first.closes, second.draft, second.closes) == ("m1", None, None, "m1")
        assert (first.erased, first.malformed, first.blobs, dict(second.headers)) == (False, "", (), {})

    def test_a_record_carries_the_time_of_its_append(self, bus: BusDriver) -> None:
        before = time.time() * 1000

        bus.put("stream:a")

        assert before - 1000 <= bus.read("stream:a")[0].at_ms <= time.time() * 1000 + 1000

    @pytest.mark.parametrize(
        "topic", ["a", "chat:ä 🦉", "chat:*", "chat:[a]?", "chat:a'b\"c", "chat:{x}", "chat:a:b", "%s\\"]
    )
    def test_any_printable_text_can_name_a_topic_or_a_record(self, bus: BusDriver, topic: str) -> None:
        bus.put("chat:a")

        bus.put(topic, {"mine": True}, id=topic)

        assert [record.payload for record in bus.read(topic, after=None)] == [{"mine": True}]
        assert bus.page(topic, after=topic).records == ()
        assert bus.info("chat:a").last == 1

    def test_a_record_without_an_id_behind_the_key_is_named_by_its_number(self, bus: BusDriver) -> None:
        bus.append(NewRecord("stream:a", {}, "key"), NewRecord("stream:a", {"x": 1}), NewRecord("stream:b", {"x": 2}))

        assert [record.id for record in bus.read("stream:a")] == ["key", "@2"]
        assert [record.id for record in bus.read("stream:b")] == ["@1"]

    def test_the_plain_bus_publishes_and_reads(self, bus: BusDriver) -> None:
        message = BusMessage("chat:a", {"hello": 1}, id="m1")

        assert bus.engine.publish("chat:a", message) == "m1"
        assert bus.engine.publish("chat:a", message) == "m1"

        assert [(m.id, m.topic, m.payload) for m in bus.engine.read("chat:a")] == [("m1", "chat:a", {"hello": 1})]

    def test_a_message_is_published_to_the_topic_that_it_names(self, bus: BusDriver) -> None:
        with pytest.raises(TopicError, match="make them one"):
            bus.engine.publish("chat:a", BusMessage("chat:b", {}))

        assert bus.info("chat:a").last == bus.info("chat:b").last == 0

    # --- once

    def test_a_repeated_id_appends_nothing_and_answers_with_the_first_number(self, bus: BusDriver) -> None:
        bus.put("stream:a", {"x": 1}, "same")
        bus.put("stream:a", {"x": 2})

        again = bus.append(NewRecord("stream:a", {"x": 1}, "same"))

        assert again == AppendResult((1,), repeat=True)
        assert bus.seqs("stream:a") == [1, 2]

    def test_the_same_id_with_another_body_is_a_conflict(self, bus: BusDriver) -> None:
        bus.put("stream:a", {"x": 1}, "same")

        with pytest.raises(IdConflict):
            bus.put("stream:a", {"x": 2}, "same")

        assert [record.payload for record in bus.read("stream:a")] == [{"x": 1}]

    def test_neither_order_of_fields_nor_time_of_making_is_part_of_the_body(self, bus: BusDriver) -> None:
        bus.put("stream:a", {"x": 1, "y": 2, "created_at": "2026-01-01T00:00:00Z"}, "same")

        again = bus.append(NewRecord("stream:a", {"y": 2, "created_at": "2027-01-01T00:00:00Z", "x": 1}, "same"))

        assert again.repeat
        assert bus.read("stream:a")[0].payload["created_at"] == "2026-01-01T00:00:00Z"

    def test_a_digest_that_the_sender_gives_stands_for_the_body(self, bus: BusDriver) -> None:
        bus.put("stream:a", {"x": 1}, "same", digest="d1")

        assert bus.append(NewRecord("stream:a", {"x": 2}, "same", digest="d1")).repeat
        with pytest.raises(IdConflict):
            bus.put("stream:a", {"x": 1}, "same", digest="d2")

    def test_an_id_belongs_to_its_topic(self, bus: BusDriver) -> None:
        bus.put("stream:a", {"x": 1}, "same")

        assert bus.append(NewRecord("stream:b", {"x": 2}, "same")) == AppendResult((1,), repeat=False)

    def test_the_same_operation_run_twice_happens_once(self, bus: BusDriver) -> None:
        operation = Append(records=(NewRecord("stream:a", {}), NewRecord("stream:b", {})))

        first, second = bus.do(operation), bus.do(operation)

        assert (first, second) == (AppendResult((1, 1)), AppendResult((1, 1), repeat=True))
        assert bus.seqs("stream:a") == bus.seqs("stream:b") == [1]

    def test_ten_threads_that_send_the_same_message_append_it_once(self, bus: BusDriver) -> None:
        def send(_: int) -> AppendResult:
            return bus.engine.call(Append(records=(NewRecord("stream:a", {"x": 1}, "same"),)))

        with ThreadPoolExecutor(10) as pool:
            answers = list(pool.map(send, range(10)))

        assert [answer.seqs for answer in answers] == [(1,)] * 10
        assert [answer.repeat for answer in answers].count(False) == 1

    def test_a_repeated_key_answers_as_the_first_time_though_other_topics_have_moved_on(self, bus: BusDriver) -> None:
        first = bus.append(NewRecord("stream:a", {"x": 1}, "key"), NewRecord("stream:b", {}), NewRecord("stream:b", {}))
        bus.put("stream:b")

        again = bus.append(NewRecord("stream:a", {"x": 1}, "key"), NewRecord("stream:b", {}), NewRecord("stream:b", {}))

        assert (first.seqs, again) == ((1, 1, 2), AppendResult((1, 1, 2), repeat=True))
        assert bus.seqs("stream:b") == [1, 2, 3]

    def test_a_repeated_key_is_a_repeat_though_its_condition_no_longer_holds(self, bus: BusDriver) -> None:
        operation = Append(
            records=(NewRecord("stream:a", {}, "key"),), conditions=(LastSeqIs("stream:a", 0), LastSeqIs("stream:b", 0))
        )
        bus.do(operation)
        bus.put("stream:b")

        assert bus.do(operation) == AppendResult((1,), repeat=True)

    def test_a_known_id_behind_the_key_is_left_out_and_answers_with_its_first_number(self, bus: BusDriver) -> None:
        bus.put("stream:b", {"x": 1}, "known")
        bus.put("stream:b", {"x": 2})

        answer = bus.append(
            NewRecord("stream:a", {}, "key"), NewRecord("stream:b", {"x": 1}, "known"), NewRecord("stream:b", {"x": 3})
        )

        assert answer == AppendResult((1, 1, 3), repeat=False)
        assert [record.payload["x"] for record in bus.read("stream:b")] == [1, 2, 3]

    def test_a_record_sent_alone_after_it_went_behind_a_key_is_a_repeat(self, bus: BusDriver) -> None:
        bus.append(
            NewRecord("stream:a", {}, "key"), NewRecord("stream:b", {}), NewRecord("stream:b", {"x": 1}, "second")
        )

        assert bus.append(NewRecord("stream:b", {"x": 1}, "second")) == AppendResult((2,), repeat=True)

    def test_the_id_of_a_record_in_the_log_is_known_however_old_it_is(self, bus: BusDriver) -> None:
        for start in range(0, MANY_IDS, 1000):
            bus.append(*(NewRecord("stream:a", {"n": n}, f"r{n}") for n in range(start, start + 1000)))

        assert bus.append(NewRecord("stream:a", {"n": 7}, "r7")) == AppendResult((8,), repeat=True)
        with pytest.raises(IdConflict):
            bus.put("stream:a", {"another": "body"}, "r8")
        assert [record.seq for record in bus.read("stream:a", after="r7", limit=2)] == [9, 10]

    def test_the_id_of_a_trimmed_record_is_still_known(self, bus: BusDriver) -> None:
        bus.fill("stream:a", 3)
        bus.do(Trim("stream:a", keep=0))

        assert bus.append(NewRecord("stream:a", {"n": 1}, "r1")) == AppendResult((1,), repeat=True)
        with pytest.raises(IdConflict):
            bus.put("stream:a", {"n": 9}, "r2")
