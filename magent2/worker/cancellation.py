"""How a run is stopped: commands in its control mail, cancelling its task, and passing the stop on to subagents."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Literal, TypeAlias

from magent2.background import log_error, start_task
from magent2.bus.interface import Engine
from magent2.bus.lane_writer import REFUSALS
from magent2.bus.log import Log
from magent2.bus.records import Owner
from magent2.bus.retry import retry_call
from magent2.mail.headers import STOP, STOP_AFTER_TURN
from magent2.sessions.subagents import pass_on_stop

log = logging.getLogger(__name__)

DISCONNECTED, CONNECTED = "disconnected", "connected"
STOPS = (STOP, STOP_AFTER_TURN)
COMMANDS = (STOP, STOP_AFTER_TURN, DISCONNECTED, CONNECTED)

GRACE_S, GRACE_MAX_S = 30.0, 86_400.0
CLEAN_UP_MAX_S = 10.0  # a runner that has not ended this long after its cancellation is cancelled again


@dataclass(frozen=True, slots=True)
class StopCommand:
    """A request to stop a run: now, before its next turn, or after `in_s` seconds unless a command revokes it."""

    reason: str
    in_s: float = 0.0
    after_turn: bool = False

    @property
    def is_now(self) -> bool:
        return not self.in_s and not self.after_turn

    @property
    def is_final(self) -> bool:
        """Whether no other command can revoke it."""
        return self.is_now or self.after_turn


@dataclass(frozen=True, slots=True)
class DisconnectPolicy:
    """What happens to a run when its client disconnects."""

    kind: Literal["detach", "cancel", "grace"] = "detach"
    grace_s: float = GRACE_S


def policy_of(metadata: Mapping[str, object]) -> DisconnectPolicy:
    """Return the disconnect policy of a message. An unknown policy is `detach`, so that requested work is not lost."""
    kind = metadata.get("on_disconnect", "detach")
    if kind == "cancel":
        return DisconnectPolicy("cancel")
    if kind == "grace":
        return DisconnectPolicy("grace", _grace_s(metadata.get("grace_s")))
    if kind != "detach":
        log.warning("unknown disconnect policy; detach is used", extra={"policy": str(kind)[:80]})
    return DisconnectPolicy()


def _grace_s(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= GRACE_MAX_S:
        return GRACE_S
    return float(value)


def after_command(
    command: str, sender: str, policy: DisconnectPolicy, stop_request: StopCommand | None = None
) -> StopCommand | None:
    """Return the stop request that holds after this command. `stop_request` held before it; a final one stays."""
    if stop_request is not None and stop_request.is_now:
        return stop_request
    if command == STOP:
        return StopCommand(f"stopped by {sender}")
    if stop_request is not None and stop_request.after_turn:
        return stop_request
    if command == STOP_AFTER_TURN:
        return StopCommand(f"stopped by {sender} after its turn", after_turn=True)
    return _after_connection_change(command, policy, stop_request)


def _after_connection_change(
    command: str, policy: DisconnectPolicy, stop_request: StopCommand | None
) -> StopCommand | None:
    if command == CONNECTED:
        return None
    if command == DISCONNECTED and policy.kind == "cancel":
        return StopCommand("its reader has disconnected")
    if command == DISCONNECTED and policy.kind == "grace":
        return StopCommand(f"its reader was gone for {policy.grace_s:g} s", policy.grace_s)
    return stop_request


class InterruptReason(Enum):
    """Why a worker interrupts a run that no command stops."""

    GIVE_BACK = "worker is draining"
    LOST = "the lane has another owner"
    OVERDUE = "the run took too long"
    BUDGET = "a budget is used up"


CancellationReason: TypeAlias = StopCommand | InterruptReason


class RunCancellation:
    """Cancels the task that runs a run, and turns this cancellation, and no other, into a normal return of `drive`.

    The run has no task of its own: it runs in the task of its lane. So what the run has queued when it ends, and the
    settlement of the lane, can be one append.
    """

    def __init__(self) -> None:
        self.reason: CancellationReason | None = None
        self._task: asyncio.Task[object] | None = None
        self._cancels = 0
        self._over = False
        self._after_turn: StopCommand | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def cancel(self, reason: CancellationReason) -> None:
        """Cancel the run. The first reason counts. A run that has ended already is not cancelled."""
        if self.reason is None and not self._over:
            self.reason = reason
            self._cancel()

    def apply(self, stop_request: StopCommand | None) -> None:
        """Do what the commands so far ask for: cancel now, cancel later, or continue."""
        self._after_turn = stop_request if stop_request is not None and stop_request.after_turn else None
        if stop_request is not None and stop_request.is_now:
            self.cancel(stop_request)
        elif stop_request is not None and stop_request.in_s:
            self._set_timer("grace", stop_request.in_s, lambda: self.cancel(stop_request))
        elif "grace" in self._timers:
            self._timers.pop("grace").cancel()

    async def between_turns(self) -> None:
        """Cancel the run here, between two turns, if that was requested. A cancelled run does not return from this."""
        if self._after_turn is not None:
            self.cancel(self._after_turn)
            await asyncio.get_running_loop().create_future()

    async def drive(self, work: Coroutine[object, None, None], max_s: float) -> bool:
        """Await the run, for at most `max_s`. Return whether it ended by itself. Raises what the run raises."""
        if self._is_cancelled():
            work.close()
            return False
        task = self._task = asyncio.current_task()
        assert task is not None  # noqa: S101  for the type checker: coroutines run in tasks
        before = task.cancelling()
        self._set_timer("limit", max_s, lambda: self.cancel(InterruptReason.OVERDUE))
        try:
            await work
        except asyncio.CancelledError as error:
            # The task counts its cancellations. More than our own means that the worker itself is being ended: that
            # one must propagate, also when a stop arrived at the same time.
            if task.cancelling() - self._cancels > before:
                raise
            if not self._is_cancelled():
                raise RuntimeError("the run was cancelled from inside") from error
        except Exception as error:
            if not self._is_cancelled():
                raise
            log_error("a run failed while it was being cancelled", error, log)
        finally:
            self._end(task)
        return not self._is_cancelled()

    def _is_cancelled(self) -> bool:
        return self.reason is not None

    def _end(self, task: asyncio.Task[object]) -> None:
        """Take our cancellations back, so that the settlement that follows in this task is not cancelled."""
        self._over = True
        for timer in self._timers.values():
            timer.cancel()
        for _ in range(self._cancels):
            task.uncancel()

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._cancels += 1
            self._set_timer("clean up", CLEAN_UP_MAX_S, self._cancel_again)

    def _cancel_again(self) -> None:
        log.error("a runner did not end after its cancellation", extra={"waited_s": CLEAN_UP_MAX_S})
        self._cancel()

    def _set_timer(self, name: str, delay_s: float, act: Callable[[], None]) -> None:
        if name in self._timers:
            self._timers[name].cancel()
        self._timers[name] = asyncio.get_running_loop().call_later(delay_s, act)


class SubagentStop:
    """Passes stops on to the subagents that the agent of one lane has started in its conversation.

    A stop is passed on before it leaves the lane, and the ids of the new stops are derived from its id. So if the
    worker dies in between, the next owner passes it on again, and no subagent is stopped twice.
    """

    def __init__(self, bus: Engine, owner: Owner) -> None:
        self._bus = bus
        self._owner = owner
        self._tasks: set[asyncio.Task[None]] = set()

    def begin_pass_on(self, command: str, cause: str) -> None:
        """Pass a stop on in the background while the run continues: the run may be waiting for a subagent."""
        start_task(self.pass_on(command, cause), "pass stop on to subagents", self._tasks)

    async def pass_on(self, command: str, cause: str) -> None:
        """Pass a stop on, and return when it is on the log for each subagent."""
        agent, conversation = self._owner.agent, self._owner.conversation
        try:
            subagents = await retry_call(
                lambda: pass_on_stop(Log(self._bus), agent, conversation, command, cause), self._owner.token
            )
        except REFUSALS as error:  # the stop of the run itself must not depend on this
            log_error("a stop could not be passed on", error, log, owner=self._owner.token)
            return
        if subagents:
            log.info("a stop was passed on", extra={"owner": self._owner.token, "subagents": len(subagents)})

    async def close(self) -> None:
        """Cancel the background tasks. Ending the run passes on the stops that they have not passed on."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(tuple(self._tasks))
