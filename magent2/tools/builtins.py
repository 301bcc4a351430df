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
| `COMPUTER_TOOL`, `LOCAL_SHELL_TOOL` | your implementation, as `module:function` |
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, TypedDict
from urllib.parse import urlsplit

from magent2.errors import Magent2Error, SettingsError, UnknownTool

if TYPE_CHECKING:
    from agents import Tool

    from magent2.tools.definition import ToolDefinition

ModelKind: TypeAlias = Literal["openai", "compatible", "demo", "local", "echo"]
ROUTING_KINDS: frozenset[ModelKind] = frozenset({"openai", "compatible"})  # models that can be made to call a function
ContextSize: TypeAlias = Literal["low", "medium", "high"]
ContainerMemory: TypeAlias = Literal["1g", "4g", "16g", "64g"]

OPENAI_HOST = "api.openai.com"
OPENAI_PREFIX = "openai/"
ENABLED_BY_DEFAULT = "WebSearchTool"
CALLS_MAX, CALLS_MAX_CHOICES = 8, range(1, 101)
FILE_RESULTS_MAX = 10
CONTEXT_SIZES: tuple[ContextSize, ...] = ("low", "medium", "high")
MEMORIES: tuple[ContainerMemory, ...] = ("1g", "4g", "16g", "64g")

NO_MODEL_REASON = "there is no model: OPENAI_API_KEY is not set, and no other provider is named"
NO_HOSTED_TOOLS: Mapping[ModelKind, str] = {
    "compatible": "hosted tools need a server that implements the Responses API of OpenAI; set"
    " BUILTIN_TOOLS_SERVER=openai if this server runs them",
    "demo": "the demo model runs no hosted tools",
    "local": "the local model runs no hosted tools",
    "echo": NO_MODEL_REASON,
}

Values: TypeAlias = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Builtin:
    """A tool of the SDK. `missing` returns the settings that it still needs.

    `function`: a tool that acts on the machine of the worker. The model gets a function of this name, whose
    implementation the operator supplies: `variable` has its import path. It is recorded like any tool. Because it must
    not act twice, it is not run again after a crash.
    """

    name: str
    missing: Callable[[Values], list[str]] = lambda values: []
    make: Callable[[Values], Tool] | None = None
    function: str = ""
    variable: str = ""


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
    return [*missing, "https in HOSTED_MCP_URL"] if url and not url.lower().startswith("https://") else missing


def _one_of(name: str, choices: tuple[str, ...]) -> Callable[[Values], list[str]]:
    setting = f"{name}={'|'.join(choices)}"
    return lambda values: [] if values.get(name) in choices else [setting]


def _web_search_missing(values: Values) -> list[str]:
    name = "WEB_SEARCH_CONTEXT_SIZE"
    return _one_of(name, CONTEXT_SIZES)(values) if values.get(name) else []


def _implemented(name: str, function: str, variable: str) -> Builtin:
    setting = f"{variable}=module:function"
    return Builtin(name, lambda values: [] if values.get(variable) else [setting], function=function, variable=variable)


BUILTINS: Mapping[str, Builtin] = {
    builtin.name: builtin
    for builtin in (
        Builtin("FunctionTool"),
        Builtin("FileSearchTool", _needs("FILE_SEARCH_VECTOR_STORES"), _file_search),
        Builtin("WebSearchTool", _web_search_missing, _web_search),
        _implemented("ComputerTool", "computer", "COMPUTER_TOOL"),
        Builtin("HostedMCPTool", _hosted_mcp_missing, _hosted_mcp),
        _implemented("LocalShellTool", "local_shell", "LOCAL_SHELL_TOOL"),
        Builtin("ImageGenerationTool", _needs("IMAGE_GENERATION_MODEL"), _image_generation),
        Builtin("CodeInterpreterTool", _one_of("CODE_INTERPRETER_MEMORY", MEMORIES), _code_interpreter),
    )
}
HOSTED_MCP = "HostedMCPTool"
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
    "COMPUTER_TOOL",
    "LOCAL_SHELL_TOOL",
)


@dataclass(frozen=True, slots=True)
class BuiltinTools:
    """The settings of the built-in tools, read from the environment. `values` may contain a token: it has no repr."""

    enabled: frozenset[str] = frozenset({ENABLED_BY_DEFAULT})
    values: Values = field(default_factory=dict, repr=False)
    server: ModelKind | None = None
    calls_max: int = CALLS_MAX
    folder: Path | None = None  # where modules of implementations are looked for first

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

    def kind_of_server(self, base_url: str | None, api: str | None = None) -> ModelKind:
        """The kind of the server at an address. `BUILTIN_TOOLS_SERVER` overrides what the address suggests.

        Hosted tools belong to the Responses API: with the API `chat` there are none.
        """
        if api == "chat":
            return "compatible"
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
        elif missing:
            reason = f"not set up: {', '.join(missing)}"
        elif builtin.function:
            reason = NO_MODEL_REASON if kind == "echo" else self._load_error(builtin)
        else:
            reason = NO_HOSTED_TOOLS.get(kind)
        return {
            "name": name,
            "enabled": enabled,
            "available": reason is None,
            "missing": missing,
            "reason": reason or (None if enabled else "not named in BUILTIN_TOOLS_ENABLED"),
        }

    def given(self, tools: Sequence[str], approval: Collection[str], kind: ModelKind) -> list[str]:
        """Of the tools that an agent lists, those that a model of this kind gets: without built-in tools that are not.

        A hosted tool that needs approval is left out if its provider cannot ask for it: it must not run without.
        """
        return [name for name in tools if name not in BUILTINS or self._is_given(name, name in approval, kind)]

    def _is_given(self, name: str, needs_approval: bool, kind: ModelKind) -> bool:
        status, builtin = self.status_of(name, kind), builtin_named(name)
        can_ask = bool(builtin.function) or name == HOSTED_MCP
        return name != FUNCTION_TOOL and status["enabled"] and status["available"] and (can_ask or not needs_approval)

    def implementation(self, name: str, kind: ModelKind) -> ToolDefinition | None:
        """The operator's implementation of a tool; `None` if the tool is hosted, disabled or incomplete."""
        status, builtin = self.status_of(name, kind), builtin_named(name)
        return self._load(builtin) if builtin.function and status["enabled"] and status["available"] else None

    def _load_error(self, builtin: Builtin) -> str | None:
        try:
            self._load(builtin)
        except Magent2Error as error:
            return str(error)
        return None

    def _load(self, builtin: Builtin) -> ToolDefinition:
        from magent2.tools.registry import ToolSpec, load_tool

        loaded = load_tool(builtin.function, self.values[builtin.variable], self.folder)
        definition = loaded.definition() if isinstance(loaded, ToolSpec) else loaded
        return replace(definition, repeat="never")

    def build(self, name: str, kind: ModelKind) -> Tool | None:
        """The hosted tool for a model of this kind; `None` if it is disabled, incomplete or not supported."""
        status = self.status_of(name, kind)
        make = builtin_named(name).make
        return make(self.values) if make is not None and status["enabled"] and status["available"] else None


def kind_of_models(kind: ModelKind, models: Sequence[str], *, own_server: bool) -> ModelKind:
    """The kind of the models of one agent of a team: that of OpenAI's API only if all of them are there.

    A name with the prefix of another provider is not. `own_server`: the agent names a server of its own.
    """
    elsewhere = own_server or any("/" in name and not name.startswith(OPENAI_PREFIX) for name in models)
    return "compatible" if elsewhere and kind == "openai" else kind


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
