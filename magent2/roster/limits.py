"""Limits that an agents file (`[limits]`) or the environment (`MAGENT2_LIMIT_{NAME}`) may set, with their ranges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config
from pydantic_core import ErrorDetails
from typing_extensions import TypedDict

from magent2.errors import SettingsError
from magent2.roster.faults import closest, explain
from magent2.settings import LIMIT_PREFIX

MIB = 1 << 20
COUNT_MAX = 1_000_000


# Strict: `true` is not 1, and 1.0 is not a whole number.
@with_config(ConfigDict(strict=True, extra="forbid"))
class LimitValues(TypedDict, total=False):
    """The limits that are set; a limit that is absent keeps its default. Names end in their unit."""

    # A worker and its runs
    max_turns: Annotated[int, Field(ge=1, le=1000)]  # model calls of one run
    history_max: Annotated[int, Field(ge=0, le=100_000)]  # earlier runs of a conversation that the model is shown
    concurrency: Annotated[int, Field(ge=1, le=1000)]  # conversations that a worker processes at a time
    run_max_s: Annotated[float, Field(ge=0.1, le=86_400)]  # duration of one attempt at a run
    lease_s: Annotated[float, Field(ge=1, le=600)]  # time until another worker takes over the runs of a dead one
    approval_max_s: Annotated[float, Field(ge=1, le=31_536_000)]  # time that a tool call waits for an approval
    run_drain_s: Annotated[float, Field(ge=0, le=3600)]  # time that a stopping worker waits for its runs
    route_max_s: Annotated[float, Field(ge=0, le=600)]  # time that a supervisor may take to decide

    # A gateway
    body_max_bytes: Annotated[int, Field(ge=1 << 10, le=256 * MIB)]  # size of a request
    text_max_chars: Annotated[int, Field(ge=1, le=64 * MIB)]  # length of a message
    streams_max: Annotated[int, Field(ge=1, le=COUNT_MAX)]  # open streams of a gateway
    streams_per_principal_max: Annotated[int, Field(ge=1, le=COUNT_MAX)]  # open streams of one principal
    queue_max_messages: Annotated[int, Field(ge=1, le=COUNT_MAX)]  # messages that wait in one conversation
    connections_max: Annotated[int, Field(ge=1, le=COUNT_MAX)]  # open connections of a gateway
    headers_max_s: Annotated[float, Field(ge=0.1, le=600)]  # time to receive the headers of a request
    body_max_s: Annotated[float, Field(ge=0.1, le=3600)]  # time to receive the body of a request
    send_max_s: Annotated[float, Field(ge=0.1, le=3600)]  # time that a client may take to accept a response
    keep_alive_s: Annotated[float, Field(ge=0.1, le=3600)]  # time that an idle connection is kept open
    heartbeat_s: Annotated[float, Field(ge=0.1, le=600)]  # interval of heartbeats on an idle stream
    drain_s: Annotated[float, Field(ge=0, le=3600)]  # time that a stopping gateway waits for open requests
    wait_max_s: Annotated[float, Field(ge=0, le=3600)]  # time that a request waits for the answer to a message

    # Rates of one principal: the average per second, and the burst after a pause
    send_per_s: Annotated[float, Field(ge=0.001, le=1e6)]  # messages and tool runs
    send_burst: Annotated[int, Field(ge=1, le=COUNT_MAX)]
    write_per_s: Annotated[float, Field(ge=0.001, le=1e6)]  # other requests that change something
    write_burst: Annotated[int, Field(ge=1, le=COUNT_MAX)]
    read_per_s: Annotated[float, Field(ge=0.001, le=1e6)]  # requests that only read
    read_burst: Annotated[int, Field(ge=1, le=COUNT_MAX)]
    stream_per_s: Annotated[float, Field(ge=0.001, le=1e6)]  # streams that are opened
    stream_burst: Annotated[int, Field(ge=1, le=COUNT_MAX)]


LIMIT_NAMES = tuple(LimitValues.__annotations__)

_schema = TypeAdapter(LimitValues)


def parse_limit_variables(texts: Mapping[str, str]) -> LimitValues:
    """Parse the limits of the environment, given by name as `Settings.limits` has them.

    Raises `SettingsError` that names every variable that cannot be used.
    """
    try:
        return _schema.validate_python({name: _number(text) for name, text in texts.items()})
    except ValidationError as error:
        raise SettingsError("; ".join(_fault(details) for details in error.errors())) from None


def _fault(details: ErrorDetails) -> str:
    name = str(details["loc"][0])
    if details["type"] != "extra_forbidden":
        return f"{_variable(name)} {explain(details)}"
    near = closest(name, LIMIT_NAMES)
    hint = f"did you mean {_variable(near)}?" if near else f"known limits: {', '.join(map(_variable, LIMIT_NAMES))}"
    return f"unknown limit {_variable(name)}; {hint}"


def _number(text: str) -> float | str:
    """Return the number that a variable holds; text that is no number is left for the schema to refuse."""
    try:
        return int(text) if text.lstrip("+-").isdecimal() else float(text)
    except ValueError:
        return text


def _variable(name: str) -> str:
    return f"{LIMIT_PREFIX}{name.upper()}"
