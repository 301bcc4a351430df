"""The conformance suite fails on an engine that breaks a promise."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from magent2.bus.interface import Engine
from magent2.bus.memory import MemoryBus
from magent2.errors import Magent2Error
from tests.contracts.bus import BusContract
from tests.contracts.bus.driver import BusDriver, SyncDriver
from tests.contracts.bus.state_machine import EngineStateMachine
from tests.support.engine_wrappers import BREAKAGES
from tests.support.engines import ENGINES, new_engines

Check = Callable[[BusContract, BusDriver], None]

NOTICED_BY: list[tuple[str, Check]] = [
    ("dedupe", BusContract.test_a_repeated_id_appends_nothing_and_answers_with_the_first_number),
    ("dedupe", BusContract.test_the_same_id_with_another_body_is_a_conflict),
    ("dedupe", BusContract.test_the_same_operation_run_twice_happens_once),
    ("dedupe", BusContract.test_ten_threads_that_send_the_same_message_append_it_once),
    ("fence", lambda suite, bus: suite.test_whatever_a_zombie_writes_is_refused(bus, "append")),
    ("fence", lambda suite, bus: suite.test_whatever_a_zombie_writes_is_refused(bus, "settle")),
    ("fence", lambda suite, bus: suite.test_whatever_a_zombie_writes_is_refused(bus, "later")),
    ("fence", BusContract.test_a_zombie_cannot_read_the_mail_of_the_lane),
    ("atomicity", lambda suite, bus: suite.test_a_refused_append_changes_nothing_anywhere(bus, "id")),
    ("atomicity", lambda suite, bus: suite.test_a_refused_append_changes_nothing_anywhere(bus, "deleted")),
    ("atomicity", lambda suite, bus: suite.test_a_refused_append_changes_nothing_anywhere(bus, "condition")),
    ("atomicity", lambda suite, bus: suite.test_a_refused_append_changes_nothing_anywhere(bus, "blob")),
    ("conditions", lambda suite, bus: suite.test_a_topic_that_is_elsewhere_refuses_the_append(bus, 1)),
    ("conditions", BusContract.test_of_many_that_start_a_topic_only_if_it_is_empty_one_wins),
    ("early ack", BusContract.test_records_of_a_topic_are_numbered_from_one),
    ("early ack", BusContract.test_writers_on_many_threads_leave_no_hole_and_lose_nothing),
    ("counter", BusContract.test_a_number_already_seen_appends_nothing_and_answers_as_the_first_time),
    ("counter", BusContract.test_a_number_that_skips_one_is_refused),
    ("settled on claim", BusContract.test_a_worker_that_leaves_gives_its_lanes_back_to_the_front),
    ("settled on claim", BusContract.test_mail_that_is_held_is_never_trimmed_until_it_is_settled),
    ("cursors", lambda suite, bus: suite.test_a_cursor_below_the_floor_is_unknown(bus, 1)),
]


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize(("breakage", "check"), NOTICED_BY)
def test_a_broken_promise_is_noticed(kind: str, breakage: str, check: Check, request: pytest.FixtureRequest) -> None:
    bus = SyncDriver(BREAKAGES[breakage](new_engines(kind, request)()))
    try:
        with pytest.raises((AssertionError, pytest.fail.Exception)):
            check(BusContract(), bus)
    finally:
        bus.close()


@pytest.mark.parametrize("breakage", BREAKAGES)
def test_a_broken_promise_is_noticed_by_random_histories(breakage: str) -> None:
    class Machine(EngineStateMachine):
        def open_engine(self) -> Engine:
            return BREAKAGES[breakage](MemoryBus())

    chosen = settings(
        max_examples=200,
        stateful_step_count=50,
        derandomize=True,
        report_multiple_bugs=False,
        phases=[Phase.generate],  # finding a history is enough, it need not be a short one
        suppress_health_check=list(HealthCheck),
    )
    with pytest.raises((AssertionError, Magent2Error)):
        run_state_machine_as_test(Machine, settings=chosen)
