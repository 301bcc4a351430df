from __future__ import annotations

from agents import Session

from magent2.runner.openai_agents_runner import MemorySession


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
