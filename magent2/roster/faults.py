"""Messages for faults in an agents file and in variables: what is wrong and what to write instead."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches

from pydantic_core import ErrorDetails

VALUE_MAX_CHARS = 60  # of a value in a message

UNKNOWN_KEY = ("extra_forbidden", "unexpected_keyword_argument")  # pydantic's error types, for models and dataclasses

# pydantic's error type → our message, in the words of TOML
MESSAGES: Mapping[str, str] = {
    "missing": "is missing",
    "string_type": "must be a string, not {value}",
    "tuple_type": "must be an array, not {value}",
    "dict_type": "must be a table, not {value}",
    "model_type": "must be a table, not {value}",
    "dataclass_type": "must be a table, not {value}",
    "int_type": "must be a whole number, not {value}",
    "float_type": "must be a number, not {value}",
    "string_too_short": "is empty; leave the key out or give it a value",
    "greater_than_equal": "must be at least {ge:g}, not {value}",
    "less_than_equal": "must be at most {le:g}, not {value}",
    "too_long": "has more than {max_length} entries; remove some",
    "literal_error": "must be one of {expected}, not {value}",
    "bool_type": "must be true or false, not {value}",
    "value_error": "{error}",  # the text of the ValueError that a validator has raised
}


def explain(error: ErrorDetails) -> str:
    """Say in one clause what is wrong with a value that pydantic refused."""
    message = MESSAGES.get(error["type"])
    if message is None:
        return error["msg"]
    value = repr(error["input"])
    shown = value if len(value) <= VALUE_MAX_CHARS else value[: VALUE_MAX_CHARS - 1] + "…"
    return message.format(value=shown, **error.get("ctx", {}))


def suggestion(wanted: str, known: Collection[str]) -> str:
    """Suggest the known word that is closest to an unknown one; without a close one list all that are known."""
    near = closest(wanted, known)
    return f"did you mean {near!r}?" if near else f"known: {', '.join(known) or 'none'}"


def closest(wanted: str, known: Collection[str]) -> str | None:
    """Return the known word that is most similar to an unknown one, None when none is similar."""
    return next(iter(get_close_matches(wanted, list(known), n=1)), None)
