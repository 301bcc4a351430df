"""Retention that an agents file (`[retention]`) or the environment (`MAGENT2_RETENTION_{NAME}`) may set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, TypeAlias

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from magent2.bus.retention import (
    BLOBS_AFTER_S,
    LEDGERS_AFTER_S,
    SCHEDULES_AFTER_S,
    SWEEP_EVERY_S,
    TOKENS_AFTER_S,
    RetentionPolicy,
    TopicRetention,
)
from magent2.errors import SettingsError
from magent2.roster.faults import VALUE_MAX_CHARS
from magent2.roster.limits import number_of, variable_fault
from magent2.settings import RETENTION_PREFIX

OFF = "off"
DAY_S = 86_400.0
DAYS_MAX = 36_500
RECORDS_MAX = 1_000_000_000


def _none_if_off(value: object) -> object:
    if isinstance(value, str) and value != OFF:
        raise ValueError(f"must be a number or '{OFF}', not {value[:VALUE_MAX_CHARS]!r}")
    return None if value == OFF else value


Seconds: TypeAlias = Annotated[Annotated[float, Field(ge=1, le=31_536_000)] | None, BeforeValidator(_none_if_off)]
Days: TypeAlias = Annotated[Annotated[float, Field(ge=0.001, le=DAYS_MAX)] | None, BeforeValidator(_none_if_off)]
Records: TypeAlias = Annotated[Annotated[int, Field(ge=100, le=RECORDS_MAX)] | None, BeforeValidator(_none_if_off)]


@with_config(ConfigDict(strict=True, extra="forbid"))
class RetentionValues(TypedDict, total=False):
    """The values that are set; one that is absent keeps its default. `off`, here None, means never."""

    tokens_after_s: Seconds  # age of the closing record after which the tokens of a message are removed
    events_max_age_days: Days  # age of the events of a conversation
    events_max_count: Records  # events that a conversation keeps
    history_max_age_days: Days  # age of ended runs, which agents remember
    history_max_count: Records  # records that a history keeps
    mail_max_age_days: Days  # age of settled mail in the inboxes of agents
    dead_letters_max_age_days: Days  # age of dead letters
    dead_letters_max_count: Records  # dead letters that an agent keeps
    idle_conversations_days: Days  # time without activity after which a conversation is deleted
    files_max_age_days: Days  # age of uploaded files
    blobs_after_days: Days  # age of files that no record names
    schedules_after_days: Days  # time since the end of a schedule
    ledgers_after_days: Days  # time since the last record in the ledger of a run that has ended
    sweep_every_s: Annotated[float, Field(ge=1, le=86_400)]  # time between two sweeps


RETENTION_NAMES = tuple(RetentionValues.__annotations__)

_schema = TypeAdapter(RetentionValues)


def parse_retention_variables(texts: Mapping[str, str]) -> RetentionValues:
    """Parse the retention of the environment, given by name as `Settings.retention` has it.

    Raises `SettingsError` that names every variable that cannot be used.
    """
    try:
        return _schema.validate_python({name: number_of(text) for name, text in texts.items()})
    except ValidationError as error:
        faults = (
            variable_fault(details, "retention key", RETENTION_PREFIX, RETENTION_NAMES) for details in error.errors()
        )
        raise SettingsError("; ".join(faults)) from None


def retention_policy(values: RetentionValues) -> RetentionPolicy:
    """Return the policy that the values describe, with defaults for those that are absent."""

    def seconds(days: float | None) -> float | None:
        return None if days is None else days * DAY_S

    return RetentionPolicy(
        tokens_after_s=values.get("tokens_after_s", TOKENS_AFTER_S),
        events=TopicRetention(seconds(values.get("events_max_age_days")), values.get("events_max_count")),
        history=TopicRetention(seconds(values.get("history_max_age_days")), values.get("history_max_count")),
        mail=TopicRetention(seconds(values.get("mail_max_age_days"))),
        dead_letters=TopicRetention(
            seconds(values.get("dead_letters_max_age_days")), values.get("dead_letters_max_count")
        ),
        idle_conversations_s=seconds(values.get("idle_conversations_days")),
        files_max_age_s=seconds(values.get("files_max_age_days")),
        blobs_after_s=seconds(values["blobs_after_days"]) if "blobs_after_days" in values else BLOBS_AFTER_S,
        schedules_after_s=(
            seconds(values["schedules_after_days"]) if "schedules_after_days" in values else SCHEDULES_AFTER_S
        ),
        ledgers_after_s=seconds(values["ledgers_after_days"]) if "ledgers_after_days" in values else LEDGERS_AFTER_S,
        sweep_every_s=values.get("sweep_every_s", SWEEP_EVERY_S),
    )
