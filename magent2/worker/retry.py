"""Decides what happens to mail whose run failed, or whose worker died during the run."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from magent2.errors import TransientError

ATTEMPTS_MAX = 8  # failed attempts
CRASHES_MAX = 8  # attempts during which the worker dies
SUSPECT_AFTER = 2  # crashes; then the mail must not run beside other suspected mail
RUN_RETRY_FIRST_S, RUN_RETRY_MAX_S = 0.25, 30.0  # the delay doubles with every failed attempt
ERROR_TEXT_MAX_CHARS = 500  # the longest error text in the stream and in a dead letter


@dataclass(frozen=True, slots=True)
class Retry:
    """Try again after `delay_s`."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class Bury:
    """Give up and move the mail to the dead letters."""

    reason: str


def after_failure(error: Exception, attempt: int) -> Retry | Bury:
    """Decide what to do with mail whose run has failed `attempt` times."""
    if not isinstance(error, TransientError | TimeoutError):
        return Bury(error_text(error))
    if attempt >= ATTEMPTS_MAX:
        return Bury(f"gave up after {attempt} attempts: {error_text(error)}")
    return Retry(delay_s=min(RUN_RETRY_FIRST_S * 2 ** (attempt - 1), RUN_RETRY_MAX_S))


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


def error_text(error: BaseException) -> str:
    """Return type and message of an error, shortened. The traceback is only logged."""
    return bounded(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)


def bounded(text: str) -> str:
    return text if len(text) <= ERROR_TEXT_MAX_CHARS else text[: ERROR_TEXT_MAX_CHARS - 1] + "…"


class Quarantine:
    """Lets a worker run only one suspected message at a time. Lanes are named by their owner tokens.

    A lane whose earlier attempts were lost is expected at its claim. It is decided when its mail was read: only then is
    it known how many of these attempts were crashes. `enter` waits until every expected lane is decided. Otherwise a
    second suspect could already be running beside the first.
    """

    def __init__(self) -> None:
        self._inside: str | None = None
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

    def leave(self, token: str) -> None:
        if self._inside == token:
            self._inside = None
        self.decide(token)
