from __future__ import annotations

import asyncio

import pytest

from magent2.gateway.streaming.open_streams import WriteClock


async def write_for_ever(clock: WriteClock) -> None:
    async with asyncio.timeout(None) as stream:
        clock.begin(stream)
        await asyncio.Event().wait()


async def write_and_wait(clock: WriteClock) -> None:
    async with asyncio.timeout(None) as stream:
        clock.begin(stream)
        clock.end(stream)
        await asyncio.Event().wait()


async def test_a_write_that_takes_too_long_ends_its_stream() -> None:
    clock = WriteClock(0.01)

    for _ in range(2):  # the timer is started again
        with pytest.raises(TimeoutError):
            await write_for_ever(clock)


async def test_all_writes_that_take_too_long_end_their_streams() -> None:
    clock = WriteClock(0.01)

    ends = await asyncio.gather(*(write_for_ever(clock) for _ in range(3)), return_exceptions=True)

    assert [type(end) for end in ends] == [TimeoutError] * 3


async def test_a_stream_whose_write_has_ended_goes_on() -> None:
    clock = WriteClock(0.01)
    idle = asyncio.create_task(write_and_wait(clock))

    with pytest.raises(TimeoutError):
        await write_for_ever(clock)

    assert not idle.done()
    idle.cancel()
