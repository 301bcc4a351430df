"""Parsing of an agents file (`magent2.toml`) into a `Roster`, and the default team.

pydantic checks each key by itself against the schema: `AgentsFile` here, `AgentSpec` and `McpServer` in `spec.py`. Then
`_RosterBuilder` checks what must hold between keys, such as the target of a handoff. One attempt reports every fault,
each with the path of its key: `scenario.desk.agent.ann.handoffs: …`.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Annotated, TypeAlias

import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticUserError
from pydantic_core import ErrorDetails

from magent2.errors import RosterError, SettingsError
from magent2.import_path import import_attribute
from magent2.models.budgets import KINDS
from magent2.models.json_types import JsonObject
from magent2.models.output_schema import SCHEMA_MAX_BYTES, check_output_schema
from magent2.roster.budgets import (
    BUDGET_NAMES,
    LIMIT_UNITS,
    PRICE_NAMES,
    PRICES_MAX,
    BudgetValues,
    PriceTable,
    budgets_of,
)
from magent2.roster.faults import UNKNOWN_KEY, explain, suggestion
from magent2.roster.limits import (
    LIMIT_NAMES,
    RETRY_NAMES,
    LimitValues,
    RetryValues,
    delivery_retry_policy,
    run_retry_policy,
)
from magent2.roster.retention import RETENTION_NAMES, RetentionValues
from magent2.roster.routing import split_words
from magent2.roster.spec import (
    CODE_AGENT_KEYS,
    CONTEXT_NAMES,
    DEFAULT_SCENARIO,
    INSTRUCTIONS_MAX_BYTES,
    MODEL_SETTING_NAMES,
    AgentSpec,
    ContextValues,
    ImportPath,
    McpServer,
    Name,
    Provider,
    Reference,
    Roster,
    Scenario,
    ToolName,
    Word,
    is_import_path,
)
from magent2.roster.webhooks import WebhookSpec, webhook_fault

FILE_MAX_BYTES = 1 << 20
SCENARIO_MAX_BYTES = 512 << 10  # of instructions; the record of a run holds those of its whole team

DEFAULT_FILE = Path(__file__).with_name("default.toml")
# The tools that the default team uses. They come with `magent2.tools`, which this package may not import.
DEFAULT_TOOLS = ("WebSearchTool", "chat_send", "echo_context", "product_search", "refund", "run_python", "weather")

# Tables of single values, and their keys
VALUE_NAMES = {
    "budgets": BUDGET_NAMES,
    "context": CONTEXT_NAMES,
    "limits": LIMIT_NAMES,
    "retention": RETENTION_NAMES,
    "retry": RETRY_NAMES,
}

Document: TypeAlias = dict[str, object]
# Describes the SDK agents at an import path, whose modules are in a folder. Raises `SettingsError`.
DescribeAgents: TypeAlias = Callable[[str, Path], Sequence[AgentSpec]]

_VARIABLE = re.compile(r"\$\{([^}]*)\}")
_BARE_KEY = re.compile(r"[A-Za-z0-9_#-]+")


@dataclass(frozen=True, slots=True)
class LoadedRoster:
    """A roster and the files that it was read from."""

    roster: Roster
    files: tuple[Path, ...] = ()


@cache
def default_roster() -> Roster:
    """The team that is used without an agents file: supervisor, general, sales and support."""
    return load_agents_file(DEFAULT_FILE, DEFAULT_TOOLS).roster


def load_agents_file(
    path: Path,
    known_tools: Collection[str],
    environ: Mapping[str, str] | None = None,
    describe_agents: DescribeAgents | None = None,
) -> LoadedRoster:
    """Read an agents file, or raise `RosterError` with all its faults.

    `known_tools` are the names of tools that need no entry in `[tools]`. `environ` replaces `${NAME}` in the `env` and
    `headers` of MCP servers. Without `describe_agents` no module of the operator is imported: an SDK agent without a
    name is called like its attribute, and what its code says is not checked.
    """
    try:
        document = tomllib.loads(_read_text(path, FILE_MAX_BYTES))
    except ValueError as error:  # not readable, not UTF-8 or not TOML
        raise RosterError(str(path), [str(error)]) from error
    except RecursionError as error:
        raise RosterError(str(path), ["is nested too deeply"]) from error
    code = _Code(path.parent, describe_agents)
    code.name_agents(document)
    file, faults = _parse(document)
    builder = _RosterBuilder(path.parent, known_tools, dict(environ or {}), faults, code)
    roster = builder.build(file)
    if faults:
        raise RosterError(str(path), list(dict.fromkeys(faults)))
    return LoadedRoster(roster, (path, *builder.files))


class _Code:
    """What an agents file refers to in modules of the operator: SDK agents and pydantic models."""

    def __init__(self, folder: Path, describe_agents: DescribeAgents | None) -> None:
        self._folder = folder
        self._describe_agents = describe_agents

    @property
    def is_imported(self) -> bool:
        return self._describe_agents is not None

    def name_agents(self, document: Document) -> None:
        """Give each SDK agent that has no name in the file the one of its code. What cannot be loaded stays as it is.

        The builder reports the error, and pydantic a table that is not valid.
        """
        for scenario in _tables(document.get("scenario")):
            for table in _tables(scenario.get("agent")):
                path = table.get("agent")
                if "name" not in table and isinstance(path, str) and is_import_path(path):
                    table["name"] = self._default_name(path)

    def _default_name(self, path: str) -> str:
        try:
            name = _only(self.agents(path))
        except SettingsError:
            name = None
        return name or path.rpartition(":")[2]

    def agents(self, path: str) -> Mapping[str, AgentSpec]:
        """The agents at an import path, by name; none if modules are not imported. Raises `SettingsError`."""
        described = () if self._describe_agents is None else self._describe_agents(path, self._folder)
        return {agent.name: agent for agent in described}

    def output_schema(self, path: str) -> JsonObject:
        """The JSON schema of a pydantic model. Raises `SettingsError`."""
        model = import_attribute(path, self._folder)
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            raise SettingsError(f"{path!r} is a {type(model).__name__}; name a pydantic model")
        try:
            return model.model_json_schema()
        except (PydanticUserError, PydanticInvalidForJsonSchema) as error:
            raise SettingsError(f"{path!r} has no JSON schema ({error})") from error


def _parse_schema(text: str, name: str) -> JsonObject:
    try:
        schema = orjson.loads(text)
    except ValueError as error:
        raise ValueError(f"{name} is not JSON: {error}") from error
    if not isinstance(schema, dict):
        raise ValueError(f"{name} must hold a JSON object, not {type(schema).__name__}")
    return schema


def _tables(value: object) -> list[Document]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _read_text(path: Path, limit: int) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise ValueError(f"{path.name} cannot be read: {error.strerror}") from error
    if len(data) > limit:
        raise ValueError(f"{path.name} is over {limit} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path.name} is not UTF-8 text") from error


# ---- the schema ------------------------------------------------------------------------------------------------------


def _pass_names(alias: str) -> BeforeValidator:
    """Give each table its name, which the file has as the key of the table."""

    def add_names(tables: object) -> object:
        if not isinstance(tables, dict):
            return tables
        return {name: {**table, alias: name} if isinstance(table, dict) else table for name, table in tables.items()}

    return BeforeValidator(add_names)


class ScenarioTable(BaseModel):
    """`[[scenario]]`. `shared` names agents that another scenario describes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: Name
    title: str = ""
    root: Word | None = None
    supervisor: Word | None = None
    shared: tuple[Reference, ...] = ()
    agent: tuple[AgentSpec, ...] = ()


class AgentsFile(BaseModel):
    """The whole file, each key valid by itself."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    default: Word | None = None
    budgets: BudgetValues = BudgetValues()
    prices: dict[Word, PriceTable] = {}
    limits: LimitValues = LimitValues()
    retention: RetentionValues = RetentionValues()
    retry: RetryValues = RetryValues()
    context: ContextValues = ContextValues()
    tools: dict[ToolName, ImportPath] = {}
    mcp: Annotated[dict[ToolName, McpServer], _pass_names("mcp.NAME")] = {}
    provider: Annotated[dict[ToolName, Provider], _pass_names("provider.NAME")] = {}
    webhook: Annotated[dict[ToolName, WebhookSpec], _pass_names("webhook.NAME")] = {}
    scenario: tuple[ScenarioTable, ...] = ()


def _parse(document: Document) -> tuple[AgentsFile, list[str]]:
    """Parse what is valid, and describe what is not.

    References between keys are checked even if other keys are invalid, so that one attempt names all faults. For that
    the invalid keys are left out and the rest is parsed again.
    """
    try:
        return AgentsFile.model_validate(document), []
    except ValidationError as error:
        errors = error.errors()
    return AgentsFile.model_validate(_without(document, errors)), [_fault(document, error) for error in errors]


def _without(document: Document, errors: Sequence[ErrorDetails]) -> Document:
    """Copy the document without the keys of these errors. A table that has no valid name is named by its number."""
    copy = deepcopy(document)
    for error in reversed(errors):  # from the end, so that the indexes of earlier items stay valid
        *parents, key = _location(error)
        table: object = copy
        for step in parents:
            table = table[step]  # type: ignore[index]  # pydantic has walked the same path
        if isinstance(table, list):
            del table[int(key)]
        elif isinstance(table, dict):
            table.pop(key, None)
            # Only scenarios and agents are items of an array, and both need a name.
            if parents and isinstance(parents[-1], int) and error["type"] not in UNKNOWN_KEY and key in ("id", "name"):
                table[key] = f"#{parents[-1] + 1}"
    return copy


def _location(error: ErrorDetails) -> tuple[int | str, ...]:
    """Return the path of the key. pydantic appends `[key]` if the name of a tool or server itself is invalid."""
    location = error["loc"]
    is_bad_name = len(location) == 3 and location[2] == "[key]" and error["type"] not in UNKNOWN_KEY
    return location[:2] if is_bad_name else location


def _fault(document: Document, error: ErrorDetails) -> str:
    *table, key = location = _location(error)
    if error["type"] in UNKNOWN_KEY:
        return _at(_path(document, table), f"unknown key {str(key)[:60]!r}; {suggestion(str(key), _known_keys(table))}")
    words = explain(error)
    if location[0] == "mcp" and ("env" in location[2:3] or "headers" in location[2:3]):
        words = words.partition(", not ")[0]  # the value may be a secret
    if location[-1] in ("base_url", "api_key_env") or location[0] == "webhook":
        words = words.partition(", not '")[0]  # likewise
    return _at(_path(document, location), words)


def _known_keys(location: Sequence[int | str]) -> Collection[str]:  # noqa: PLR0911  one per table of the file
    match location:
        case []:
            return AgentsFile.model_fields
        case [str(table)] if table in VALUE_NAMES:
            return VALUE_NAMES[table]
        case ["budgets" | "prices" as table, _]:
            return LIMIT_UNITS if table == "budgets" else PRICE_NAMES
        case ["mcp" | "provider" | "webhook" as kind, _]:
            described = {"mcp": McpServer, "provider": Provider, "webhook": WebhookSpec}[kind]
            return [item.name for item in fields(described) if item.name != "name"]
        case ["scenario", _]:
            return ScenarioTable.model_fields
        case [*_, "model_settings"]:
            return MODEL_SETTING_NAMES
        case _:
            return [item.name for item in fields(AgentSpec)]


# ---- paths of keys ---------------------------------------------------------------------------------------------------


def _path(document: Document, location: Iterable[int | str]) -> str:
    """Return the path of a key as a person reads it: items of an array by their name, else by their number."""
    steps: list[str] = []
    value: object = document
    for step in location:
        if isinstance(step, int):
            value = value[step] if isinstance(value, list) else None
            steps.append(_name_of(value) or f"#{step + 1}")
        else:
            value = value.get(step) if isinstance(value, dict) else None
            steps.append(step)
    return _join(*steps)


def _name_of(table: object) -> str | None:
    name = table.get("id", table.get("name")) if isinstance(table, dict) else None
    return name if isinstance(name, str) and name.strip() else None


def _join(*steps: str) -> str:
    return ".".join(step if _BARE_KEY.fullmatch(step) else f'"{step[:80]}"' for step in steps)


def _at(path: str, words: str) -> str:
    return f"{path}: {words}" if path else words


# ---- what must hold between keys -------------------------------------------------------------------------------------


@dataclass(slots=True)
class _RosterBuilder:
    """Builds a roster from a parsed file, and collects the faults between its keys."""

    folder: Path
    known_tools: Collection[str]
    environ: Mapping[str, str]
    faults: list[str]
    code: _Code
    files: list[Path] = field(default_factory=list)

    def build(self, file: AgentsFile) -> Roster:
        described = self._describe_agents(file)
        scenarios: dict[str, Scenario] = {}
        for table in file.scenario:
            if table.id in scenarios:
                self._report(("scenario", table.id), "is described twice; remove or rename one of them")
            scenarios[table.id] = self._scenario(table, described)
        default = file.default or _only(scenarios) or DEFAULT_SCENARIO
        servers = {name: self._server(server) for name, server in file.mcp.items()}
        roster = Roster(
            scenarios,
            file.tools,
            servers,
            file.limits,
            default,
            file.retention,
            file.retry,
            file.provider,
            budgets_of(file.budgets, file.prices),
            file.webhook,
            file.context,
        )
        self._check_budgets(file)
        self._check_prices(file)
        for webhook in file.webhook.values():
            if (fault := webhook_fault(webhook)) is not None:
                self._report(("webhook", webhook.name), fault)
        for policy in (run_retry_policy, delivery_retry_policy):
            try:
                policy(file.retry)
            except SettingsError as error:
                self._report(("retry",), str(error))
        self._check_roster(roster)
        return roster

    def _check_budgets(self, file: AgentsFile) -> None:
        for kind in KINDS:
            # A table whose units are all invalid is empty too. Its faults are reported already.
            if file.budgets.get(kind) == {} and not any(fault.startswith(f"budgets.{kind}") for fault in self.faults):
                self._report(("budgets", kind), f"must have {' or '.join(LIMIT_UNITS)}; without one there is no limit")

    def _check_prices(self, file: AgentsFile) -> None:
        if len(file.prices) > PRICES_MAX:
            self._report(("prices",), f"has {len(file.prices)} models; the limit is {PRICES_MAX}")
        for model, table in file.prices.items():
            for key in ("input", "output"):
                if key not in table:
                    self._report(("prices", model), f"needs {key!r}, in US dollars per million tokens")

    def _report(self, path: Sequence[str], words: str) -> None:
        self.faults.append(f"{_join(*path)}: {words}")

    def _describe_agents(self, file: AgentsFile) -> dict[str, AgentSpec]:
        """All agents by name. A name is one mailbox, so two descriptions of it must be equal."""
        described: dict[str, AgentSpec] = {}
        for scenario in file.scenario:
            for table in scenario.agent:
                path = _agent_path(scenario.id, table.name)
                agent = replace(
                    table,
                    instructions=self._instructions(path, table),
                    output_schema=self._output_schema(path, table.output_schema),
                )
                if agent.agent is not None:
                    agent = self._add_code(path, agent, agent.agent, scenario)
                if described.setdefault(agent.name, agent) != agent:
                    self._report(path, "another scenario describes this agent differently; rename one of them")
        return described

    def _instructions(self, path: Sequence[str], agent: AgentSpec) -> str:
        if agent.instructions_file is None:
            return agent.instructions
        if agent.instructions:
            self._report(path, "has both 'instructions' and 'instructions_file'; keep one of them")
            return agent.instructions
        file = self.folder / Path(agent.instructions_file).expanduser()
        self.files.append(file)
        try:
            return _read_text(file, INSTRUCTIONS_MAX_BYTES).strip()
        except ValueError as error:
            self._report([*path, "instructions_file"], str(error))
            return ""

    def _output_schema(self, path: Sequence[str], schema: JsonObject | str | None) -> JsonObject | str | None:
        """Return the JSON schema that a table has, or that a file or a pydantic model has which it names."""
        if schema is None:
            return None
        try:
            if isinstance(schema, str) and is_import_path(schema):
                if not self.code.is_imported:
                    return schema
                schema = self.code.output_schema(schema)
            elif isinstance(schema, str):
                file = self.folder / Path(schema).expanduser()
                self.files.append(file)
                schema = _parse_schema(_read_text(file, SCHEMA_MAX_BYTES), file.name)
            check_output_schema(schema)
        except ValueError as error:
            self._report((*path, "output_schema"), str(error))
            return None
        return schema

    def _add_code(self, path: Sequence[str], agent: AgentSpec, import_path: str, scenario: ScenarioTable) -> AgentSpec:
        """Add what the code of an SDK agent says: its role, model and tools, and its handoffs within the scenario."""
        for key in (item.name for item in fields(AgentSpec) if item.name not in CODE_AGENT_KEYS):
            if getattr(agent, key) != getattr(_NO_AGENT, key):
                self._report((*path, key), f"belongs to the code of {import_path!r}; set it there")
        try:
            described = self.code.agents(import_path)
        except SettingsError as error:
            self._report((*path, "agent"), str(error))
            return agent
        found = described.get(agent.name)
        if found is None:
            if self.code.is_imported:
                words = f"{import_path!r} has no agent {agent.name!r}; {suggestion(agent.name, described)}"
                self._report((*path, "agent"), words)
            return agent
        others = {table.name for table in scenario.agent} | set(scenario.shared)
        own = [name for name in found.handoffs if name in others and name != scenario.supervisor]
        return replace(
            agent,
            role=agent.role or found.role,
            model=found.model,
            tools=found.tools,
            handoffs=tuple(dict.fromkeys((*own, *agent.handoffs))),
        )

    def _scenario(self, table: ScenarioTable, described: Mapping[str, AgentSpec]) -> Scenario:
        path = ("scenario", table.id)
        agents: dict[str, AgentSpec] = {}
        for agent in table.agent:
            if agent.name in agents:
                self._report(_agent_path(table.id, agent.name), "is described twice; remove or rename one of them")
            agents[agent.name] = described[agent.name]
        for name in table.shared:
            if name not in described:
                self._report((*path, "shared"), f"no scenario describes agent {name!r}; {suggestion(name, described)}")
            elif name in agents:
                self._report((*path, "shared"), f"agent {name!r} is already part of the scenario; remove it here")
            else:
                agents[name] = described[name]
        root = table.root or _only(agents)
        if root is None:
            self._report((*path, "root"), "is missing; name the agent that a new session starts with")
        return Scenario(table.id, agents, root or "", table.supervisor, table.title)

    def _server(self, server: McpServer) -> McpServer:
        path = ("mcp", server.name)
        if bool(server.command) == bool(server.url):
            self._report(path, "needs either 'command' or 'url'")
        if len(set(server.tools or ())) < len(server.tools or ()):
            self._report((*path, "tools"), "lists a tool twice")
        if server.env and not server.command:
            self._report((*path, "env"), "belongs to 'command'; use 'headers' with 'url'")
        if server.headers and server.url is None:
            self._report((*path, "headers"), "belongs to 'url'; use 'env' with 'command'")
        return replace(
            server,
            env=self._fill_in((*path, "env"), server.env),
            headers=self._fill_in((*path, "headers"), server.headers),
        )

    def _fill_in(self, path: Sequence[str], texts: Mapping[str, str]) -> dict[str, str]:
        """Replace `${NAME}` by variables of the environment, so that the file needs to hold no secret."""
        filled: dict[str, str] = {}
        for name, text in texts.items():
            for variable in _VARIABLE.findall(text):
                if variable not in self.environ:
                    self._report((*path, name), f"needs the environment variable {variable!r}, which is not set")
            filled[name] = _VARIABLE.sub(lambda match: self.environ.get(match[1], ""), text)
        return filled

    def _check_roster(self, roster: Roster) -> None:
        for name in roster.tools:
            if name in self.known_tools:
                self._report(("tools", name), "is the name of a tool that comes with magent2; choose another name")
        if not roster.scenarios:
            self.faults.append("scenario: is missing; add a [[scenario]] table")
        elif roster.default not in roster.scenarios:
            hint = suggestion(roster.default, roster.scenarios)
            self.faults.append(f"default: there is no scenario {roster.default!r}; {hint}")
        for scenario in roster.scenarios.values():
            self._check_scenario(scenario)
            for agent in scenario.agents.values():
                for key, words in self._agent_faults(roster, scenario, agent):
                    self._report((*_agent_path(scenario.id, agent.name), key), words)

    def _check_scenario(self, scenario: Scenario) -> None:
        path = ("scenario", scenario.id)
        if not scenario.agents:
            self._report(path, "has no agent; add a [[scenario.agent]] table")
        for key, name in (("root", scenario.root), ("supervisor", scenario.supervisor)):
            if name and name not in scenario.agents:
                self._report((*path, key), f"the scenario has no agent {name!r}; {suggestion(name, scenario.agents)}")
        if scenario.root and scenario.root == scenario.supervisor:
            words = f"{scenario.root!r} is the supervisor, which only routes; name an agent that answers"
            self._report((*path, "root"), words)
        if sum(len(agent.instructions.encode()) for agent in scenario.agents.values()) > SCENARIO_MAX_BYTES:
            words = f"the instructions of all agents together are over {SCENARIO_MAX_BYTES} bytes; shorten them"
            self._report(path, words)

    def _agent_faults(self, roster: Roster, scenario: Scenario, agent: AgentSpec) -> Iterator[tuple[str, str]]:
        # What other agents are named for, and the agents that only route and cannot be named there.
        targets = {"handoffs": {scenario.supervisor}, "subagents": roster.routing_agents()}
        tools = [*self.known_tools, *roster.tools, *(name for name in agent.tools if _is_server_tool(roster, name))]
        own_tools = [*agent.tools, *(name for name in agent.approval if name.partition(".")[0] in agent.mcp)]
        known_code = agent.agent is None or self.code.is_imported
        references: tuple[tuple[str, Collection[str], str], ...] = (
            ("tools", tools if agent.agent is None else agent.tools, "unknown tool"),
            ("handoffs", scenario.agents, "the scenario has no agent"),
            ("mcp", roster.mcp, "there is no MCP server"),
            ("approval", own_tools if known_code else agent.approval, "the agent has no tool"),
            ("subagents", roster.agent_names(), "there is no agent"),
        )
        for key, known, problem in references:
            names: tuple[str, ...] = getattr(agent, key)
            yield from _repeated(key, names)
            for name in dict.fromkeys(names):
                if name not in known:
                    yield key, f"{problem} {name[:60]!r}; {suggestion(name, known)}"
                elif key in targets and name == agent.name:
                    yield key, f"{name!r} is the agent itself; name another agent"
                elif name in targets.get(key, ()):
                    yield key, f"{name!r} is the supervisor, which only routes; name an agent that answers"
        yield from _model_faults(agent)
        for keyword in agent.keywords:
            if not split_words(keyword):
                yield "keywords", f"{keyword[:60]!r} contains no word"


_NO_AGENT = AgentSpec("")


def _repeated(key: str, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    for name, count in Counter(names).items():
        if count > 1:
            yield key, f"lists {name[:60]!r} twice"


def _model_faults(agent: AgentSpec) -> Iterator[tuple[str, str]]:
    if agent.model is not None and agent.models:
        yield "models", "excludes 'model'; keep one of them"
    yield from _repeated("models", agent.models)
    prefixes = {name.partition("/")[0] if "/" in name else "" for name in agent.model_names}
    if agent.base_url is not None and len(prefixes) > 1:
        yield "base_url", "is one address for models of several providers; describe each in [provider.NAME]"


def _is_server_tool(roster: Roster, name: str) -> bool:
    """Whether the name is `server.tool` and that server offers the tool."""
    server_name, _, tool = name.partition(".")
    server = roster.mcp.get(server_name)
    return server is not None and bool(tool) and (server.tools is None or tool in server.tools)


def _agent_path(scenario_id: str, agent: str) -> tuple[str, ...]:
    return ("scenario", scenario_id, "agent", agent)


def _only(names: Mapping[str, object]) -> str | None:
    return next(iter(names)) if len(names) == 1 else None
