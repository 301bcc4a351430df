"""Limits and retry policies that an agents file or the environment may set, with their ranges.

`[limits]` is `MAGENT2_LIMIT_{NAME}` in the environment, `[retry]` is `MAGENT2_RETRY_{NAME}`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Annotated, cast

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config
from pydantic_core import ErrorDetails
from typing_extensions import TypedDict

from magent2.errors import SettingsError
from magent2.mail.retry_policy import DELIVERY_RETRY, RUN_RETRY, RetryPolicy
from magent2.roster.faults import closest, explain
from magent2.settings import LIMIT_PREFIX, RETRY_PREFIX

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
    principal_share: Annotated[float, Field(ge=0.01, le=1)]  # of them that one principal may use
    run_max_s: Annotated[float, Field(ge=0.1, le=86_400)]  # duration of one attempt at a run
    lease_s: Annotated[float, Field(ge=1, le=600)]  # time until another worker takes over the runs of a dead one
    approval_max_s: Annotated[float, Field(ge=1, le=31_536_000)]  # time that a tool call waits for an approval
    run_drain_s: Annotated[float, Field(ge=0, le=3600)]  # time that a stopping worker waits for its runs
    route_max_s: Annotated[float, Field(ge=0, le=600)]  # time that a supervisor may take to decide
    request_files_max_bytes: Annotated[int, Field(ge=0, le=256 * MIB)]  # of the files in one request to a model
    tool_threads_max: Annotated[int, Field(ge=1, le=1000)]  # synchronous tools that run at the same time
    tool_threads_per_principal_max: Annotated[int, Field(ge=1, le=1000)]  # of them, those of one principal
    sandbox_processes_max: Annotated[int, Field(ge=1, le=64)]  # Python blocks that run at the same time
    sandbox_processes_per_principal_max: Annotated[int, Field(ge=1, le=64)]  # of them, those of one principal

    # A gateway
    body_max_bytes: Annotated[int, Field(ge=1 << 10, le=256 * MIB)]  # size of a request
    inline_body_max_bytes: Annotated[int, Field(ge=1 << 10, le=256 * MIB)]  # of a request of `/v1`, with its files
    text_max_chars: Annotated[int, Field(ge=1, le=64 * MIB)]  # length of a message
    file_max_bytes: Annotated[int, Field(ge=1 << 10, le=512 * MIB)]  # size of a file
    files_per_principal_max_bytes: Annotated[int, Field(ge=1 << 10, le=1 << 50)]  # of all files of one principal
    files_per_principal_max: Annotated[int, Field(ge=1, le=100_000)]  # number of files of one principal
    schedules_per_principal_max: Annotated[int, Field(ge=0, le=100_000)]  # number of schedules of one principal
    schedule_interval_min_s: Annotated[float, Field(ge=60, le=86_400)]  # time between two slots of a cron expression
    upload_max_s: Annotated[float, Field(ge=0.1, le=3600)]  # time to receive a file
    streams_max: Annotated[int, Field(ge=1, le=COUNT_MAX)]  # open streams of a gateway
    streams_per_principal_max: Annotated[int, Field(ge=1, le=COUNT_MAX)]  # open streams of one principal
    queue_max_messages: Annotated[int, Field(ge=1, le=COUNT_MAX)]  # messages that wait in one conversation
    connections_max: Annotated[int, Field(ge=1, le=COUNT_MAX)]  # open connections of a gateway
    connections_per_address_max: Annotated[int, Field(ge=1, le=COUNT_MAX)]  # open connections of one address
    head_max_bytes: Annotated[int, Field(ge=1 << 10, le=MIB)]  # size of the request line and the headers
    target_max_bytes: Annotated[int, Field(ge=256, le=MIB)]  # size of the path and the query of a request
    headers_max: Annotated[int, Field(ge=10, le=10_000)]  # number of headers of a request
    headers_max_s: Annotated[float, Field(ge=0.1, le=600)]  # time to receive the headers of a request
    body_max_s: Annotated[float, Field(ge=0.1, le=3600)]  # time to receive the body of a request
    send_max_s: Annotated[float, Field(ge=0.1, le=3600)]  # time that a client may take to accept a response
    keep_alive_s: Annotated[float, Field(ge=0.1, le=3600)]  # time that an idle connection is kept open
    heartbeat_s: Annotated[float, Field(ge=0.1, le=600)]  # interval of heartbeats on an idle stream
    drain_s: Annotated[float, Field(ge=0, le=3600)]  # time that a stopping gateway waits for open requests
    wait_max_s: Annotated[float, Field(ge=0, le=3600)]  # time that a request waits for the answer to a message
    response_wait_max_s: Annotated[float, Field(ge=0, le=86_400)]  # the same for a response of `/v1`

    # Rates of one principal: the average per second, and the burst after a pause
    send_per_s: Annotated[float, Field(ge=0.001, le=1e6)]  # messages and tool runs
    send_burst: Annotated[int, Field(ge=1, le=COUNT_MAX)]
    write_per_s: Annotated[float, Field(ge=0.001, le=1e6)]  # other requests that change something
    write_burst: Annotated[int, Field(ge=1, le=COUNT_MAX)]
    read_per_s: Annotated[float, Field(ge=0.001, le=1e6)]  # requests that only read
    read_burst: Annotated[int, Field(ge=1, le=COUNT_MAX)]
    stream_per_s: Annotated[float, Field(ge=0.001, le=1e6)]  # streams that are opened
    stream_burst: Annotated[int, Field(ge=1, le=COUNT_MAX)]


@with_config(ConfigDict(strict=True, extra="forbid"))
class RetryValues(TypedDict, total=False):
    """The retry policies that are set; a value that is absent keeps its default. `delivery_…` are the relay's."""

    first_s: Annotated[float, Field(ge=0.01, le=3600)]  # delay after the first failure; it doubles each time
    max_s: Annotated[float, Field(ge=0.01, le=86_400)]  # longest delay
    jitter: Annotated[float, Field(ge=0, le=1)]  # share of each delay that is random
    give_up_after_s: Annotated[float, Field(ge=0, le=31_536_000)]  # time from the first failure to the dead letter
    circuit_failures: Annotated[int, Field(ge=1, le=COUNT_MAX)]  # failed model calls in a row that suspend calls
    delivery_first_s: Annotated[float, Field(ge=0.01, le=3600)]
    delivery_max_s: Annotated[float, Field(ge=0.01, le=86_400)]
    delivery_jitter: Annotated[float, Field(ge=0, le=1)]
    delivery_give_up_after_s: Annotated[float, Field(ge=0, le=31_536_000)]


LIMIT_NAMES = tuple(LimitValues.__annotations__)
RETRY_NAMES = tuple(RetryValues.__annotations__)

_limits_schema = TypeAdapter(LimitValues)
_retry_schema = TypeAdapter(RetryValues)


def parse_limit_variables(texts: Mapping[str, str]) -> LimitValues:
    """Parse the limits of the environment, given by name as `Settings.limits` has them.

    Raises `SettingsError` that names every variable that cannot be used.
    """
    try:
        return _limits_schema.validate_python({name: number_of(text) for name, text in texts.items()})
    except ValidationError as error:
        faults = (variable_fault(details, "limit", LIMIT_PREFIX, LIMIT_NAMES) for details in error.errors())
        raise SettingsError("; ".join(faults)) from None


def parse_retry_variables(texts: Mapping[str, str]) -> RetryValues:
    """Parse the retry policies of the environment, like `parse_limit_variables`."""
    try:
        return _retry_schema.validate_python({name: number_of(text) for name, text in texts.items()})
    except ValidationError as error:
        faults = (variable_fault(details, "retry value", RETRY_PREFIX, RETRY_NAMES) for details in error.errors())
        raise SettingsError("; ".join(faults)) from None


def run_retry_policy(values: RetryValues) -> RetryPolicy:
    """Return the retry policy of runs. Raises `SettingsError` if its values contradict each other."""
    return _retry_policy(values, RUN_RETRY, "")


def delivery_retry_policy(values: RetryValues) -> RetryPolicy:
    """Return the retry policy of the relay, like `run_retry_policy`."""
    return _retry_policy(values, DELIVERY_RETRY, "delivery_")


def _retry_policy(values: RetryValues, default: RetryPolicy, prefix: str) -> RetryPolicy:
    given = cast("Mapping[str, float]", values)
    parts = {item.name: given.get(prefix + item.name, getattr(default, item.name)) for item in fields(RetryPolicy)}
    try:
        return RetryPolicy(**parts)
    except SettingsError as error:
        raise SettingsError(f"{prefix}first_s and {prefix}max_s of the retry policy: {error}") from None


def variable_fault(details: ErrorDetails, what: str, prefix: str, known: Sequence[str]) -> str:
    """Say what is wrong with a variable, whose name is the prefix and a known name in upper case."""

    def variable(name: str) -> str:
        return f"{prefix}{name.upper()}"

    name = str(details["loc"][0])
    if details["type"] != "extra_forbidden":
        return f"{variable(name)} {explain(details)}"
    near = closest(name, known)
    hint = f"did you mean {variable(near)}?" if near else f"known {what}s: {', '.join(map(variable, known))}"
    return f"unknown {what} {variable(name)}; {hint}"


def number_of(text: str) -> float | str:
    """Return the number that a variable holds; text that is no number is left for the schema to refuse."""
    try:
        return int(text) if text.lstrip("+-").isdecimal() else float(text)
    except ValueError:
        return text
