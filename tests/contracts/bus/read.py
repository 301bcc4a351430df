"""Promises 5 and 6: reading from any cursor, and errors for cursors that are not valid."""

from __future__ import annotations

import pytest

from magent2.bus.operations import OLDEST, Describe, Erase, Find, Read, Trim
from magent2.bus.records import NewRecord, Page, TopicInfo
from magent2.errors import MalformedRecord, UnknownCursor
from tests.contracts.bus.driver import BusDriver, ContractClass


def numbers(page: Page) -> list[int]:
    return [record.seq for record in page.records]


class ReadTests:
    # --- where a page begins

    def test_without_a_cursor_the_last_records_come_oldest_first(self, bus: BusDriver) -> None:
        bus.fill("stream:a", 5)

        assert numbers(bus.page("stream:a", after=None, limit=3)) == [3, 4, 5]
        assert numbers(bus.page("stream:a", after=None, limit=9)) == [1, 2, 3, 4, 5]

    def test_after_a_number_comes_the_next(self, bus: BusDriver) -> None:
        bus.fill("stream:a", 5)

        assert numbers(bus.page("stream:a", after=2, limit=2)) == [3, 4]
        assert numbers(bus.page("stream:a", after=0, limit=2)) == [1, 2]
        assert numbers(bus.page("stream:a", after=5)) == []

    def test_after_an_id_comes_the_next(self, bus: BusDriver) -> None:
        bus.fill("stream:a", 5)

        assert numbers(bus.page("stream:a", after="r2", limit=2)) == [3, 4]
        assert numbers(bus.page("stream:a", after="r5")) == []
        assert [message.id for message in bus.engine.read("stream:a", last_id="r3")] == ["r4", "r5"]

    def test_an_assigned_id_is_a_cursor_like_any_other(self, bus: BusDriver) -> None:
        bus.append(*(NewRecord("stream:a", {"n": n}) for n in range(4)))

        assert bus.read("stream:a")[1].id == "@2"
        assert numbers(bus.page("stream:a", after="@2")) == [3, 4]
        assert numbers(bus.page("stream:a", after="@0")) == [1, 2, 3, 4]
        assert numbers(bus.page("stream:none", after="@0")) == []

    def test_before_a_number_come_the_last_ones_below_it(self, bus: BusDriver) -> None:
        bus.fill("stream:a", 5)

        assert numbers(bus.do(Read("stream:a", before=4, limit=2))) == [2, 3]
        assert numbers(bus.do(Read("stream:a", before=1))) == []
        assert numbers(bus.do(Read("stream:a", before=99, limit=2))) == [4, 5]

    def test_the_oldest_is_where_retention_has_left_off(self, bus: BusDriver) -> None:
        bus.fill("stream:a", 5)
        bus.do(Trim("stream:a", keep=2))

        assert numbers(bus.page("stream:a", after=OLDEST)) == [4, 5]
        assert numbers(bus.page("stream:a", after=None)) == [4, 5]
        assert numbers(bus.do(Read("stream:a", before=5))) == [4]

    def test_a_page_has_the_state_of_its_topic(self, bus: BusDriver) -> None:
        bus.fill("stream:a", 5)
        bus.do(Trim("stream:a", keep=3))

        page = bus.page("stream:a", after=2, limit=1)

        assert (page.last, page.floor, page.deleted) == (5, 2, False)

    # --- cursors that are not valid

    @pytest.mark.parametrize("cursor", [6, 2**40, -2, "never", "@6", "@x", "@"])
    def test_a_cursor_that_never_was_is_unknown(self, bus: BusDriver, cursor: int | str) -> None:
        bus.fill("stream:a", 5)

        with pytest.raises(UnknownCursor):
            bus.page("stream:a", after=cursor)

    @pytest.mark.parametrize("cursor", [0, 1, "r1", "r2", "@1"])
    def test_a_cursor_below_the_floor_is_unknown(self, bus: BusDriver, cursor: int | str) -> None:
        bus.fill("stream:a", 5)
        bus.do(Trim("stream:a", keep=3))

        with pytest.raises(UnknownCursor):
            bus.page("stream:a", after=cursor)

    def test_the_floor_itself_is_a_good_cursor(self, bus: BusDriver) -> None:
        bus.fill("stream:a", 5)
        bus.do(Trim("stream:a", keep=3))

        assert numbers(bus.page("stream:a", after=2)) == [3, 4, 5]

    def test_a_topic_that_never_was_is_empty_and_knows_no_cursor_but_its_beginning(self, bus: BusDriver) -> None:
        for cursor in (None, OLDEST, 0):
            assert bus.page("stream:never", after=cursor) == Page((), 0, 0, False)
        for unknown in (1, "x"):
            with pytest.raises(UnknownCursor):
                bus.page("stream:never", after=unknown)

    def test_reading_makes_no_topic(self, bus: BusDriver) -> None:
        bus.page("stream:never")
        bus.do(Find("stream:never", "x"))

        assert bus.do(Describe(("stream:never",))) == (TopicInfo("stream:never"),)

    # --- finding

    def test_a_record_is_found_by_its_id(self, bus: BusDriver) -> None:
        bus.append(NewRecord("stream:a", {"n": 1}, "r1"), NewRecord("stream:a", {"n": 2}))

        assert bus.do(Find("stream:a", "r1")) == bus.read("stream:a")[0]
        assert bus.do(Find("stream:a", "@2")) == bus.read("stream:a")[1]

    def test_any_record_is_found_by_its_number_written_as_an_id(self, bus: BusDriver) -> None:
        bus.fill("stream:a", 2)

        assert bus.do(Find("stream:a", "@1")) == bus.read("stream:a")[0]

    @pytest.mark.parametrize("record_id", ["never", "r1", "@9", "@0"])
    def test_what_the_topic_does_not_have_is_not_found(self, bus: BusDriver, record_id: str) -> None:
        bus.fill("stream:a", 3)
        bus.do(Trim("stream:a", keep=2))

        assert bus.do(Find("stream:a", record_id)) is None

    def test_many_topics_are_described_in_the_order_asked(self, bus: BusDriver) -> None:
        bus.fill("stream:a", 3)
        bus.put("stream:b")
        bus.do(Trim("stream:a", keep=1))

        infos = bus.do(Describe(("stream:b", "stream:never", "stream:a", "stream:b")))

        assert [(i.topic, i.last, i.floor) for i in infos] == [
            ("stream:b", 1, 0),
            ("stream:never", 0, 0),
            ("stream:a", 3, 2),
            ("stream:b", 1, 0),
        ]

    # --- records that cannot be read

    def test_a_page_stops_short_of_a_record_that_cannot_be_read(self: ContractClass, bus: BusDriver) -> None:
        bus.put("stream:a")
        self.append_malformed(bus.engine, "stream:a")
        bus.put("stream:a")

        assert numbers(bus.page("stream:a")) == [1]
        with pytest.raises(MalformedRecord, match="erase it") as caught:
            bus.page("stream:a", after=1)

        assert (caught.value.topic, caught.value.seq) == ("stream:a", 2)
        assert numbers(bus.page("stream:a", after=2)) == [3]

    def test_a_record_that_cannot_be_read_can_be_erased(self: ContractClass, bus: BusDriver) -> None:
        bus.put("stream:a")
        self.append_malformed(bus.engine, "stream:a")
        bus.put("stream:a")

        bus.do(Erase("stream:a", (2,)))

        assert numbers(bus.page("stream:a")) == [1, 2, 3]
        assert bus.read("stream:a")[1].erased
