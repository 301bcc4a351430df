"""Values that describe a team: `AgentSpec`, `Scenario`, `McpServer` and the `Roster` that holds them.

The annotations of `AgentSpec` and `McpServer` are the schema of their tables in an agents file: pydantic checks them
when `agents_file.py` parses the file. Code that builds these values itself is trusted and not checked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints, with_config
from typing_extensions import TypedDict

from magent2.errors import UnknownAgent, UnknownScenario
from magent2.models.address import NAME_MAX_CHARS, is_name
from magent2.models.budgets import Budgets
from magent2.models.files import ContentKind
from magent2.models.json_types import JsonObject
from magent2.roster.faults import closest
from magent2.roster.limits import LimitValues, RetryValues
from magent2.roster.retention import RetentionValues
from magent2.roster.webhooks import WebhookSpec

DEFAULT_SCENARIO = "default"
# The keys that an agents file may set for an agent of the Agents SDK. The agent's own code has the others.
CODE_AGENT_KEYS = frozenset(
    {
        "name",
        "agent",
        "role",
        "voice",
        "handoffs",
        "keywords",
        "mcp",
        "approval",
        "accepts",
        "context_max",
        "summary_model",
    }
)

INSTRUCTIONS_MAX_BYTES = 64 << 10
KEYWORDS_MAX = 500
MODELS_MAX = 8  # of one agent
MODEL_TIMEOUT_S = 300.0  # without a word of a model, unless its agent or its provider has another time
MODEL_TIMEOUT_MAX_S = 86_400.0
GUARDRAILS_MAX = 16  # of one agent and kind
WEIGHT_MAX = 100.0

_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")  # the function names that models accept
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_IMPORT_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def _check_name(name: str) -> str:
    if not is_name(name):
        raise ValueError(
            f"{name[:80]!r} is not a valid name; use 1 to {NAME_MAX_CHARS} printable characters"
            " without leading or trailing spaces"
        )
    return name


def _check_tool_name(name: str) -> str:
    if not _TOOL_NAME.fullmatch(name):
        raise ValueError(f"{name[:80]!r} is not a valid name; use 1 to 64 letters, digits, '_' or '-'")
    return name


def is_import_path(text: str) -> bool:
    return _IMPORT_PATH.fullmatch(text) is not None


def _check_import_path(path: str) -> str:
    if not is_import_path(path):
        raise ValueError(f"{path[:80]!r} is not an import path; write 'module:attribute'")
    return path


def _check_not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty; remove the entry or name something")
    return text


def _check_instructions(text: str) -> str:
    if len(text.encode()) > INSTRUCTIONS_MAX_BYTES:
        raise ValueError(f"is over {INSTRUCTIONS_MAX_BYTES} bytes; shorten the text")
    return text


def check_url(url: str) -> str:
    """Return an address of HTTP. Raises `ValueError` with what it must be."""
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must start with http:// or https:// and contain a host")
    return url


def _check_base_url(url: str) -> str:
    """An address of a model provider. It is stored with runs, so it must not contain a secret."""
    parts = urlsplit(check_url(url))
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError("must have no user, password, query or fragment; name the variable of the key in api_key_env")
    return url.rstrip("/")


def _check_variable(name: str) -> str:
    if not _VARIABLE_NAME.fullmatch(name):
        # Not quoted: it may be the key itself.
        raise ValueError("must be the name of an environment variable, such as OPENAI_API_KEY, and not the key itself")
    return name


Name: TypeAlias = Annotated[str, AfterValidator(_check_name)]
ToolName: TypeAlias = Annotated[str, AfterValidator(_check_tool_name)]
ImportPath: TypeAlias = Annotated[str, AfterValidator(_check_import_path)]
Reference: TypeAlias = Annotated[str, AfterValidator(_check_not_blank)]  # the name of something described elsewhere
StrippedText: TypeAlias = Annotated[str, StringConstraints(strip_whitespace=True)]
Word: TypeAlias = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Weight: TypeAlias = Annotated[float, Field(strict=True, ge=-WEIGHT_MAX, le=WEIGHT_MAX)]
BaseUrl: TypeAlias = Annotated[Word, AfterValidator(_check_base_url)]
VariableName: TypeAlias = Annotated[Word, AfterValidator(_check_variable)]
ModelTimeout: TypeAlias = Annotated[float, Field(ge=0.1, le=MODEL_TIMEOUT_MAX_S)]
ContextMax: TypeAlias = Annotated[int, Field(strict=True, ge=1_000, le=100_000_000)]  # tokens
Api: TypeAlias = Literal["responses", "chat"]  # the two APIs of OpenAI, which other servers have too


@with_config(ConfigDict(strict=True, extra="forbid"))
class ModelSettingsValues(TypedDict, total=False):
    """`model_settings` of an agent. A setting that is absent is not sent, so the provider's default applies."""

    temperature: Annotated[float, Field(ge=0, le=2)]
    top_p: Annotated[float, Field(ge=0, le=1)]
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)]
    presence_penalty: Annotated[float, Field(ge=-2, le=2)]
    max_tokens: Annotated[int, Field(ge=1, le=10_000_000)]  # of one answer
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"]
    verbosity: Literal["low", "medium", "high"]
    parallel_tool_calls: bool
    truncation: Literal["auto", "disabled"]
    include_usage: bool  # whether to ask a server with the chat API for its token counts
    extra_body: JsonObject  # more fields of the request, which the provider defines


@with_config(ConfigDict(strict=True, extra="forbid"))
class ContextValues(TypedDict, total=False):
    """`[context]`: how long the requests to models get. What is absent here and at an agent follows the model."""

    context_max: ContextMax  # tokens of a request above which its oldest part is summarised
    summary_model: Word  # makes the summaries; by default the agent's own model does


CONTEXT_NAMES = tuple(ContextValues.__annotations__)
MODEL_SETTING_NAMES = tuple(ModelSettingsValues.__annotations__)


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """One agent. Its name is also its mailbox; `tools`, `handoffs`, `mcp` and `subagents` are lists of names.

    - `instructions_file`: the file that `instructions` were read from, as the agents file names it.
    - `keywords`: words and phrases that route mail to this agent, each with its weight.
    - `approval`: tools that need a person's approval, in addition to those that always need it.
    - `subagents`: agents that this one may start for its own tasks.
    - `models`: models in order. The next one is asked if one is down or refuses. `model` is a list of one.
    - `base_url`, `api_key_env`, `api`: the provider of its models, if it is not the default one or one of `[provider]`.
    - `model_timeout_s`: how long a model may send nothing until it counts as down.
    - `input_guardrails`, `output_guardrails`: import paths of guardrails of the SDK.
    - `accepts`: the content that its model takes. By default text, images and files, or only text of a local model.
    - `context_max`: tokens of a request above which its oldest part is summarised, by `summary_model` or its own model.
    - `agent`: import path of an agent of the Agents SDK, or of a list that has it. Its code defines what it does, so
      of the other keys only `CODE_AGENT_KEYS` may be set.
    - `output_schema`: the JSON schema that its answers match. The file may name a JSON file, or the import path of a
      pydantic model, in its place.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    name: Name
    role: StrippedText = ""
    instructions: Annotated[StrippedText, AfterValidator(_check_instructions)] = ""
    instructions_file: Word | None = field(default=None, compare=False, kw_only=True)
    model: Word | None = None
    models: Annotated[tuple[Word, ...], Field(max_length=MODELS_MAX)] = field(default=(), kw_only=True)
    model_settings: ModelSettingsValues = field(default_factory=ModelSettingsValues, kw_only=True)
    base_url: BaseUrl | None = field(default=None, kw_only=True)
    api_key_env: VariableName | None = field(default=None, kw_only=True)
    api: Api | None = field(default=None, kw_only=True)
    model_timeout_s: ModelTimeout | None = field(default=None, kw_only=True)
    input_guardrails: Annotated[tuple[ImportPath, ...], Field(max_length=GUARDRAILS_MAX)] = field(
        default=(), kw_only=True
    )
    output_guardrails: Annotated[tuple[ImportPath, ...], Field(max_length=GUARDRAILS_MAX)] = field(
        default=(), kw_only=True
    )
    voice: Word | None = None
    tools: tuple[Reference, ...] = ()
    handoffs: tuple[Reference, ...] = ()
    keywords: Annotated[Mapping[str, Weight], Field(max_length=KEYWORDS_MAX)] = field(default_factory=dict)
    mcp: tuple[Reference, ...] = ()
    approval: tuple[Reference, ...] = ()
    subagents: tuple[Reference, ...] = ()
    accepts: tuple[ContentKind, ...] | None = None
    context_max: ContextMax | None = field(default=None, kw_only=True)
    summary_model: Word | None = field(default=None, kw_only=True)
    agent: ImportPath | None = None
    output_schema: JsonObject | Word | None = None

    @property
    def model_names(self) -> tuple[str, ...]:
        """The names of its models in order; empty for the default model."""
        return self.models or (() if self.model is None else (self.model,))


@dataclass(frozen=True, slots=True)
class Provider:
    """`[provider.NAME]`: a model provider. Models of it are named `NAME/MODEL`; `openai` is the default provider."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    # In the file the name is the key of the table; the parser passes it under this alias.
    name: Annotated[str, Field(validation_alias="provider.NAME")]
    base_url: BaseUrl | None = None
    api_key_env: VariableName | None = None
    api: Api | None = None
    timeout_s: ModelTimeout | None = None


@dataclass(frozen=True, slots=True)
class Scenario:
    """A team of agents. A new session starts with `root`; `supervisor` only routes and never answers."""

    id: str
    agents: Mapping[str, AgentSpec]
    root: str
    supervisor: str | None = None
    title: str = ""

    def agent(self, name: str) -> AgentSpec:
        """Return the agent of that name, or raise `UnknownAgent` with the names that exist."""
        if name not in self.agents:
            raise UnknownAgent(f"scenario {self.id!r} has no agent {name[:80]!r}; {_known(name, self.agents)}")
        return self.agents[name]

    @property
    def route_targets(self) -> Mapping[str, AgentSpec]:
        """The agents that mail can be routed to: all except the supervisor."""
        return {name: agent for name, agent in self.agents.items() if name != self.supervisor}


@dataclass(frozen=True, slots=True)
class McpServer:
    """An MCP server: a program to start (`command`, `env`) or an address (`url`, `headers`).

    `tools` lists the tools that agents may use; None allows all. `env` and `headers` may hold secrets and are not part
    of the repr.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    # In the file the name is the key of the table, `[mcp.NAME]`; the parser passes it under this alias.
    name: Annotated[str, Field(validation_alias="mcp.NAME")]
    command: tuple[str, ...] = ()
    url: Annotated[Word, AfterValidator(check_url)] | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    tools: tuple[Reference, ...] | None = None


@dataclass(frozen=True, slots=True)
class Roster:
    """All scenarios, the import paths of their tools (`module:attribute`), MCP servers, providers, limits, policies."""

    scenarios: Mapping[str, Scenario]
    tools: Mapping[str, str] = field(default_factory=dict)
    mcp: Mapping[str, McpServer] = field(default_factory=dict)
    limits: LimitValues = field(default_factory=LimitValues)
    default: str = DEFAULT_SCENARIO
    retention: RetentionValues = field(default_factory=RetentionValues)
    retry: RetryValues = field(default_factory=RetryValues)
    providers: Mapping[str, Provider] = field(default_factory=dict)
    budgets: Budgets = field(default_factory=Budgets)
    webhooks: Mapping[str, WebhookSpec] = field(default_factory=dict)
    context: ContextValues = field(default_factory=ContextValues)

    @classmethod
    def of_environment(
        cls,
        name: str,
        *,
        model: str | None = None,
        instructions: str | None = None,
        tools: Sequence[str] = (),
        limits: LimitValues | None = None,
        retention: RetentionValues | None = None,
        retry: RetryValues | None = None,
    ) -> Roster:
        """Build a team of one agent from the values of AGENT_NAME and the other AGENT_ variables."""
        agent = AgentSpec(name, instructions=instructions or "", model=model, tools=tuple(tools))
        scenario = Scenario(DEFAULT_SCENARIO, {name: agent}, root=name)
        return cls(
            {DEFAULT_SCENARIO: scenario},
            limits=limits or LimitValues(),
            retention=retention or RetentionValues(),
            retry=retry or RetryValues(),
        )

    @classmethod
    def of_code(cls, agents: Sequence[AgentSpec]) -> Roster:
        """Build a team of agents of the Agents SDK. Its sessions start with the first one."""
        names = {agent.name for agent in agents}
        served = {
            agent.name: replace(agent, handoffs=tuple(name for name in agent.handoffs if name in names))
            for agent in agents
        }
        return cls({DEFAULT_SCENARIO: Scenario(DEFAULT_SCENARIO, served, root=agents[0].name)})

    def scenario(self, scenario_id: str | None = None) -> Scenario:
        """Return the scenario of that id, the default one for None, or raise `UnknownScenario`."""
        chosen = self.default if scenario_id is None else scenario_id
        if chosen not in self.scenarios:
            raise UnknownScenario(f"unknown scenario {chosen[:80]!r}; {_known(chosen, self.scenarios)}")
        return self.scenarios[chosen]

    def agent(self, scenario_id: str | None, name: str) -> AgentSpec:
        return self.scenario(scenario_id).agent(name)

    def agent_names(self) -> tuple[str, ...]:
        """The names of all agents, each once, in the order of the scenarios."""
        return tuple(dict.fromkeys(name for scenario in self.scenarios.values() for name in scenario.agents))

    def routing_agents(self) -> frozenset[str]:
        """The agents that are the supervisor of a scenario and answer in none."""
        scenarios = self.scenarios.values()
        answering = {name for scenario in scenarios for name in scenario.route_targets}
        return frozenset(scenario.supervisor for scenario in scenarios if scenario.supervisor) - answering

    def with_agent(self, agent: AgentSpec) -> Roster:
        """Return a copy in which this agent replaces the one of the same name in every scenario that has it."""
        changed = {
            key: replace(scenario, agents={**scenario.agents, agent.name: agent})
            for key, scenario in self.scenarios.items()
            if agent.name in scenario.agents
        }
        return replace(self, scenarios={**self.scenarios, **changed})


def _known(wanted: str, known: Mapping[str, object]) -> str:
    names = ", ".join(repr(name) for name in known) or "none"
    near = closest(wanted, known.keys())
    return f"known: {names}" + (f" (did you mean {near!r}?)" if near else "")
