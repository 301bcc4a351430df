"""The built-in tools of the Agents SDK: which are enabled, what each requires, and which models support them.

| variable | meaning |
|---|---|
| `BUILTIN_TOOLS_ENABLED` | names, separated by commas; default `WebSearchTool`; `none` for no tool |
| `BUILTIN_TOOLS_SERVER` | `openai` if the server at `OPENAI_BASE_URL` runs hosted tools; else `compatible` |
| `BUILTIN_TOOLS_CALLS_MAX` | how often one response may use hosted tools; default 8 |
| `WEB_SEARCH_CONTEXT_SIZE` | `low`, `medium` or `high`; default `low` |
| `WEB_SEARCH_DOMAINS` | the only sites that a search may use, separated by commas |
| `FILE_SEARCH_VECTOR_STORES` | ids of vector stores, separated by commas |
| `HOSTED_MCP_URL`, `HOSTED_MCP_TOKEN`, `HOSTED_MCP_TOOLS` | an https address, its token, the allowed tools |
| `IMAGE_GENERATION_MODEL` | the model that generates images |
| `CODE_INTERPRETER_MEMORY` | memory of the container, which has no network: `1g`, `4g`, `16g` or `64g` |
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias, TypedDict
from urllib.parse import urlsplit

from magent2.errors import SettingsError, UnknownTool

if TYPE_CHECKING:
    from agents import Tool

ModelKind: TypeAlias = Literal["openai", "compatible", "demo", "local", "echo"]
ContextSize: TypeAlias = Literal["low", "medium", "high"]
ContainerMemory: TypeAlias = Literal["1g", "4g", "16g", "64g"]

OPENAI_HOST = "api.openai.com"
ENABLED_BY_DEFAULT = "WebSearchTool"
CALLS_MAX, CALLS_MAX_CHOICES = 8, range(1, 101)
FILE_RESULTS_MAX = 10
CONTEXT_SIZES: tuple[ContextSize, ...] = ("low", "medium", "high")
MEMORIES: tuple[ContainerMemory, ...] = ("1g", "4g", "16g", "64g")

UNSAFE_TO_REPEAT = (
    "it acts on this machine, and would act again when another worker takes over the run; write a tool that does the"
    " work in a sandbox"
)
NO_HOSTED_TOOLS: Mapping[ModelKind, str] = {
    "compatible": "hosted tools need a server that implements the Responses API of OpenAI; set"
    " BUILTIN_TOOLS_SERVER=openai if this server runs them",
    "demo": "the demo model runs no hosted tools",
    "local": "the local model runs no hosted tools",
    "echo": "there is no model: OPENAI_API_KEY is not set",
}

Values: TypeAlias = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Builtin:
    """A tool of the SDK. `missing` returns the settings that it still needs; `never` says why it cannot be used."""

    name: str
    missing: Callable[[Values], list[str]] = lambda values: []
    make: Callable[[Values], Tool] | None = None
    never: str | None = None


class BuiltinStatus(TypedDict):
    """`enabled`: the settings name the tool. `available`: it works on the model; if not, `reason` says why."""

    name: str
    enabled: bool
    available: bool
    missing: list[str]
    reason: str | None


def _web_search(values: Values) -> Tool:
    from agents import WebSearchTool

    domains = _words(values.get("WEB_SEARCH_DOMAINS", ""))
    chosen = values.get("WEB_SEARCH_CONTEXT_SIZE")
    size = next((size for size in CONTEXT_SIZES if size == chosen), CONTEXT_SIZES[0])
    return WebSearchTool(search_context_size=size, filters={"allowed_domains": domains} if domains else None)


def _file_search(values: Values) -> Tool:
    from agents import FileSearchTool

    return FileSearchTool(_words(values["FILE_SEARCH_VECTOR_STORES"]), max_num_results=FILE_RESULTS_MAX)


def _hosted_mcp(values: Values) -> Tool:
    from agents import HostedMCPTool

    return HostedMCPTool(
        {
            "type": "mcp",
            "server_label": "hosted",
            "server_url": values["HOSTED_MCP_URL"],
            "authorization": values["HOSTED_MCP_TOKEN"],
            "allowed_tools": _words(values["HOSTED_MCP_TOOLS"]),
            "require_approval": "never",
        }
    )


def _image_generation(values: Values) -> Tool:
    """Images are small, because they are part of the model's response and are stored as blobs."""
    from agents import ImageGenerationTool

    return ImageGenerationTool(
        {
            "type": "image_generation",
            "model": values["IMAGE_GENERATION_MODEL"],
            "quality": "low",
            "size": "1024x1024",
            "output_format": "jpeg",
            "output_compression": 60,
            "moderation": "auto",
        }
    )


def _code_interpreter(values: Values) -> Tool:
    from agents import CodeInterpreterTool

    memory = next(memory for memory in MEMORIES if memory == values["CODE_INTERPRETER_MEMORY"])
    return CodeInterpreterTool(
        {
            "type": "code_interpreter",
            "container": {"type": "auto", "memory_limit": memory, "network_policy": {"type": "disabled"}},
        }
    )


def _needs(*names: str) -> Callable[[Values], list[str]]:
    return lambda values: [name for name in names if not values.get(name)]


def _hosted_mcp_missing(values: Values) -> list[str]:
    missing = _needs("HOSTED_MCP_URL", "HOSTED_MCP_TOKEN", "HOSTED_MCP_TOOLS")(values)
    url = values.get("HOSTED_MCP_URL", "")
    return [*missing, "https in HOSTED_MCP_URL"] if url and urlsplit(url).scheme != "https" else missing


def _one_of(name: str, choices: tuple[str, ...]) -> Callable[[Values], list[str]]:
    setting = f"{name}={'|'.join(choices)}"
    return lambda values: [] if values.get(name) in choices else [setting]


def _web_search_missing(values: Values) -> list[str]:
    name = "WEB_SEARCH_CONTEXT_SIZE"
    return _one_of(name, CONTEXT_SIZES)(values) if values.get(name) else []


BUILTINS: Mapping[str, Builtin] = {
    builtin.name: builtin
    for builtin in (
        Builtin("FunctionTool"),
        Builtin("FileSearchTool", _needs("FILE_SEARCH_VECTOR_STORES"), _file_search),
        Builtin("WebSearchTool", _web_search_missing, _web_search),
        Builtin("ComputerTool", never=UNSAFE_TO_REPEAT),
        Builtin("HostedMCPTool", _hosted_mcp_missing, _hosted_mcp),
        Builtin("LocalShellTool", never=UNSAFE_TO_REPEAT),
        Builtin("ImageGenerationTool", _needs("IMAGE_GENERATION_MODEL"), _image_generation),
        Builtin("CodeInterpreterTool", _one_of("CODE_INTERPRETER_MEMORY", MEMORIES), _code_interpreter),
    )
}
FUNCTION_TOOL = "FunctionTool"  # the class of custom tools: always available, never built by this name

VARIABLES = (
    "WEB_SEARCH_CONTEXT_SIZE",
    "WEB_SEARCH_DOMAINS",
    "FILE_SEARCH_VECTOR_STORES",
    "HOSTED_MCP_URL",
    "HOSTED_MCP_TOKEN",
    "HOSTED_MCP_TOOLS",
    "IMAGE_GENERATION_MODEL",
    "CODE_INTERPRETER_MEMORY",
)


@dataclass(frozen=True, slots=True)
class BuiltinTools:
    """The settings of the built-in tools, read from the environment. `values` may contain a token: it has no repr."""

    enabled: frozenset[str] = frozenset({ENABLED_BY_DEFAULT})
    values: Values = field(default_factory=dict, repr=False)
    server: ModelKind | None = None
    calls_max: int = CALLS_MAX

    @classmethod
    def read(cls, environ: Values | None = None) -> BuiltinTools:
        variables = os.environ if environ is None else environ
        values = {name: value for name in VARIABLES if (value := variables.get(name, "").strip())}
        return cls(
            _enabled(variables.get("BUILTIN_TOOLS_ENABLED", "").strip() or ENABLED_BY_DEFAULT),
            values,
            _server(variables.get("BUILTIN_TOOLS_SERVER", "").strip()),
            _calls_max(variables.get("BUILTIN_TOOLS_CALLS_MAX", "").strip()),
        )

    def kind_of_server(self, base_url: str | None) -> ModelKind:
        """The kind of the server at an address. `BUILTIN_TOOLS_SERVER` overrides what the address suggests."""
        if self.server is not None:
            return self.server
        return "openai" if base_url is None or urlsplit(base_url).hostname == OPENAI_HOST else "compatible"

    def status(self, kind: ModelKind) -> list[BuiltinStatus]:
        """The status of all built-in tools on a model of this kind."""
        return [self.status_of(name, kind) for name in BUILTINS]

    def status_of(self, name: str, kind: ModelKind) -> BuiltinStatus:
        builtin = builtin_named(name)
        missing = builtin.missing(self.values)
        enabled = name == FUNCTION_TOOL or name in self.enabled
        if name == FUNCTION_TOOL:
            reason = None
        elif builtin.never is not None:
            reason = builtin.never
        else:
            reason = f"not set up: {', '.join(missing)}" if missing else NO_HOSTED_TOOLS.get(kind)
        return {
            "name": name,
            "enabled": enabled,
            "available": reason is None,
            "missing": missing,
            "reason": reason or (None if enabled else "not named in BUILTIN_TOOLS_ENABLED"),
        }

    def build(self, name: str, kind: ModelKind) -> Tool | None:
        """The tool for a request to a model of this kind; `None` if it is disabled, incomplete or not supported."""
        status = self.status_of(name, kind)
        make = builtin_named(name).make
        return make(self.values) if make is not None and status["enabled"] and status["available"] else None


def builtin_named(name: str) -> Builtin:
    if name not in BUILTINS:
        raise UnknownTool(f"unknown built-in tool {name[:80]!r}; known tools: {', '.join(BUILTINS)}")
    return BUILTINS[name]


def _words(text: str) -> list[str]:
    return [word for part in text.split(",") if (word := part.strip())]


def _enabled(text: str) -> frozenset[str]:
    names = frozenset() if text.casefold() == "none" else frozenset(_words(text))
    unknown = sorted(names - BUILTINS.keys())
    if unknown:
        raise SettingsError(
            f"BUILTIN_TOOLS_ENABLED names unknown tools: {', '.join(repr(name[:80]) for name in unknown)};"
            f" known tools: {', '.join(BUILTINS)}, or 'none'"
        )
    return names


def _server(text: str) -> ModelKind | None:
    if not text:
        return None
    if text == "openai":
        return "openai"
    if text == "compatible":
        return "compatible"
    raise SettingsError(f"BUILTIN_TOOLS_SERVER must be 'openai' or 'compatible', not {text[:40]!r}")


def _calls_max(text: str) -> int:
    if not text:
        return CALLS_MAX
    if not (text.isascii() and text.isdecimal()) or int(text) not in CALLS_MAX_CHOICES:
        raise SettingsError(
            f"BUILTIN_TOOLS_CALLS_MAX must be a number from {CALLS_MAX_CHOICES[0]} to {CALLS_MAX_CHOICES[-1]},"
            f" not {text[:40]!r}"
        )
    return int(text)
