"""Circuits: when calls to a provider are suspended, and how they begin again. On virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from magent2.errors import CircuitOpen
from magent2.mail.retry_policy import RetryPolicy
from magent2.runner.circuit import Circuit, Circuits
from tests.simulation.virtual_loop import VirtualLoop, run_on_virtual_loop

POLICY = RetryPolicy(first_s=1.0, max_s=16.0, jitter=0.5, give_up_after_s=3600.0)
FAILURES = 3
OPEN_S = 4.0  # the delay after three failures


class Provider:
    """A circuit, and the changes that it told of."""

    def __init__(self) -> None:
        self.changes: list[tuple[str, bool]] = []
        circuits = Circuits(POLICY, FAILURES, lambda: 0.0, lambda *change: self.changes.append(change))
        self.circuit: Circuit = circuits.of(("api.example", "key"))

    def fail(self, times: int = 1, retry_after_s: float | None = None) -> None:
        for _ in range(times):
            self.circuit.begin().fail(retry_after_s)

    def retry_in_s(self) -> float:
        with pytest.raises(CircuitOpen) as refused:
            self.circuit.begin()
        return refused.value.retry_in_s


def on_virtual_time(work: Coroutine[Any, Any, None]) -> None:
    run_on_virtual_loop(VirtualLoop(1), work)


def test_calls_are_suspended_after_so_many_failures_in_a_row() -> None:
    async def work() -> None:
        provider = Provider()
        provider.fail(FAILURES - 1)
        provider.circuit.begin().succeed()
        provider.fail(FAILURES - 1)
        assert provider.changes == []

        provider.fail()

        assert provider.retry_in_s() == OPEN_S
        assert provider.changes == [("api.example", True)]

    on_virtual_time(work())


def test_one_probe_at_a_time_is_let_through_and_its_success_closes_the_circuit() -> None:
    async def work() -> None:
        provider = Provider()
        provider.fail(FAILURES)
        await asyncio.sleep(OPEN_S)
        probe = provider.circuit.begin()
        assert provider.retry_in_s() == OPEN_S

        probe.succeed()

        provider.circuit.begin().succeed()
        assert provider.changes == [("api.example", True), ("api.example", False)]

    on_virtual_time(work())


def test_each_failed_probe_doubles_the_delay_up_to_its_limit() -> None:
    async def work() -> None:
        provider = Provider()
        provider.fail(FAILURES)
        delays = []
        for _ in range(4):
            delays.append(provider.retry_in_s())
            await asyncio.sleep(delays[-1])
            provider.fail()

        assert delays == [4.0, 8.0, 16.0, 16.0]

    on_virtual_time(work())


def test_a_probe_whose_run_is_stopped_leaves_its_place_to_the_next_call() -> None:
    async def work() -> None:
        provider = Provider()
        provider.fail(FAILURES)
        await asyncio.sleep(OPEN_S)

        provider.circuit.begin().abandon()

        provider.circuit.begin().succeed()
        assert provider.changes[-1] == ("api.example", False)

    on_virtual_time(work())


def test_calls_from_before_the_circuit_opened_do_not_prolong_it() -> None:
    async def work() -> None:
        provider = Provider()
        old = [provider.circuit.begin() for _ in range(10)]
        provider.fail(FAILURES)
        await asyncio.sleep(1.0)

        for call in old:
            call.fail(None)

        assert provider.retry_in_s() == OPEN_S - 1.0

    on_virtual_time(work())


def test_a_probe_that_fails_after_the_circuit_closed_counts_as_any_other_call() -> None:
    async def work() -> None:
        provider = Provider()
        old = provider.circuit.begin()
        provider.fail(FAILURES)
        await asyncio.sleep(OPEN_S)
        probe = provider.circuit.begin()

        old.succeed()
        probe.fail(None)

        provider.circuit.begin().succeed()
        assert provider.changes == [("api.example", True), ("api.example", False)]

    on_virtual_time(work())


def test_a_provider_may_ask_for_a_longer_pause() -> None:
    async def work() -> None:
        provider = Provider()
        provider.fail(FAILURES, retry_after_s=90.0)

        assert provider.retry_in_s() == 90.0

    on_virtual_time(work())


def test_only_the_first_result_of_a_call_counts() -> None:
    async def work() -> None:
        provider = Provider()
        for _ in range(FAILURES):
            call = provider.circuit.begin()
            call.succeed()
            call.fail(None)

        provider.circuit.begin().succeed()

    on_virtual_time(work())


def test_two_keys_at_one_provider_have_a_circuit_each() -> None:
    circuits = Circuits()

    assert circuits.of(("api.example", "one")) is circuits.of(("api.example", "one"))
    assert circuits.of(("api.example", "one")) is not circuits.of(("api.example", "two"))
