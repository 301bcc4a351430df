"""Circuits: they stop calls to a model provider that does not answer, and test it with one call at a time."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from magent2.errors import CircuitOpen
from magent2.mail.retry_policy import RUN_RETRY, RetryPolicy

log = logging.getLogger(__name__)

CIRCUIT_FAILURES = 5  # calls in a row that fail before the circuit opens


class CircuitCall:
    """One call that a circuit let through. Its first result counts."""

    def __init__(self, circuit: Circuit) -> None:
        self._circuit = circuit
        self._ended = False

    def succeed(self) -> None:
        """The provider has answered."""
        if not self._ended:
            self._ended = True
            self._circuit.note_success()

    def fail(self, retry_after_s: float | None) -> None:
        """The provider did not answer. `retry_after_s` is the delay that it asked for."""
        if not self._ended:
            self._ended = True
            self._circuit.note_failure(self, retry_after_s)

    def abandon(self) -> None:
        """The call ended without saying anything about the provider, for example because its run was stopped."""
        if not self._ended:
            self._ended = True
            self._circuit.note_abandoned(self)


class Circuit:
    """Whether calls to one provider are made. It opens after `failures_max` calls in a row have failed.

    While it is open, calls fail at once with `CircuitOpen`, except for one probe after each delay of the policy. A
    probe that succeeds closes the circuit. Time is that of the event loop, so setting the clock changes nothing.
    """

    def __init__(
        self,
        provider: str,
        policy: RetryPolicy,
        failures_max: int,
        chance: Callable[[], float],
        on_change: Callable[[str, bool], None],
    ) -> None:
        self._provider = provider
        self._policy = policy
        self._failures_max = failures_max
        self._chance = chance
        self._on_change = on_change
        self._failures = 0  # in a row
        self._probes = 0  # that have failed since the circuit opened
        self._probe: CircuitCall | None = None  # the one in progress
        self._delay_s = 0.0
        self._probe_at_s: float | None = None  # set while the circuit is open

    def begin(self) -> CircuitCall:
        """Let a call through, or raise `CircuitOpen`. The caller says how the call has ended."""
        if self._probe_at_s is None:
            return CircuitCall(self)
        if self._probe is not None:
            raise CircuitOpen(self._provider, self._delay_s)
        left_s = self._probe_at_s - asyncio.get_running_loop().time()
        if left_s > 0:
            raise CircuitOpen(self._provider, left_s)
        self._probe = CircuitCall(self)
        return self._probe

    def note_success(self) -> None:
        self._failures = 0
        self._probe = None  # if it still runs, it counts as any other call from now on
        if self._probe_at_s is not None:
            self._probe_at_s, self._probes = None, 0
            log.warning("a model provider answers again", extra={"provider": self._provider})
            self._on_change(self._provider, False)

    def note_failure(self, call: CircuitCall, retry_after_s: float | None) -> None:
        """Open the circuit, or wait longer for the next probe. Calls from before it opened change nothing."""
        self._failures += 1
        if call is self._probe:
            self._probe = None
            self._probes += 1
        elif self._probe_at_s is not None or self._failures < self._failures_max:
            return
        self._delay_s = self._policy.delay_s(self._failures_max + self._probes, self._chance(), retry_after_s)
        opened = self._probe_at_s is None
        self._probe_at_s = asyncio.get_running_loop().time() + self._delay_s
        if opened:
            facts = {"provider": self._provider, "failures": self._failures, "probe_in_s": round(self._delay_s, 1)}
            log.warning("a model provider does not answer; calls are suspended", extra=facts)
            self._on_change(self._provider, True)

    def note_abandoned(self, call: CircuitCall) -> None:
        if call is self._probe:
            self._probe = None  # the next call is the probe


def _ignore(provider: str, is_open: bool) -> None:
    """Do nothing."""


class Circuits:
    """The circuits of one worker, by provider. `on_change` is called with the provider and whether it is open now."""

    def __init__(
        self,
        policy: RetryPolicy = RUN_RETRY,
        failures_max: int = CIRCUIT_FAILURES,
        chance: Callable[[], float] = random.random,
        on_change: Callable[[str, bool], None] = _ignore,
    ) -> None:
        self._settings = policy, failures_max, chance, on_change
        self._by_provider: dict[tuple[str, str], Circuit] = {}

    def of(self, provider: tuple[str, str]) -> Circuit:
        """Return the circuit of a provider: its name, which people see, and what tells two of that name apart."""
        if provider not in self._by_provider:
            self._by_provider[provider] = Circuit(provider[0], *self._settings)
        return self._by_provider[provider]
