"""Promise 11: heads, and the list of topics by last activity."""

from __future__ import annotations

import time

import pytest

from magent2.bus.operations import HEAD_MAX_BYTES, Delete, Describe, Operation, SetHead, Topics
from magent2.bus.records import NewRecord, TopicList
from magent2.bus.watch import Watch
from magent2.errors import HeadTooLarge
from magent2.models.address import topics_of_kind
from tests.contracts.bus.driver import BusDriver, ContractClass, EngineOpener, opened
from tests.contracts.bus.transfer import dumped, load
from tests.support.waiting import DEADLINE_S, eventually

# Lists of few topics among many. Each has LISTED topics that it lists.
LISTED = 5
LISTINGS: dict[str, Operation[TopicList]] = {
    "a kind": Topics("agent:", limit=LISTED),
    "an owner": Topics("stream:", "ann", limit=LISTED),
    "an owner's first": Topics("stream:", "bob", limit=LISTED),
    "a part": Topics("entity:key:", limit=LISTED),
    "a part of a part": Topics("entity:contact:ann:", limit=LISTED),
    "a conversation's subagents": Topics("stream:c1~", limit=LISTED),
    "everything": Topics(limit=LISTED),
    "another kind": Topics("chat:", limit=LISTED),
}


def names(bus: BusDriver, prefix: str = "stream:", owner: str | None = None, limit: int = 100) -> list[str]:
    return [info.topic for info in bus.do(Topics(prefix, owner, limit=limit)).topics]


def next_millisecond() -> None:
    """Wait for the next millisecond, the resolution of a topic's last activity."""
    now = int(time.time() * 1000)
    eventually(lambda: int(time.time() * 1000) > now + 1)


def reported(watch: Watch, topic: str) -> set[str]:
    """Wait until a watch has reported a topic; return all topics that it has reported."""
    found: set[str] = set()

    def has_come() -> bool:
        found.update(watch.wait(DEADLINE_S / 100))
        return topic in found

    eventually(has_come)
    return found


def started(watch: Watch, topic: str) -> None:
    """Wait until a watch of `stream` has reported a change: a watch that starts during the change reports the kind."""
    eventually(lambda: watch.wait(DEADLINE_S / 100) & {topic, topics_of_kind("stream")})


def others(bus: BusDriver, first: int, count: int) -> None:
    """Add topics of the kinds that the lists are about."""
    page = 100
    for start in range(first, first + count, page):
        numbers = range(start, start + page)
        names = ("stream:{}", "chat:{}", "entity:user:{}", "entity:contact:bob:{}", "stream:c2~{}")
        bus.append(*(NewRecord(names[number % len(names)].format(number), {}) for number in numbers))
        owned = tuple(SetHead(f"stream:{number}", {"owner": "bob"}) for number in numbers if number % 5 == 0)
        bus.append(NewRecord("note:x", {}), heads=owned)


class HeadTests:
    # --- setting

    def test_a_head_is_set_in_the_append_and_described(self, bus: BusDriver) -> None:
        fields = {"owner": "ann", "title": 'ä "x" {}', "usage": {"tokens": [1, 2]}, "n": 0, "flag": False}

        bus.append(NewRecord("stream:a", {}), heads=(SetHead("stream:a", fields),))

        assert dict(bus.info("stream:a").head) == fields

    def test_fields_of_a_head_are_merged_and_removed_one_by_one(self, bus: BusDriver) -> None:
        bus.set_head("stream:a", owner="ann", title="old", n=1)

        bus.set_head("stream:a", title="new", n=None, never=None)

        assert dict(bus.info("stream:a").head) == {"owner": "ann", "title": "new"}

    def test_one_append_sets_the_heads_of_many_topics(self, bus: BusDriver) -> None:
        bus.append(NewRecord("stream:a", {}), heads=(SetHead("stream:a", {"x": 1}), SetHead("stream:b", {"x": 2})))

        assert [dict(info.head) for info in bus.do(Describe(("stream:a", "stream:b")))] == [{"x": 1}, {"x": 2}]

    def test_a_head_alone_makes_a_topic_without_records(self, bus: BusDriver) -> None:
        bus.set_head("stream:a", x=1)

        assert (bus.info("stream:a").last, names(bus)) == (0, ["stream:a"])

    def test_a_repeated_append_does_not_set_its_head_again(self, bus: BusDriver) -> None:
        bus.append(NewRecord("stream:a", {}, "key"), heads=(SetHead("stream:a", {"x": 1}),))
        bus.set_head("stream:a", x=2)

        bus.append(NewRecord("stream:a", {}, "key"), heads=(SetHead("stream:a", {"x": 1}),))

        assert dict(bus.info("stream:a").head) == {"x": 2}

    def test_the_size_of_a_head_is_that_of_all_its_fields(self, bus: BusDriver) -> None:
        half = "x" * (HEAD_MAX_BYTES // 2)
        bus.set_head("stream:a", first=half)

        with pytest.raises(HeadTooLarge):
            bus.set_head("stream:a", second=half)

        bus.set_head("stream:a", first=None, second=half)
        assert dict(bus.info("stream:a").head) == {"second": half}

    # --- listing

    def test_topics_are_listed_by_last_activity(self, bus: BusDriver) -> None:
        for topic in ("stream:b", "stream:a", "stream:c"):
            bus.put(topic)
            next_millisecond()

        assert names(bus) == ["stream:c", "stream:a", "stream:b"]

    def test_a_new_head_is_activity_and_a_record_alone_is_not(self, bus: BusDriver) -> None:
        for topic in ("stream:a", "stream:b", "stream:c"):
            bus.put(topic)
            next_millisecond()

        bus.set_head("stream:a", x=1)
        bus.put("stream:b")

        assert names(bus) == ["stream:a", "stream:c", "stream:b"]

    def test_the_listing_tells_what_describe_tells(self, bus: BusDriver) -> None:
        bus.fill("stream:a", 2)
        bus.set_head("stream:a", owner="ann", title="x")
        bus.put("stream:b")

        listed = bus.do(Topics("stream:")).topics

        assert listed == bus.do(Describe(tuple(info.topic for info in listed)))

    def test_topics_of_the_same_moment_are_listed_by_name_downwards(self, bus: BusDriver) -> None:
        bus.append(*(NewRecord(f"stream:{name}", {}) for name in "bca"))

        listed = bus.do(Topics("stream:")).topics

        assert len(listed) == 3
        assert listed == tuple(sorted(listed, key=lambda info: (info.active_ms, info.topic), reverse=True))

    @pytest.mark.parametrize(("prefix", "count"), [("stream:", 7), ("", 10), ("stream:3", 1)])
    def test_pages_of_the_listing_hold_every_topic_once(self, bus: BusDriver, prefix: str, count: int) -> None:
        bus.append(*(NewRecord(f"stream:{n}", {}) for n in range(7)))
        bus.append(*(NewRecord(f"chat:{n}", {}) for n in range(3)))
        whole = names(bus, prefix)

        paged, before = [], None
        for _ in range(20):
            page = bus.do(Topics(prefix, before=before, limit=2))
            paged += [info.topic for info in page.topics]
            before = page.next
            if before is None:
                break

        assert (paged, before, len(whole)) == (whole, None, count)

    @pytest.mark.parametrize(
        "prefix", ["stream:", "stream:a", "", "s", "stream", "stream:%", "stream:_", "stream:*", "x"]
    )
    def test_a_prefix_is_taken_literally(self, bus: BusDriver, prefix: str) -> None:
        topics = ["stream:a", "stream:ab", "stream:b", "stream:%x", "stream:_x", "stream:*x", "streams", "chat:a"]
        bus.append(*(NewRecord(topic, {}) for topic in topics))

        assert sorted(names(bus, prefix)) == sorted(topic for topic in topics if topic.startswith(prefix))

    def test_the_listing_of_an_owner_follows_the_head(self, bus: BusDriver) -> None:
        for topic, owner in (("stream:a", "ann"), ("stream:b", "bob"), ("stream:c", "ann"), ("chat:d", "ann")):
            bus.set_head(topic, owner=owner)
        bus.set_head("stream:c", owner="bob")
        bus.put("stream:e")

        assert names(bus, owner="ann") == ["stream:a"]
        assert sorted(names(bus, owner="bob")) == ["stream:b", "stream:c"]
        assert names(bus, owner="nobody") == []

        bus.set_head("stream:a", owner=None)
        assert names(bus, owner="ann") == []

    def test_pages_of_an_owner_hold_every_topic_once(self, bus: BusDriver) -> None:
        mine = [SetHead(f"stream:{n}", {"owner": "ann"}) for n in range(5)]
        others = [SetHead(f"stream:x{n}", {"owner": "bob"}) for n in range(5)]
        bus.append(NewRecord("note:x", {}), heads=(*mine, *others))

        first = bus.do(Topics("stream:", "ann", limit=3))
        second = bus.do(Topics("stream:", "ann", before=first.next, limit=3))

        assert sorted(info.topic for info in first.topics + second.topics) == [f"stream:{n}" for n in range(5)]
        assert second.next is None

    def test_a_deleted_topic_is_not_listed(self, bus: BusDriver) -> None:
        bus.set_head("stream:a", owner="ann")
        bus.put("stream:b")

        bus.do(Delete(("stream:a", "stream:never")))

        assert names(bus) == ["stream:b"]
        assert names(bus, owner="ann") == []

    @pytest.mark.parametrize("prefix", ["entity:", "entity:a:", "entity:a:b", "stream:c~", "stream:c", "stream:c~x~"])
    @pytest.mark.parametrize("owner", [None, "ann"])
    def test_topics_with_names_of_several_parts_are_listed_by_any_prefix(
        self, bus: BusDriver, prefix: str, owner: str | None
    ) -> None:
        topics = ["entity:a:1", "entity:a:b:2", "entity:a", "entity:ab:3", "stream:c", "stream:c~x", "stream:c~x~y"]
        topics += ["stream:c~z", "stream:d~x", "entity:a:gone"]
        for topic in topics:
            bus.set_head(topic, owner="ann" if topic < "stream:c~x~" else "bob")
        bus.do(Delete(("entity:a:gone",)))
        wanted = [topic for topic in topics if topic.startswith(prefix) and topic != "entity:a:gone"]
        wanted = [topic for topic in wanted if owner is None or topic < "stream:c~x~"]

        paged: list[str] = []
        page = bus.do(Topics(prefix, owner, limit=1))
        while True:
            paged += [info.topic for info in page.topics]
            if page.next is None:
                break
            page = bus.do(Topics(prefix, owner, before=page.next, limit=1))

        assert sorted(paged) == sorted(wanted)
        assert paged == names(bus, prefix, owner)

    def test_a_loaded_log_lists_what_the_first_one_lists(self, bus: BusDriver, opener: EngineOpener) -> None:
        others(bus, 0, 100)
        bus.do(Delete(("stream:0", "stream:c2~4")))

        with opened(opener, "copy", bus) as copy:
            load(copy, dumped(bus))

            for listing in LISTINGS.values():
                assert copy.do(listing) == bus.do(listing)

    def test_the_cost_of_a_list_does_not_depend_on_the_number_of_other_topics(
        self: ContractClass, bus: BusDriver
    ) -> None:
        for name in ("agent:{}", "entity:key:{}", "entity:contact:ann:{}", "stream:c1~{}"):
            bus.append(*(NewRecord(name.format(number), {}) for number in range(LISTED)))
        mine = tuple(SetHead(f"stream:ann{number}", {"owner": "ann"}) for number in range(LISTED))
        bus.append(NewRecord("note:x", {}), heads=mine)
        others(bus, 0, 100)
        few = {name: self.count_work(bus.engine, listing) for name, listing in LISTINGS.items()}

        others(bus, 100, 10_000)

        many = {name: self.count_work(bus.engine, listing) for name, listing in LISTINGS.items()}
        assert {name: work for name, work in many.items() if work > 2 * few[name]} == {}
        assert {len(bus.do(listing).topics) for listing in LISTINGS.values()} == {LISTED}

    # --- watching a kind

    def test_a_watch_of_a_kind_reports_new_topics_new_heads_and_deleted_topics(self, bus: BusDriver) -> None:
        with bus.engine.watch((topics_of_kind("stream"),)) as watch:
            bus.put("stream:first")
            started(watch, "stream:first")

            bus.put("stream:a")
            assert reported(watch, "stream:a") <= {"stream:a", "stream:first", topics_of_kind("stream")}
            bus.set_head("stream:a", x=1)
            bus.set_head("chat:other", x=1)
            assert reported(watch, "stream:a") <= {"stream:a", "stream:first", topics_of_kind("stream")}
            bus.do(Delete(("stream:a",)))
            reported(watch, "stream:a")

    def test_a_watch_of_a_kind_reports_changes_by_another_process(
        self: ContractClass, bus: BusDriver, opener: EngineOpener
    ) -> None:
        if not self.shared:
            pytest.skip("the engine is not shared between processes")
        with (
            opened(opener, "main", bus) as other,
            bus.engine.watch((topics_of_kind("stream"),)) as watch,
        ):
            other.set_head("stream:a", x=1)
            started(watch, "stream:a")
            other.set_head("stream:b", x=1)
            reported(watch, "stream:b")

    def test_a_watch_of_a_kind_that_was_discarded_reports_nothing(self, bus: BusDriver) -> None:
        with bus.engine.watch((topics_of_kind("stream"), "chat:a")) as watch:
            bus.put("stream:a")
            started(watch, "stream:a")
            watch.discard(topics_of_kind("stream"))

            bus.put("stream:b")
            bus.put("chat:a")

            assert reported(watch, "chat:a") == {"chat:a"}
