from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from magent2.bus.watch import LocalWatch, WatchHub
from tests.support.waiting import DEADLINE_S, eventually


@pytest.fixture
def hub() -> WatchHub:
    return WatchHub()


def test_a_change_is_reported_once(hub: WatchHub) -> None:
    with hub.watch(["a"]) as watch:
        hub.notify(["a"])
        hub.notify(["a"])

        assert watch.wait(0) == {"a"}
        assert watch.wait(0) == frozenset()


def test_a_change_of_another_topic_is_not_reported(hub: WatchHub) -> None:
    with hub.watch(["a"]) as watch:
        hub.notify(["b"])

        assert watch.wait(0) == frozenset()


def test_each_watch_reports_its_own_topics(hub: WatchHub) -> None:
    with hub.watch(["a", "b"]) as first, hub.watch(["b", "c"]) as second:
        hub.notify(["a", "b", "c"])

        assert first.wait(0) == {"a", "b"}
        assert second.wait(0) == {"b", "c"}


def test_a_change_of_a_topic_that_was_discarded_meanwhile_is_dropped(hub: WatchHub) -> None:
    with hub.watch(["a"]) as watch:
        hub.notify(["a"])
        watch.discard("a")

        assert watch.wait(0) == frozenset()


def test_a_closed_watch_leaves_nothing_behind(hub: WatchHub) -> None:
    with hub.watch(["a", "b"]), hub.watch(["b"]):
        assert sorted(hub.watched()) == ["a", "b"]

    assert hub.watched() == []


def test_every_watch_is_notified_when_changes_may_have_been_missed(hub: WatchHub) -> None:
    with hub.watch(["a", "b"]) as watch:
        hub.notify_all()

        assert watch.wait(0) == {"a", "b"}


def test_a_thread_is_woken_by_another(hub: WatchHub) -> None:
    with hub.watch(["a"]) as watch, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(watch.wait, DEADLINE_S)
        hub.notify(["a"])

        assert waiting.result(DEADLINE_S) == {"a"}


@pytest.mark.parametrize("where", ["loop", "thread"])
async def test_a_task_is_woken_from_its_loop_and_from_threads(hub: WatchHub, where: str) -> None:
    with hub.watch(["a"]) as watch:
        waiting = asyncio.ensure_future(watch.changed(DEADLINE_S))
        await asyncio.sleep(0)
        if where == "loop":
            hub.notify(["a"])
        else:
            await asyncio.to_thread(hub.notify, ["a"])

        assert await waiting == {"a"}


async def test_a_task_does_not_wait_for_what_has_already_happened(hub: WatchHub) -> None:
    with hub.watch(["a"]) as watch:
        hub.notify(["a"])

        assert await watch.changed(None) == {"a"}


async def test_a_task_gives_up_when_its_time_is_over(hub: WatchHub) -> None:
    with hub.watch(["a"]) as watch:
        assert await watch.changed(0.01) == frozenset()


async def test_a_task_that_was_cancelled_can_wait_again(hub: WatchHub) -> None:
    with hub.watch(["a"]) as watch:
        waiting = asyncio.ensure_future(watch.changed(None))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

        hub.notify(["a"])
        assert await watch.changed(DEADLINE_S) == {"a"}


def test_a_change_for_a_closed_loop_does_no_harm(hub: WatchHub) -> None:
    watch = hub.watch(["a"])
    loop = asyncio.new_event_loop()
    task = loop.create_task(watch.changed(None))
    loop.run_until_complete(asyncio.sleep(0, None))
    loop.close()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(hub.notify, ["a"]).result(DEADLINE_S)

    assert watch.wait(0) == {"a"}
    task.get_coro().close()


def test_hooks_run_for_the_first_watch_and_after_the_last_of_a_topic() -> None:
    calls: list[str] = []

    class RecordingHub(WatchHub):
        def watch_added(self, watch: LocalWatch, topic: str, first: bool) -> None:
            calls.append(f"+{topic}" if first else f"={topic}")

        def topic_unwatched(self, topic: str) -> None:
            calls.append(f"-{topic}")

    hub = RecordingHub()
    with hub.watch(["a"]), hub.watch(["a"]):
        pass

    assert calls == ["+a", "=a", "-a"]


def test_no_change_is_lost_between_threads(hub: WatchHub) -> None:
    seen = threading.Event()

    def listen(watch: LocalWatch) -> None:
        for _ in range(200):
            assert watch.wait(DEADLINE_S) == {"a"}
            seen.set()

    with hub.watch(["a"]) as watch, ThreadPoolExecutor(1) as pool:
        listening = pool.submit(listen, watch)
        for _ in range(200):
            seen.clear()
            hub.notify(["a"])
            eventually(seen.is_set)
        listening.result(DEADLINE_S)
