"""Schemas of answers: which JSON schemas are accepted, and whether an answer matches one. Pure.

A schema may come with a request of a stranger, so nothing in it is trusted. No reference is fetched: each must point to
a schema within the same document. Patterns run on an engine whose time is linear in the text; one that this engine
cannot compile, because it looks around or back, is told to the model but not checked. The work of a check is counted
and limited.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import cache, lru_cache
from importlib import import_module
from typing import Any, TypeAlias

import orjson
from pydantic_core import SchemaError, SchemaValidator, ValidationError, core_schema

from magent2.errors import InvalidInput
from magent2.models.json_types import JsonMapping

SCHEMA_MAX_BYTES = 64 << 10  # of one JSON schema
OUTPUT_SCHEMA_MAX_DEPTH = 32  # levels of schemas within each other
OUTPUT_SCHEMA_MAX_SCHEMAS = 500  # schemas within it: properties, items and so on
# The work of one check of an answer: keywords and their entries. A reference costs as much as many of them.
OUTPUT_CHECK_MAX_STEPS = 300_000
PROBE_MAX_STEPS = 10_000  # of the check of an empty object when the schema itself is checked
REFERENCE_STEPS = 20
FAULTS_SHOWN_MAX = 3
OUTPUT_FAULT_MAX_CHARS = 300  # of each
POINTER_SHOWN_CHARS = 80

# Keywords that hold schemas: by name, in a list, or alone
_NAMED = ("properties", "$defs", "definitions", "dependentSchemas")
_LISTED = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
_REFUSED = ("patternProperties", "unevaluatedItems", "unevaluatedProperties", "$dynamicRef", "$recursiveRef", "$id")

JsonSchema: TypeAlias = Mapping[str, Any]
Validator: TypeAlias = Any  # of jsonschema, which has no type hints
Keyword: TypeAlias = Callable[[Validator, Any, Any, JsonSchema], Iterator[Any] | None]


# --- schemas


def check_output_schema(schema: JsonMapping) -> None:
    """Raise `InvalidInput` for a schema that answers cannot be checked against."""
    size = schema_size(schema)
    if size > SCHEMA_MAX_BYTES:
        raise InvalidInput(
            f"the schema of the output takes {size} bytes, the limit is {SCHEMA_MAX_BYTES}; make it smaller"
        )
    found: dict[int, JsonMapping] = {}
    for number, inner in enumerate(_schemas(schema, 1), start=1):
        found[id(inner)] = inner
        if number > OUTPUT_SCHEMA_MAX_SCHEMAS:
            raise InvalidInput(f"it holds more than {OUTPUT_SCHEMA_MAX_SCHEMAS} schemas; use fewer properties")
    for inner in found.values():
        _check_keywords(inner, is_root=inner is schema)
        pointer = inner.get("$ref")
        if pointer is not None and id(_target(schema, pointer)) not in found:
            raise InvalidInput(
                f"$ref {str(pointer)[:POINTER_SHOWN_CHARS]!r} does not name a schema of this document;"
                " only references such as '#/$defs/name' are followed"
            )
    jsonschema = import_module("jsonschema")
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise InvalidInput(f"it is not a JSON Schema: {error.message[:OUTPUT_FAULT_MAX_CHARS]}") from error
    # A schema that refers to itself without end does so for any value, or only deep within one. This finds the former.
    if (fault := output_fault(schema, "{}", PROBE_MAX_STEPS)) in (ENDLESS, TOO_MUCH_WORK):
        raise InvalidInput(fault)


def schema_size(schema: JsonMapping) -> int:
    """Return the bytes of a schema as JSON. Raises `InvalidInput` for one that the log cannot store."""
    try:
        return len(orjson.dumps(schema))
    except orjson.JSONEncodeError as error:  # an integer of more than 64 bits, or too many levels
        raise InvalidInput(f"the schema cannot be stored: {error}; use smaller numbers and fewer levels") from None


def _schemas(schema: JsonMapping, depth: int) -> Iterator[JsonMapping]:
    """The schema and all schemas within it, without data such as `default` and `enum`."""
    if depth > OUTPUT_SCHEMA_MAX_DEPTH:
        raise InvalidInput(f"the schema has more than {OUTPUT_SCHEMA_MAX_DEPTH} levels; use $defs or fewer of them")
    yield schema
    inner: list[object] = [schema.get(key) for key in _SINGLE]
    for key in _NAMED:
        named = schema.get(key)
        inner += named.values() if isinstance(named, Mapping) else ()
    for key in _LISTED:
        listed = schema.get(key)
        inner += listed if isinstance(listed, list) else ()
    for one in inner:
        if isinstance(one, Mapping):
            yield from _schemas(one, depth + 1)


def _check_keywords(schema: JsonMapping, *, is_root: bool) -> None:
    for keyword in _REFUSED:
        if keyword in schema and not (keyword == "$id" and is_root):
            raise InvalidInput(f"the keyword {keyword!r} is not supported; leave it out")
    pattern = schema.get("pattern")
    if isinstance(pattern, str) and _compiled(pattern) is None:
        try:
            re.compile(pattern)
        except (re.error, RecursionError, OverflowError) as error:
            raise InvalidInput(f"pattern {pattern[:POINTER_SHOWN_CHARS]!r} is not a regular expression") from error


def _target(schema: JsonMapping, pointer: object) -> object:
    """The part of the document that a reference names; None if there is none."""
    if pointer == "#":
        return schema
    if not isinstance(pointer, str) or not pointer.startswith("#/"):
        return None
    found: object = schema
    for step in pointer[2:].split("/"):
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping):
            found = found.get(key)
        elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            return None
    return found


# --- answers

ENDLESS = "the schema refers to itself without end, or the answer is nested too deeply"
TOO_MUCH_WORK = "checking an answer takes too many steps; simplify the schema"


class _TooMuchWork(Exception):
    """A check has taken all its steps."""


_steps: ContextVar[list[int]] = ContextVar("output_check_steps")


def output_fault(schema: JsonMapping, text: str, steps_max: int = OUTPUT_CHECK_MAX_STEPS) -> str | None:
    """Say what is wrong with an answer, or None if it matches the schema."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        return ENDLESS
    except ValueError as error:
        return f"it is not JSON: {error}"
    token = _steps.set([steps_max])
    try:
        return _first_faults(schema, value)
    except RecursionError:
        return ENDLESS
    except _TooMuchWork:
        return TOO_MUCH_WORK
    finally:
        _steps.reset(token)


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not a JSON value")


def _first_faults(schema: JsonMapping, value: object) -> str | None:
    validator_class, registry = _validator_class()
    without_id = {key: inner for key, inner in schema.items() if key != "$id"}  # references are within the document
    faults: list[str] = []
    for error in validator_class(without_id, registry=registry).iter_errors(value):
        words = f"{error.json_path}: {error.message}"
        faults.append(words if len(words) <= OUTPUT_FAULT_MAX_CHARS else f"{words[: OUTPUT_FAULT_MAX_CHARS - 1]}…")
        if len(faults) == FAULTS_SHOWN_MAX:
            break
    return "; ".join(faults) or None


@cache
def _validator_class() -> tuple[Any, Any]:
    """The validator, whose keywords count their steps, and a registry that fetches nothing."""
    jsonschema, referencing = import_module("jsonschema"), import_module("referencing")
    keywords = {**jsonschema.Draft202012Validator.VALIDATORS, "pattern": _pattern, "uniqueItems": _unique_items}
    counted = {name: _counted(keyword, REFERENCE_STEPS if name == "$ref" else 1) for name, keyword in keywords.items()}
    return jsonschema.validators.extend(jsonschema.Draft202012Validator, counted), referencing.Registry()


def _counted(keyword: Keyword, steps: int) -> Keyword:
    def check(validator: Validator, value: Any, instance: Any, schema: JsonSchema) -> Iterator[Any]:
        left = _steps.get()
        left[0] -= steps + (len(value) if isinstance(value, list | dict) else 0)
        if left[0] < 0:
            raise _TooMuchWork
        yield from keyword(validator, value, instance, schema) or ()

    return check


def _pattern(validator: Validator, pattern: Any, instance: Any, schema: JsonSchema) -> Iterator[Any]:
    compiled = _compiled(pattern)
    if isinstance(instance, str) and compiled is not None:
        try:
            compiled.validate_python(instance)
        except ValidationError:
            yield import_module("jsonschema").ValidationError(f"{instance!r} does not match {pattern!r}")


@lru_cache(maxsize=512)
def _compiled(pattern: str) -> SchemaValidator | None:
    """The pattern on pydantic's linear engine; None if that cannot run it."""
    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except SchemaError:
        return None


def _unique_items(validator: Validator, wanted: Any, instance: Any, schema: JsonSchema) -> Iterator[Any]:
    """As in jsonschema, whose own check compares every two items."""
    if wanted and isinstance(instance, list):
        seen = {json.dumps(item, sort_keys=True) for item in instance}
        if len(seen) < len(instance):
            yield import_module("jsonschema").ValidationError("it has non-unique elements")
