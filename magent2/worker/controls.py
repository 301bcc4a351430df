"""Follows `control:{agent}`, so that a command reaches a run inside a model call."""

from __future__ import annotations

from collections.abc import Iterable

from magent2.bus.interface import Engine
from magent2.bus.operations import READ_LIMIT_MAX, Pending
from magent2.bus.patience import persist
from magent2.bus.records import Owner, Record
from magent2.errors import Fenced
from magent2.models.address import control_topic
from magent2.worker.following import PAGE, Following

__all__ = ["PAGE", "Controls"]


class Controls(Following):
    """New control records of some agents, each once."""

    def __init__(self, bus: Engine, agents: Iterable[str], worker: str) -> None:
        super().__init__(bus, map(control_topic, agents), worker)

    async def lies_in(self, owner: Owner, record: Record) -> bool:
        """Whether a command waits in this lane. One that was read late may have ended another run already."""
        pending = Pending(owner, READ_LIMIT_MAX)
        try:
            mail = await persist(self._bus, pending, self._worker)
        except Fenced:
            return False
        return any(waiting.ref == record.ref for waiting in mail)
