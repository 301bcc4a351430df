"""Keeping suspects apart."""

from __future__ import annotations

import asyncio

from magent2.worker.retry import Quarantine


async def test_there_is_one_bed() -> None:
    quarantine = Quarantine()

    assert await quarantine.enter("a")
    assert not await quarantine.enter("b")
    quarantine.leave("a")
    assert await quarantine.enter("b")


async def test_who_enters_waits_until_everybody_else_is_decided() -> None:
    quarantine = Quarantine()
    for token in ("a", "b", "c"):
        quarantine.expect(token)
    entering = asyncio.create_task(quarantine.enter("a"))
    await asyncio.sleep(0)
    quarantine.decide("b")
    await asyncio.sleep(0)
    assert not entering.done()

    quarantine.leave("c")

    assert await entering


async def test_who_is_not_inside_frees_no_bed() -> None:
    quarantine = Quarantine()
    await quarantine.enter("a")

    quarantine.leave("b")

    assert not await quarantine.enter("b")
