"""Decides what happens to mail whose run failed, or whose worker died during the run."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass

from magent2.errors import CircuitOpen, TransientError
from magent2.mail.retry_policy import RetryPolicy

CRASHES_MAX = 8  # attempts during which the worker dies
SUSPECT_AFTER = 2  # crashes; then the mail must not run beside other suspected mail


@dataclass(frozen=True, slots=True)
class Retry:
    """Try again after `delay_s`."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class Defer:
    """Try again after `delay_s`. The model was not called, so the attempt does not count."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class Bury:
    """Give up and move the mail to the dead letters. `why` says why, unless the failure itself does."""

    why: str = ""


def is_transient(error: Exception) -> bool:
    """Return whether the same run may succeed later."""
    return isinstance(error, TransientError | TimeoutError)


def after_failure(
    error: Exception, failures: int, elapsed_s: float, policy: RetryPolicy, chance: float
) -> Retry | Defer | Bury:
    """Decide what to do with mail whose run has failed `failures` times in a row, over `elapsed_s`.

    `chance`, from 0 to 1, spreads the retries of runs that failed together.
    """
    if not is_transient(error):
        return Bury()
    if elapsed_s >= policy.give_up_after_s:
        attempts = "1 attempt" if failures == 1 else f"{failures} attempts"
        return Bury(f"gave up after {attempts} in {elapsed_s:.0f} s")
    if isinstance(error, CircuitOpen):
        return Defer(error.retry_in_s * (1 + policy.jitter * chance))
    return Retry(policy.delay_s(failures, chance, getattr(error, "retry_after_s", None)))


def after_crashes(crashes: int) -> Bury | None:
    """Decide whether to give up mail during whose runs so many workers have died."""
    if crashes < CRASHES_MAX:
        return None
    return Bury(f"gave up after {crashes} attempts during which the worker stopped")


def is_suspect(crashes: int) -> bool:
    """Return whether mail may be the cause of worker crashes.

    When a worker dies, every lane it held loses an attempt. Suspected mail therefore runs without other suspected mail
    beside it (see `Quarantine`). So only the cause reaches `CRASHES_MAX`, and harmless mail is not given up with it.
    """
    return crashes > SUSPECT_AFTER


class Quarantine:
    """Lets a worker run only one suspected message at a time. Lanes are named by their owner tokens.

    A lane whose earlier attempts were lost is expected at its claim. It is decided when its mail was read: only then is
    it known how many of these attempts were crashes. `enter` waits until every expected lane is decided. Otherwise a
    second suspect could already be running beside the first.
    """

    def __init__(self) -> None:
        self._inside: str | None = None
        self._returning: deque[tuple[str, asyncio.Event]] = deque()  # lanes that wait to enter again, and their turns
        self._undecided: set[str] = set()
        self._all_decided = asyncio.Event()
        self._all_decided.set()

    def expect(self, token: str) -> None:
        """Note that a lane was claimed whose mail may turn out to be suspected."""
        self._undecided.add(token)
        self._all_decided.clear()

    def decide(self, token: str) -> None:
        """Note that a lane is not suspected, was given back, or is inside."""
        self._undecided.discard(token)
        if not self._undecided:
            self._all_decided.set()

    async def enter(self, token: str) -> bool:
        """Enter, and wait until no other lane is undecided. Return `False` at once if another lane is inside."""
        if self._inside is not None:
            return False
        self._inside = token
        self.decide(token)
        await self._all_decided.wait()
        return True

    async def enter_again(self, token: str) -> None:
        """Enter after a wait outside, when the lanes that are inside or came back earlier have left.

        A lane that comes back goes before new ones: `leave` passes the place on directly. The wait ends, because a
        run that is inside is limited in time and leaves while it waits itself.
        """
        if self._inside is None:
            self._inside = token
        elif self._inside != token:
            turn = token, asyncio.Event()
            self._returning.append(turn)
            try:
                await turn[1].wait()
            except asyncio.CancelledError:
                if turn in self._returning:
                    self._returning.remove(turn)
                else:
                    self.leave(token)
                raise
        await self._all_decided.wait()

    def leave(self, token: str) -> None:
        if self._inside == token:
            self._inside = None
            if self._returning:
                self._inside, turn = self._returning.popleft()
                turn.set()
        self.decide(token)


class QuarantinePlace:
    """The place of one suspected run in the quarantine. The run leaves it while all its calls in progress wait.

    Otherwise a run that waits for another suspected run of this worker would wait for a run that cannot start.
    `record` writes to the history that the run waits (True) or works again (False). An attempt that is lost while it
    waits does not count as a crash: the run did nothing, and the suspect that ran meanwhile may have caused the crash.
    So the record is written before the run leaves, and after it has entered again.
    """

    def __init__(
        self, quarantine: Quarantine, token: str, calls: Collection[object], record: Callable[[bool], Awaitable[None]]
    ) -> None:
        self._quarantine = quarantine
        self._token = token
        self._calls = calls  # the calls in progress
        self._record = record
        self._waiting = 0  # how many of them wait
        self._outside = False
        self._closed = False
        self._updating = asyncio.Lock()

    @asynccontextmanager
    async def released(self) -> AsyncIterator[None]:
        """Count a call that waits. A call that is cancelled does not enter again; the next turn or call does."""
        self._waiting += 1
        try:
            await self.update()
            yield
        except asyncio.CancelledError:
            self._waiting -= 1
            raise
        except BaseException:
            self._waiting -= 1
            await self.update()
            raise
        self._waiting -= 1
        await self.update()

    async def update(self) -> None:
        """Leave if all calls in progress wait, else return when the run is inside. Call it after each change."""
        async with self._updating:
            waits = 0 < self._waiting == len(self._calls)
            if self._is_closed() or waits == self._outside:
                return
            if waits:
                self._outside = True
                await self._record(True)
                self._quarantine.leave(self._token)
            else:
                await self._quarantine.enter_again(self._token)
                if self._is_closed():
                    self._quarantine.leave(self._token)
                    return
                await self._record(False)
                self._outside = False

    def _is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Leave for good, because the run has ended. A call of it may still be running and must not enter again."""
        self._closed = True
        self._quarantine.leave(self._token)
