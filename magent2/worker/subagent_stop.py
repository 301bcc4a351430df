"""A stop goes further than one run: down to the subagents that its agent has started, and, where it came from such a
starter, to all that waits in the lane."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable

from magent2.bus.interface import Engine
from magent2.bus.lane_writer import REFUSALS
from magent2.bus.log import Log
from magent2.bus.records import MailRef, Owner, Record
from magent2.bus.retry import retry_call
from magent2.mail.headers import MAIL_SEEN, WHOLE_LANE
from magent2.sessions.subagents import pass_on_stop
from magent2.worker.lane_plan import ParsedMail

log = logging.getLogger(__name__)


def is_whole(stop: ParsedMail) -> bool:
    """Whether it is meant for all that waited in the lane when it was sent."""
    return bool(stop.record.headers.get(WHOLE_LANE))


def unspent(stops: Iterable[ParsedMail], mail: Iterable[Record], taken: Collection[MailRef]) -> frozenset[MailRef]:
    """Of the stops that leave the lane with `taken`, those that are meant for other mail that waits there. Pure."""
    waiting = [record.seq for record in mail if record.topic.startswith("chat:") and record.ref not in taken]
    first = min(waiting, default=None)
    if first is None:
        return frozenset()
    return frozenset(stop.record.ref for stop in stops if is_whole(stop) and first <= _seen(stop))


def _seen(stop: ParsedMail) -> int:
    seen = stop.record.headers.get(MAIL_SEEN)
    return seen if isinstance(seen, int) else 0


class SubagentStop:
    """The subagents that the agent of one lane has started there.

    A stop is passed on before it leaves the lane, under ids that follow from its own. So a worker that dies in between
    leaves it to the next one, and no subagent is stopped twice.
    """

    def __init__(self, bus: Engine, owner: Owner) -> None:
        self._bus = bus
        self._owner = owner
        self._tasks: set[asyncio.Task[None]] = set()

    def begin_pass_on(self, command: str, cause: str) -> None:
        """Pass a stop on while the run goes on: it may be waiting for one of them."""
        task = asyncio.create_task(self.pass_on(command, cause), name="stop below")
        self._tasks.add(task)

    async def pass_on(self, command: str, cause: str) -> None:
        """Pass a stop on, and return when it is on the log for each of them."""
        agent, conversation = self._owner.agent, self._owner.conversation
        try:
            told = await retry_call(
                lambda: pass_on_stop(Log(self._bus), agent, conversation, command, cause), self._owner.token
            )
        except REFUSALS:  # the stop of the run itself must not wait for it
            log.exception("a stop could not be passed on", extra={"owner": self._owner.token})
            return
        if told:
            log.info("a stop was passed on", extra={"owner": self._owner.token, "subagents": len(told)})

    async def close(self) -> None:
        """Cancel the remaining tasks. The code that ends the run passes on what was not sent."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
