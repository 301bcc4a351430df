"""GatewayLimits: their names and ranges, from an agents file and from the environment."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from magent2.errors import SettingsError
from magent2.gateway.limits import DEFAULT_RATES, GatewayLimits
from magent2.roster.limits import LimitValues, parse_limit_variables
from magent2.roster.spec import ContextValues
from magent2.runner.attachments import REQUEST_FILES_MAX_BYTES
from magent2.runner.config import CONTEXT_MAX_CHOICES, HISTORY_MAX_CHOICES, MAX_TURNS, MAX_TURNS_CHOICES
from magent2.sandbox.monty import PROCESSES_MAX, PROCESSES_PER_PRINCIPAL_MAX
from magent2.sessions.approvals import APPROVAL_MAX_S
from magent2.tools.interface import TOOL_THREADS_MAX, TOOL_THREADS_PER_PRINCIPAL_MAX
from magent2.worker.lane_run import RUN_MAX_S
from magent2.worker.service import CONCURRENCY, DRAIN_S, LEASE_S, PRINCIPAL_SHARE
from tests.unit.roster.agents_files import AGENT, read_roster

RANGES = TypeAdapter(LimitValues).json_schema()["properties"]

OF_WORKERS = {
    "max_turns": MAX_TURNS,
    "history_max": 0,  # the one limit without a default
    "concurrency": CONCURRENCY,
    "principal_share": PRINCIPAL_SHARE,
    "run_max_s": RUN_MAX_S,
    "run_drain_s": DRAIN_S,
    "approval_max_s": APPROVAL_MAX_S,
    "lease_s": LEASE_S,
    "request_files_max_bytes": REQUEST_FILES_MAX_BYTES,
    "tool_threads_max": TOOL_THREADS_MAX,
    "tool_threads_per_principal_max": TOOL_THREADS_PER_PRINCIPAL_MAX,
    "sandbox_processes_max": PROCESSES_MAX,
    "sandbox_processes_per_principal_max": PROCESSES_PER_PRINCIPAL_MAX,
}
OF_GATEWAYS = {
    **{name: value for name, value in asdict(GatewayLimits()).items() if name != "rates"},
    **{f"{kind}_per_s": rate.per_s for kind, rate in DEFAULT_RATES.items()},
    **{f"{kind}_burst": rate.burst for kind, rate in DEFAULT_RATES.items()},
}


def test_limits_are_those_of_the_worker_and_of_the_gateway_and_defaults_are_in_range() -> None:
    defaults = OF_WORKERS | OF_GATEWAYS

    assert RANGES.keys() == defaults.keys()
    for name, choices in (("max_turns", MAX_TURNS_CHOICES), ("history_max", HISTORY_MAX_CHOICES)):
        assert (RANGES[name]["minimum"], RANGES[name]["maximum"]) == (choices[0], choices[-1])
    for name, value in defaults.items():
        assert RANGES[name]["minimum"] <= value <= RANGES[name]["maximum"]
        assert RANGES[name]["type"] == ("integer" if isinstance(value, int) else "number")


def test_the_context_of_an_agent_has_the_same_range_in_the_file_and_in_the_environment() -> None:
    in_file = TypeAdapter(ContextValues).json_schema()["properties"]["context_max"]

    assert (in_file["minimum"], in_file["maximum"]) == (CONTEXT_MAX_CHOICES[0], CONTEXT_MAX_CHOICES[-1])


@pytest.mark.parametrize("name", OF_GATEWAYS)
def test_every_limit_of_a_gateway_reaches_it_from_the_file_and_from_the_environment(tmp_path: Path, name: str) -> None:
    value = OF_GATEWAYS[name] + 1
    in_file = read_roster(tmp_path, f"{AGENT}[limits]\n{name} = {value}").limits

    by_file, by_environment = GatewayLimits.of(in_file), GatewayLimits.of(parse_limit_variables({name: str(value)}))

    assert by_file == by_environment
    shown = {**asdict(by_file), **{f"{kind}_per_s": rate.per_s for kind, rate in by_file.rates.items()}}
    shown |= {f"{kind}_burst": rate.burst for kind, rate in by_file.rates.items()}
    assert {key: shown[key] for key in OF_GATEWAYS} == OF_GATEWAYS | {name: value}


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (
            {"wait_max": "1"},
            "unknown limit MAGENT2_LIMIT_WAIT_MAX; did you mean MAGENT2_LIMIT_WAIT_MAX_S?",
        ),
        (
            {"zzzzz": "1"},
            "unknown limit MAGENT2_LIMIT_ZZZZZ; known limits: MAGENT2_LIMIT_MAX_TURNS, ",
        ),
        ({"wait_max_s": "long"}, "MAGENT2_LIMIT_WAIT_MAX_S must be a number, not 'long'"),
        ({"wait_max_s": "nan"}, "MAGENT2_LIMIT_WAIT_MAX_S must be at most 3600, not nan"),
        ({"send_burst": "1.5"}, "MAGENT2_LIMIT_SEND_BURST must be a whole number, not 1.5"),
        ({"send_burst": "0"}, "MAGENT2_LIMIT_SEND_BURST must be at least 1, not 0"),
    ],
)
def test_a_limit_of_the_environment_that_cannot_be_used_is_refused_by_name(texts: dict[str, str], words: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(words)):
        parse_limit_variables(texts)
