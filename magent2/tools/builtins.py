"""The built-in tools of the Agents SDK: which are enabled, what each requires, and which models support them.

| variable | meaning |
|---|---|
| `BUILTIN_TOOLS_ENABLED` | names, separated by commas; `WebSearchTool` when not set, none when it says `none` |
| `BUILTIN_TOOLS_SERVER` | `openai` if the server at `OPENAI_BASE_URL` runs hosted tools; else `compatible` |
| `BUILTIN_TOOLS_CALLS_MAX` | how often one answer may use hosted tools, 8 when not set |
| `WEB_SEARCH_CONTEXT_SIZE` | `low`, `medium` or `high`; `low` when not set |
| `WEB_SEARCH_DOMAINS` | the only sites that a search may use, separated by commas |
| `FILE_SEARCH_VECTOR_STORES` | ids of vector stores, separated by commas |
| `HOSTED_MCP_URL`, `HOSTED_MCP_TOKEN`, `HOSTED_MCP_TOOLS` | an https address, its token, the tools that may be used |
| `IMAGE_GENERATION_MODEL` | the model that draws |
| `CODE_INTERPRETER_MEMORY` | `1g`, `4g`, `16g` or `64g` for the container, which has no network |
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from magent2.errors import SettingsError, UnknownTool

if TYPE_CHECKING:
    from agents import Tool

ModelKind = Literal["openai", "compatible", "demo", "local", "echo"]

OPENAI_HOST = "api.openai.com"
ENABLED_BY_DEFAULT = "WebSearchTool"
CALLS_MAX, CALLS_MAX_CHOICES = 8, range(1, 101)
FILE_RESULTS_MAX = 10
CONTEXT_SIZES = ("low", "medium", "high")
MEMORIES = ("1g", "4g", "16g", "64g")

ACTS_TWICE = (
    "acts on this machine, and would act a second time when a run is taken over; give the agent a tool of its own that"
    " does the work in a sandbox"
)
CANNOT: Mapping[str, str] = {
    "compatible": "hosted tools need the Responses API of OpenAI; this server only speaks its language"
    " (BUILTIN_TOOLS_SERVER=openai, if it does run them)",
    "demo": "the demo model runs no hosted tools",
    "local": "the local model runs no hosted tools",
    "echo": "there is no model: OPENAI_API_KEY is not set",
}

Values = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Builtin:
    """A tool of the SDK. `missing` returns the settings it still needs; `never` says why it can never be used."""

    name: str
    missing: Callable[[Values], list[str]] = lambda values: []
    make: Callable[[Values], Tool] | None = None
    never: str | None = None


def _web_search(values: Values) -> Tool:
    from agents import WebSearchTool

    domains = _words(values.get("WEB_SEARCH_DOMAINS", ""))
    size: Any = values.get("WEB_SEARCH_CONTEXT_SIZE", CONTEXT_SIZES[0])
    return WebSearchTool(search_context_size=size, filters={"allowed_domains": domains} if domains else None)


def _file_search(values: Values) -> Tool:
    from agents import FileSearchTool

    return FileSearchTool(_words(values["FILE_SEARCH_VECTOR_STORES"]), max_num_results=FILE_RESULTS_MAX)


def _hosted_mcp(values: Values) -> Tool:
    from agents import HostedMCPTool

    config: Any = {
        "type": "mcp",
        "server_label": "hosted",
        "server_url": values["HOSTED_MCP_URL"],
        "authorization": values["HOSTED_MCP_TOKEN"],
        "allowed_tools": _words(values["HOSTED_MCP_TOOLS"]),
        "require_approval": "never",
    }
    return HostedMCPTool(config)


def _image_generation(values: Values) -> Tool:
    """Small images: they are part of the model's response, and are stored as blobs."""
    from agents import ImageGenerationTool

    config: Any = {
        "type": "image_generation",
        "model": values["IMAGE_GENERATION_MODEL"],
        "quality": "low",
        "size": "1024x1024",
        "output_format": "jpeg",
        "output_compression": 60,
        "moderation": "auto",
    }
    return ImageGenerationTool(config)


def _code_interpreter(values: Values) -> Tool:
    from agents import CodeInterpreterTool

    container = {
        "type": "auto",
        "memory_limit": values["CODE_INTERPRETER_MEMORY"],
        "network_policy": {"type": "disabled"},
    }
    config: Any = {"type": "code_interpreter", "container": container}
    return CodeInterpreterTool(config)


def _needs(*names: str) -> Callable[[Values], list[str]]:
    return lambda values: [name for name in names if not values.get(name)]


def _hosted_mcp_missing(values: Values) -> list[str]:
    missing = _needs("HOSTED_MCP_URL", "HOSTED_MCP_TOKEN", "HOSTED_MCP_TOOLS")(values)
    url = values.get("HOSTED_MCP_URL", "")
    return [*missing, "https in HOSTED_MCP_URL"] if url and urlsplit(url).scheme != "https" else missing


def _one_of(name: str, choices: tuple[str, ...]) -> Callable[[Values], list[str]]:
    wanted = f"{name}={'|'.join(choices)}"
    return lambda values: [] if values.get(name) in choices else [wanted]


def _web_search_missing(values: Values) -> list[str]:
    name = "WEB_SEARCH_CONTEXT_SIZE"
    return _one_of(name, CONTEXT_SIZES)(values) if values.get(name) else []


BUILTINS: Mapping[str, Builtin] = {
    builtin.name: builtin
    for builtin in (
        Builtin("FunctionTool"),
        Builtin("FileSearchTool", _needs("FILE_SEARCH_VECTOR_STORES"), _file_search),
        Builtin("WebSearchTool", _web_search_missing, _web_search),
        Builtin("ComputerTool", never=ACTS_TWICE),
        Builtin("HostedMCPTool", _hosted_mcp_missing, _hosted_mcp),
        Builtin("LocalShellTool", never=ACTS_TWICE),
        Builtin("ImageGenerationTool", _needs("IMAGE_GENERATION_MODEL"), _image_generation),
        Builtin("CodeInterpreterTool", _one_of("CODE_INTERPRETER_MEMORY", MEMORIES), _code_interpreter),
    )
}
FUNCTION_TOOL = "FunctionTool"  # custom tools are made of it: always available, never built by this name

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
    """The settings of the built-in tools in the environment. Values may contain a token and are not printed."""

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

    def status(self, kind: ModelKind) -> list[dict[str, Any]]:
        return [self.status_of(name, kind) for name in BUILTINS]

    def status_of(self, name: str, kind: ModelKind) -> dict[str, Any]:
        """`enabled`: the settings name it. `available`: it works on such a model; if not, `reason` says why."""
        builtin = known(name)
        missing = builtin.missing(self.values)
        reason = None if name == FUNCTION_TOOL else _reason(builtin, missing, kind)
        enabled = name == FUNCTION_TOOL or name in self.enabled
        return {
            "name": name,
            "enabled": enabled,
            "available": reason is None,
            "missing": missing,
            "reason": reason or (None if enabled else "not named in BUILTIN_TOOLS_ENABLED"),
        }

    def build(self, name: str, kind: ModelKind) -> Tool | None:
        """The tool for a request to such a model; `None` if it is disabled, incomplete or not supported."""
        status = self.status_of(name, kind)
        make = known(name).make
        return make(self.values) if make is not None and status["enabled"] and status["available"] else None


def known(name: str) -> Builtin:
    if name not in BUILTINS:
        raise UnknownTool(f"there is no built-in tool {name[:80]!r}; there is: {', '.join(BUILTINS)}")
    return BUILTINS[name]


def _reason(builtin: Builtin, missing: list[str], kind: ModelKind) -> str | None:
    if builtin.never is not None:
        return builtin.never
    if missing:
        return f"not set up: {', '.join(missing)}"
    return CANNOT.get(kind)


def _words(text: str) -> list[str]:
    return [word for part in text.split(",") if (word := part.strip())]


def _enabled(text: str) -> frozenset[str]:
    names = frozenset() if text.casefold() == "none" else frozenset(_words(text))
    unknown = sorted(names - BUILTINS.keys())
    if unknown:
        raise SettingsError(
            f"BUILTIN_TOOLS_ENABLED names {', '.join(repr(name[:80]) for name in unknown)}, which are unknown;"
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
