"""JSON values whose shape is decided elsewhere: payloads, headers, heads, tool arguments and results."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, TypeAlias

from pydantic import BaseModel

JsonScalar: TypeAlias = str | int | float | bool | None

# The values are `Any` on purpose: an unknown object is checked where a field is read, or parsed into a typed value.
# Use a TypedDict or a dataclass in place of this alias wherever the fields are known.
JsonObject: TypeAlias = dict[str, Any]
JsonMapping: TypeAlias = Mapping[str, Any]  # an object that is only read

PATH_MAX = 8  # steps of a path that `Replace` gets
JSON_MAX_DEPTH = 100  # levels of a value that `as_json` converts; the encoder takes 254
STORED_INT_MAX_BITS = 59  # an integer of the log; 18 digits always fit
INT_MAX_BITS = 14_000  # about 4,200 digits: the most that Python converts to text

# Gets what is wrong with a value, its path and the value; returns what takes its place, or raises.
Replace: TypeAlias = Callable[[str, tuple[str, ...], object], object]


def encodable(text: str) -> str:
    """Return the text without lone surrogates, which a model can write in JSON but UTF-8 cannot encode."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def storable(value: object) -> Any:
    """A copy of the value that a log accepts. What JSON or the log cannot hold is replaced by its text. Never raises.

    Models, tools and runners give such values: lone surrogates, numbers of any size, objects, values in a circle.
    """
    return as_json(value, _shown, STORED_INT_MAX_BITS)


def as_json(value: object, replace: Replace, int_max_bits: int = INT_MAX_BITS) -> Any:
    """A copy of a value of any type that consists of JSON values. `replace` decides about all that JSON cannot hold.

    Subclasses become values of their JSON type, tuples lists, enum members their values, pydantic models their fields,
    and other objects their text. The methods of foreign objects are called only where any error of theirs is caught.
    """
    return _Conversion(replace, int_max_bits).convert(value, (), ())


class _Conversion:
    """One conversion. `path` is where a value is, `outer` has the ids of the values that it is inside of."""

    def __init__(self, replace: Replace, int_max_bits: int) -> None:
        self._replace = replace
        self._int_max_bits = int_max_bits

    def convert(self, value: object, path: tuple[str, ...], outer: tuple[int, ...]) -> object:
        if isinstance(value, Enum):
            value = value.value
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return encodable(str.__str__(value))
        if isinstance(value, int | float):
            return self._number(value, path)
        reason = _fault(value, path, outer)
        return (
            self._container(value, path, (*outer, id(value))) if reason is None else self._replace(reason, path, value)
        )

    def _number(self, value: float, path: tuple[str, ...]) -> object:
        if isinstance(value, int):
            whole = int.__index__(value)
            if whole.bit_length() <= self._int_max_bits:
                return whole
            return self._replace(f"an integer of more than {self._int_max_bits * 3 // 10} digits", path, whole)
        number = float.__float__(value)
        return number if math.isfinite(number) else self._replace(f"{number}, which JSON cannot hold", path, number)

    def _container(self, value: object, path: tuple[str, ...], outer: tuple[int, ...]) -> object:
        if isinstance(value, list | tuple):
            items = list.__iter__(value) if isinstance(value, list) else tuple.__iter__(value)
            return [self.convert(item, (*path, str(place)), outer) for place, item in enumerate(items)]
        if isinstance(value, dict):
            return self._object(dict.items(value), path, outer)
        try:
            if isinstance(value, Mapping):
                return self._object([(key, value[key]) for key in value], path, outer)
            shown: object = value.model_dump(mode="json") if isinstance(value, BaseModel) else str(value)
        except Exception as error:  # noqa: BLE001  a foreign object may raise anything
            return self._replace(f"a {type(value).__name__} that cannot be shown ({type(error).__name__})", path, value)
        return encodable(shown) if type(shown) is str else self.convert(shown, path, outer)

    def _object(self, items: Iterable[tuple[object, object]], path: tuple[str, ...], outer: tuple[int, ...]) -> object:
        converted: dict[str, object] = {}
        for key, item in items:
            name = self._key(key, path)
            if name in converted:
                name = str(self._replace(f"two entries {name[:80]!r}", path, name))
            converted[name] = self.convert(item, (*path, name), outer)
        return converted

    def _key(self, key: object, path: tuple[str, ...]) -> str:
        if isinstance(key, str):
            return encodable(str.__str__(key))
        if isinstance(key, int) and not isinstance(key, bool):
            return str(self._number(key, path))
        return str(self._replace(f"a key of the type {type(key).__name__}; use text", path, key))


def _fault(value: object, path: tuple[str, ...], outer: tuple[int, ...]) -> str | None:
    """Why JSON cannot hold a value that is not a scalar, as far as it can be seen without looking inside."""
    if isinstance(value, bytes | bytearray | memoryview):
        return "bytes, which JSON cannot hold; decode them, or send a file"
    if isinstance(value, set | frozenset):
        return "a set, which JSON cannot hold; return a list"
    if id(value) in outer:
        return f"a {type(value).__name__} that contains itself"
    return f"values nested more than {JSON_MAX_DEPTH} deep" if len(path) >= JSON_MAX_DEPTH else None


def _shown(reason: str, path: tuple[str, ...], value: object) -> str:
    try:
        return encodable(str(value))
    except Exception:  # noqa: BLE001  a foreign object may raise anything
        return f"<{reason}>"
