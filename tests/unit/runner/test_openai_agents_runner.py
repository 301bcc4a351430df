from __future__ import annotations

from types import SimpleNamespace

from agents import Session

from magent2.runner.openai_agents_runner import MemorySession, OpenAIAgentsRunner


async def test_it_is_a_session_to_the_sdk() -> None:
    session = MemorySession("conv")
    await session.add_items([{"role": "user", "content": "one"}, {"role": "user", "content": "two"}])

    assert isinstance(session, Session)
    assert await session.get_items(limit=1) == [{"role": "user", "content": "two"}]
    assert await session.get_items(limit=0) == []
    assert await session.pop_item() == {"role": "user", "content": "two"}
    await session.clear_session()
    assert await session.pop_item() is None


async def test_items_of_a_failed_run_can_be_dropped() -> None:
    session = MemorySession("conv")
    await session.add_items([{"role": "user", "content": "one"}])
    before = session.snapshot()
    await session.add_items([{"role": "user", "content": "two"}])

    session.restore(before)

    assert await session.get_items() == [{"role": "user", "content": "one"}]


async def test_the_size_of_a_session_follows_its_items() -> None:
    session = MemorySession("conv")
    await session.add_items([{"role": "user", "content": "x" * 1000}])
    before = session.snapshot(), session.size_bytes
    await session.add_items([{"role": "user", "content": "y" * 1000}])
    await session.pop_item()
    await session.pop_item()
    assert session.size_bytes == 0

    session.restore(before[0])

    assert session.size_bytes == before[1] > 1000


async def test_sessions_that_are_too_large_together_are_dropped_oldest_first() -> None:
    runner = OpenAIAgentsRunner(SimpleNamespace(), sessions_max_bytes=250_000)
    for name in ("one", "two", "three"):
        await runner._get_session(name).add_items([{"role": "user", "content": "x" * 100_000}])

    runner._get_session("three")

    assert list(runner._sessions) == ["two", "three"]
