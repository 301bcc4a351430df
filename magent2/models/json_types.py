"""Types of JSON values whose shape is decided elsewhere: payloads, headers, heads, tool arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

JsonScalar: TypeAlias = str | int | float | bool | None

# The values are `Any` on purpose: an unknown object is checked where a field is read, or parsed into a typed value.
# Use a TypedDict or a dataclass in place of this alias wherever the fields are known.
JsonObject: TypeAlias = dict[str, Any]
JsonMapping: TypeAlias = Mapping[str, Any]  # an object that is only read
