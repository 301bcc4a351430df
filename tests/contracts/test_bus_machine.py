"""Each engine against the reference model, over random histories."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from magent2.bus.interface import Engine
from tests.contracts.bus.state_machine import EngineStateMachine
from tests.support.engines import ENGINES, new_engines
from tests.support.postgres_server import Schemas

STEPS = 40
EXAMPLES = {"memory": 60, "sqlite": 20, "redis": 20, "postgres": 10}
SOAK_STEPS = 120
SOAK_EXAMPLES = {"memory": 3000, "sqlite": 500, "redis": 500, "postgres": 500}


def run(kind: str, request: pytest.FixtureRequest, examples: int, steps: int) -> None:
    new_engine = new_engines(kind, request)

    class Machine(EngineStateMachine):
        def open_engine(self) -> Engine:
            return new_engine()

        def teardown(self) -> None:
            super().teardown()
            if kind == "postgres":  # the next history uses the emptied logs of this one
                schemas: Schemas = request.getfixturevalue("postgres_schemas")
                schemas.give_back()

    chosen = settings(
        max_examples=examples,
        stateful_step_count=steps,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    run_state_machine_as_test(Machine, settings=chosen)


@pytest.mark.parametrize("kind", ENGINES)
def test_an_engine_answers_as_the_model_does(kind: str, request: pytest.FixtureRequest) -> None:
    run(kind, request, EXAMPLES[kind], STEPS)


@pytest.mark.soak
@pytest.mark.parametrize("kind", ENGINES)
def test_an_engine_answers_as_the_model_does_for_long(kind: str, request: pytest.FixtureRequest) -> None:
    run(kind, request, SOAK_EXAMPLES[kind], SOAK_STEPS)
