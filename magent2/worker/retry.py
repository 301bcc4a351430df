"""What becomes of mail whose run has failed. Pure."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from magent2.errors import TransientError

ATTEMPTS_MAX = 8  # that fail
CRASHES_MAX = 8  # attempts that end with their worker
SUSPECT_AFTER = 2  # crashes; then mail must not run beside other mail that is as suspicious
RETRY_FIRST_S, RETRY_MAX_S = 0.25, 30.0
ERROR_TEXT_MAX_CHARS = 500  # of an error, as the stream and the dead letter show it


@dataclass(frozen=True, slots=True)
class Retry:
    """Try again, after a while."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class Bury:
    """Give up, in sight."""

    reason: str


def after_failure(error: Exception, attempt: int) -> Retry | Bury:
    """What to do with mail whose run has failed `attempt` times."""
    if not isinstance(error, TransientError | TimeoutError):
        return Bury(error_text(error))
    if attempt >= ATTEMPTS_MAX:
        return Bury(f"gave up after {attempt} attempts: {error_text(error)}")
    return Retry(delay_s=min(RETRY_FIRST_S * 2 ** (attempt - 1), RETRY_MAX_S))


def after_crashes(crashes: int) -> Bury | None:
    """What to do with mail that so many workers did not survive."""
    return None if crashes < CRASHES_MAX else Bury(f"gave up after {crashes} attempts that never ended")


def is_suspect(crashes: int) -> bool:
    """Whether mail may be what kills its workers. When one dies, every lane it held has lost an attempt: those that
    are innocent must not be counted out with the one that is not."""
    return crashes > SUSPECT_AFTER


def error_text(error: BaseException) -> str:
    """Type and message, bounded; where it came from is for the log."""
    return bounded(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)


def bounded(text: str) -> str:
    return text if len(text) <= ERROR_TEXT_MAX_CHARS else text[: ERROR_TEXT_MAX_CHARS - 1] + "…"


# --- Keeps mail that may be what kills workers apart from other mail that is as suspicious.


class Quarantine:
    """One bed. Lanes are named by their owner tokens."""

    def __init__(self) -> None:
        self._inside: str | None = None
        self._undecided: set[str] = set()
        self._all_decided = asyncio.Event()
        self._all_decided.set()

    def expect(self, token: str) -> None:
        """A lane was claimed that may turn out to be a suspect."""
        self._undecided.add(token)
        self._all_decided.clear()

    def decide(self, token: str) -> None:
        """The lane is no suspect, or has been handed back, or is inside."""
        self._undecided.discard(token)
        if not self._undecided:
            self._all_decided.set()

    async def enter(self, token: str) -> bool:
        """Take the bed, and wait until nobody else is undecided; `False` when it is taken."""
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
