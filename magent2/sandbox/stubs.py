"""Tools as typed Python functions: the stubs that a block is checked against and that a model reads."""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from magent2.tools.definition import JsonSchema, ToolDefinition

DOC_MAX_CHARS = 300
HEADER = "from typing import Any, Literal\n\n"
SIMPLE = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
ANY = "Any"


@dataclass(frozen=True, slots=True)
class ToolFunction:
    """A tool as a function: its name in Python, its parameters in order (`names`), and its type stub."""

    name: str
    tool: ToolDefinition
    names: tuple[str, ...]
    stub: str

    @classmethod
    def of(cls, tool: ToolDefinition) -> ToolFunction:
        name = re.sub(r"\W", "_", tool.name)
        name = f"tool_{name}" if name[0].isdigit() or keyword.iskeyword(name) else name
        schema = tool.params_schema
        names, signature = _signature(schema)
        returns = type_of(tool.returns, tool.returns)
        doc = json.dumps(" ".join(tool.description.split())[:DOC_MAX_CHARS], ensure_ascii=False)
        return cls(name, tool, names, f"def {name}({signature}) -> {returns}:\n    {doc}\n    ...\n")

    def bind(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> dict[str, object]:
        """Bind positional and named arguments to the parameters."""
        if len(args) > len(self.names):
            raise TypeError(f"{self.name}() takes {len(self.names)} arguments, not {len(args)}")
        bound = dict(zip(self.names, args, strict=False))
        for name, value in kwargs.items():
            if name in bound:
                raise TypeError(f"{self.name}() got two values for {name!r}")
            bound[name] = value
        return bound


def functions_of(tools: Iterable[ToolDefinition]) -> dict[str, ToolFunction]:
    """The functions of tools by their name in Python. If two tools have the same name, the first keeps it."""
    found: dict[str, ToolFunction] = {}
    for tool in tools:
        function = ToolFunction.of(tool)
        found.setdefault(function.name, function)
    return found


def stubs_of(functions: Iterable[ToolFunction]) -> str:
    return HEADER + "\n".join(function.stub for function in functions)


def _signature(schema: JsonSchema) -> tuple[tuple[str, ...], str]:
    properties = _mapping(schema.get("properties"))
    required = set(_items(schema.get("required")))
    usable = [name for name in properties if name.isidentifier() and not keyword.iskeyword(name)]
    names = (
        *(name for name in usable if name in required),
        *(name for name in usable if name not in required),
    )
    parts = [f"{name}: {type_of(properties[name], schema)}" + ("" if name in required else " = ...") for name in names]
    if len(usable) < len(properties) or schema.get("additionalProperties") is True:
        parts.append("**others: Any")
    return names, ", ".join(parts)


def type_of(schema: object, root: JsonSchema, depth: int = 0) -> str:
    """The Python type of a JSON Schema. It accepts at least what the schema accepts; `Any` if there is no such type."""
    if not isinstance(schema, Mapping) or depth > 8:
        return ANY
    if "$ref" in schema:
        return type_of(_resolved(str(schema["$ref"]), root), root, depth + 1)
    if "const" in schema or "enum" in schema:
        return _literal(_items(schema.get("enum", [schema.get("const")])))
    options = _items(schema.get("anyOf") or schema.get("oneOf"))
    if options:
        return _union(type_of(option, root, depth + 1) for option in options)
    kind = schema.get("type")
    if isinstance(kind, list):
        return _union(_named(one, schema, root, depth) for one in kind)
    return _named(kind, schema, root, depth)


def _named(kind: object, schema: JsonSchema, root: JsonSchema, depth: int) -> str:
    if kind == "array":
        return f"list[{type_of(schema.get('items'), root, depth + 1)}]"
    if kind == "object":
        more = schema.get("additionalProperties")
        return f"dict[str, {type_of(more, root, depth + 1) if isinstance(more, Mapping) and more else ANY}]"
    return SIMPLE.get(str(kind), ANY)


def _union(types: Iterable[str]) -> str:
    found = list(dict.fromkeys(types))
    return ANY if ANY in found or not found else " | ".join(found)


def _literal(values: Sequence[object]) -> str:
    if not values or not all(value is None or isinstance(value, str | int | bool) for value in values):
        return ANY
    return f"Literal[{', '.join(map(repr, values))}]"


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _items(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else ()


def _resolved(reference: str, root: JsonSchema) -> object:
    """The part of the schema that a reference names."""
    if not reference.startswith("#/"):
        return None
    found: object = root
    for step in reference[2:].split("/"):
        found = found.get(step) if isinstance(found, Mapping) else None
    return found
