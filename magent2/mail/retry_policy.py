"""The retry policy: how long to wait after a failed attempt, and when to give up."""

from __future__ import annotations

from dataclasses import dataclass

from magent2.errors import SettingsError

RETRY_AFTER_MAX_S = 3600.0  # the longest delay that a receiver may ask for
DOUBLINGS_MAX = 60  # a float holds far more, and every useful maximum is reached long before


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Delays that double from `first_s` up to `max_s`, until `give_up_after_s` have passed since the first failure.

    `jitter` is the share of each delay that is random, from 0 to 1. It spreads retries of work that failed together.
    """

    first_s: float
    max_s: float
    jitter: float
    give_up_after_s: float

    def __post_init__(self) -> None:
        if self.first_s > self.max_s:
            raise SettingsError(
                f"a first delay of {self.first_s:g} s is longer than the longest, {self.max_s:g} s; change one"
            )

    def delay_s(self, failures: int, chance: float, retry_after_s: float | None = None) -> float:
        """Return the delay after so many failures in a row. `chance` is a random number from 0 to 1.

        `retry_after_s` is the delay that the receiver asked for. It may be longer than `max_s`.
        """
        longest = min(self.first_s * 2.0 ** min(failures - 1, DOUBLINGS_MAX), self.max_s)
        return max(longest * (1 - self.jitter * chance), min(retry_after_s or 0.0, RETRY_AFTER_MAX_S))


RUN_RETRY = RetryPolicy(first_s=0.25, max_s=60.0, jitter=0.5, give_up_after_s=3600.0)
DELIVERY_RETRY = RetryPolicy(first_s=1.0, max_s=300.0, jitter=0.5, give_up_after_s=3600.0)
