"""A file of agents, `magent2.toml`, becomes a roster. Every fault is named at once, with its place in the file."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from magent2.errors import RosterError
from magent2.roster.checks import INSTRUCTIONS_MAX_BYTES, faults_of
from magent2.roster.limits import read_limits
from magent2.roster.servers import read_server
from magent2.roster.spec import DEFAULT_SCENARIO, AgentSpec, Roster, Scenario
from magent2.roster.table import Table

FILE_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Loaded:
    """A roster and the files that it was read from."""

    roster: Roster
    files: tuple[Path, ...] = ()


def load(path: Path, known_tools: Collection[str], environ: Mapping[str, str] | None = None) -> Loaded:
    """Read a file of agents, or raise `RosterError` with all its faults.

    `known_tools` are the names of tools that need no line in `[tools]`. `environ` fills in `${NAME}` in the `env` and
    `headers` of MCP servers.
    """
    try:
        text = _read(path, FILE_MAX_BYTES)
        document = tomllib.loads(text)
    except ValueError as error:  # a bad byte, a bad line, or our own words
        raise RosterError(str(path), [str(error)]) from error
    except RecursionError as error:
        raise RosterError(str(path), ["is nested too deeply"]) from error
    reading = _Reading(path.parent, dict(environ or {}))
    roster = reading.roster(Table(document, "", reading.faults))
    faults = reading.faults + faults_of(roster, known_tools)
    if faults:
        raise RosterError(str(path), list(dict.fromkeys(faults)))
    return Loaded(roster, (path, *reading.files))


def _read(path: Path, limit: int) -> str:
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


@dataclass(slots=True)
class _Reading:
    """What is known so far: the faults, the files that were read, the agents by name."""

    folder: Path
    environ: Mapping[str, str]
    faults: list[str] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    agents: dict[str, AgentSpec] = field(default_factory=dict)

    def roster(self, table: Table) -> Roster:
        limits = read_limits(table.table("limits"))
        tools = table.strings("tools")
        servers = {name: read_server(inner, name, self.environ) for name, inner in table.named("mcp")}
        drafts = [self._draft(inner) for inner in table.tables("scenario")]
        scenarios: dict[str, Scenario] = {}
        for draft in drafts:
            if draft.id in scenarios:
                table.fault(f"scenario {draft.id!r}", "is there twice")
            scenarios[draft.id] = self._scenario(draft)
        default = table.word("default") or _only(scenarios) or DEFAULT_SCENARIO
        table.close()
        return Roster(scenarios, tools, servers, limits, default)

    def _draft(self, table: Table) -> _Draft:
        """A scenario whose shared agents may be described further down."""
        scenario_id = table.required("id") or ""
        table.place = f"scenario {scenario_id!r}" if scenario_id else table.place
        draft = _Draft(table, scenario_id, title=table.text("title"), shared=table.words("shared"))
        draft.root, draft.supervisor = table.word("root"), table.word("supervisor")
        for inner in table.tables("agent"):
            agent = self._agent(inner)
            if agent.name in draft.agents:
                table.fault(f"agent {agent.name!r}", "is there twice")
            draft.agents[agent.name] = agent
        table.close()
        return draft

    def _agent(self, table: Table) -> AgentSpec:
        name = table.required("name") or ""
        table.place = table.place.rpartition(", ")[0] + f", agent {name!r}" if name else table.place
        agent = AgentSpec(
            name,
            role=table.text("role").strip(),
            instructions=self._instructions(table),
            model=table.word("model"),
            voice=table.word("voice"),
            tools=table.words("tools"),
            handoffs=table.words("handoffs"),
            keywords=table.numbers("keywords"),
            mcp=table.words("mcp"),
            approval=table.words("approval"),
            subagents=table.words("subagents"),
        )
        table.close()
        known = self.agents.setdefault(name, agent)
        if name and known != agent:
            table.fault(
                "", "another agent of that name is described elsewhere; a name is one mailbox: rename one of them"
            )
            return agent
        return known

    def _instructions(self, table: Table) -> str:
        text, file = table.text("instructions").strip(), table.word("instructions_file")
        if file is None:
            return text
        if "instructions" in table:
            table.fault("", "has both 'instructions' and 'instructions_file'; keep one of them")
            return text
        path = self.folder / Path(file).expanduser()
        self.files.append(path)
        try:
            return _read(path, INSTRUCTIONS_MAX_BYTES).strip()
        except ValueError as error:
            table.fault("instructions_file", str(error))
            return ""

    def _scenario(self, draft: _Draft) -> Scenario:
        agents = dict(draft.agents)
        for name in draft.shared:
            if name not in self.agents:
                draft.table.fault("shared", f"no scenario describes an agent {name!r}")
            elif name in agents:
                draft.table.fault("shared", f"agent {name!r} is described here already")
            else:
                agents[name] = self.agents[name]
        root = draft.root or _only(agents)
        if root is None:
            draft.table.fault("root", "is missing: name the agent that a new session starts with")
        return Scenario(draft.id, agents, root or "", draft.supervisor, draft.title)


@dataclass(slots=True)
class _Draft:
    table: Table
    id: str
    title: str
    shared: tuple[str, ...]
    root: str | None = None
    supervisor: str | None = None
    agents: dict[str, AgentSpec] = field(default_factory=dict)


def _only(names: Mapping[str, object]) -> str | None:
    return next(iter(names)) if len(names) == 1 else None
