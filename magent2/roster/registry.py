"""The current roster of a process: an agents file with the environment's values, reloaded when the file changes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from magent2.errors import RosterError
from magent2.roster.agents_file import DescribeAgents, LoadedRoster, load_agents_file
from magent2.roster.faults import suggestion
from magent2.roster.limits import LimitValues, RetryValues, parse_limit_variables, parse_retry_variables
from magent2.roster.retention import RetentionValues, parse_retention_variables
from magent2.roster.spec import AgentSpec, Roster
from magent2.roster.webhooks import WebhookSpec, parse_webhook_variables
from magent2.settings import Settings

logger = logging.getLogger(__name__)

# File systems record times with a granularity of up to 2 s. A file that was written more recently than this may change
# again without a new modification time, so it is read again until it is older.
FRESH_S = 2.0

FileState = tuple[tuple[int, int, int], ...]  # (modification time, size, inode) of each file


@dataclass(frozen=True, slots=True)
class EnvironmentOverride:
    """What the environment sets for one agent, None where it sets nothing. It takes precedence over the agents file.

    Without a `name` it applies to the root of the default scenario. `required` lists agents that must exist, because
    the command line asks for them by name. `limits`, `retention` and `retry` take precedence over those of the file.
    """

    name: str | None = None
    model: str | None = None
    instructions: str | None = None
    tools: Sequence[str] | None = None
    required: Sequence[str] = ()
    limits: LimitValues = field(default_factory=LimitValues)
    retention: RetentionValues = field(default_factory=RetentionValues)
    retry: RetryValues = field(default_factory=RetryValues)
    webhooks: Mapping[str, WebhookSpec] = field(default_factory=dict)  # in addition to those of the file

    @classmethod
    def of(cls, settings: Settings) -> EnvironmentOverride:
        """Parse the limits, the policies and the webhook of the environment. Raises `SettingsError`."""
        return cls(
            limits=parse_limit_variables(settings.limits),
            retention=parse_retention_variables(settings.retention),
            retry=parse_retry_variables(settings.retry),
            webhooks=parse_webhook_variables(settings.webhook),
        )

    def apply(self, roster: Roster) -> Roster:
        """Return the roster with these values, for the agent in every scenario that has it."""
        name = roster.scenario().root if self.name is None else self.name
        for required in self.required:
            _find(roster, required, "--agent")
        agent = _find(roster, name, "AGENT_NAME")
        if agent.agent is not None:
            self._check_code_agent(agent)
            return self._apply_policies(roster)
        changed = replace(
            agent,
            model=agent.model if self.model is None else self.model,
            models=agent.models if self.model is None else (),
            instructions=agent.instructions if self.instructions is None else self.instructions,
            tools=agent.tools if self.tools is None else tuple(self.tools),
        )
        roster = self._apply_policies(roster)
        return roster if changed == agent else roster.with_agent(changed)

    def _check_code_agent(self, agent: AgentSpec) -> None:
        """Refuse instructions and tools for an SDK agent. A model of the environment is for agents that name none."""
        for variable, value in (("AGENT_INSTRUCTIONS", self.instructions), ("AGENT_TOOLS", self.tools)):
            if value is not None:
                words = f"agent {agent.name!r} is defined by {agent.agent!r}; set this there, or name another agent"
                raise RosterError(variable, [words])

    def _apply_policies(self, roster: Roster) -> Roster:
        if self.limits:
            roster = replace(roster, limits={**roster.limits, **self.limits})
        if self.retention:
            roster = replace(roster, retention={**roster.retention, **self.retention})
        if self.retry:
            roster = replace(roster, retry={**roster.retry, **self.retry})
        if self.webhooks:
            roster = replace(roster, webhooks={**roster.webhooks, **self.webhooks})
        return roster


def _find(roster: Roster, name: str, source: str) -> AgentSpec:
    known = {key: agent for scenario in roster.scenarios.values() for key, agent in scenario.agents.items()}
    if name not in known:
        raise RosterError(source, [f"the team has no agent {name[:80]!r}; {suggestion(name, known)}"])
    return known[name]


class Registry:
    """Holds the current roster. A run keeps the roster that it started with; the next run uses the reloaded one.

    An agents file with faults changes nothing: the previous roster stays in use, and `error` holds the faults. `error`
    is None while the roster matches the file.
    """

    def __init__(self, read: Callable[[], LoadedRoster]) -> None:
        """Call `read` now, and again after each change of its files. Errors of the first call are raised."""
        self.error: RosterError | None = None
        self._read = read
        loaded = read()
        self._roster = loaded.roster
        self._files: tuple[Path, ...] = loaded.files
        self._seen = _file_state(loaded.files)

    @classmethod
    def of(cls, roster: Roster) -> Registry:
        """Hold a roster that does not come from a file and never changes."""
        return cls(lambda: LoadedRoster(roster))

    @classmethod
    def of_file(
        cls,
        path: Path,
        known_tools: Collection[str],
        environ: Mapping[str, str] | None = None,
        override: EnvironmentOverride | None = None,
        describe_agents: DescribeAgents | None = None,
    ) -> Registry:
        """Hold the roster of an agents file, with the values of `override`. See `load_agents_file`."""

        def read() -> LoadedRoster:
            loaded = load_agents_file(path, known_tools, environ, describe_agents)
            return loaded if override is None else LoadedRoster(override.apply(loaded.roster), loaded.files)

        return cls(read)

    @property
    def roster(self) -> Roster:
        return self._roster

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that the roster is read from; empty for a roster without a file."""
        return self._files

    def reload(self, *, force: bool = False) -> bool:
        """Read the files again if they have changed, and return whether the roster is a different one now.

        While nothing changes this costs one `stat` per file. `force` reads the files in any case.
        """
        if not force and self._seen is not None and self._seen == _file_state(self._files):
            return False
        try:
            loaded = self._read()
        except RosterError as error:
            self._keep(error)
            return False
        changed = loaded.roster != self._roster
        self._roster, self._files, self.error = loaded.roster, loaded.files, None
        self._seen = _file_state(loaded.files)
        if changed:
            logger.info("roster reloaded", extra={"agents": list(loaded.roster.agent_names())})
        return changed

    def _keep(self, error: RosterError) -> None:
        """Keep the previous roster, and log the faults unless they were logged before."""
        if self.error is None or self.error.faults != error.faults:
            logger.error(
                "roster not reloaded; the previous one stays in use",
                extra={"error": type(error).__name__, "file": error.where, "faults": list(error.faults)},
            )
        self.error = error
        # The fix may be in a file that is not watched yet, such as instructions that were missing: read every time.
        self._seen = None


def reload_now(registry: Registry) -> str:
    """Read the files even if they look unchanged, and describe the result in a sentence for the operator."""
    if not registry.files:
        return "there is no agents file to reload"
    registry.reload(force=True)
    if registry.error is not None:
        return f"{registry.error}; the team is unchanged"
    return f"agents file reloaded: {', '.join(registry.roster.agent_names())}"


def _file_state(files: Sequence[Path]) -> FileState | None:
    """Return what changes when a file does; None if a file is missing or too fresh to rely on its time."""
    now_ns = time.time_ns()
    found: list[tuple[int, int, int]] = []
    for path in files:
        try:
            seen = path.stat()
        except OSError:
            return None
        if abs(now_ns - seen.st_mtime_ns) < FRESH_S * 1e9:
            return None
        found.append((seen.st_mtime_ns, seen.st_size, seen.st_ino))
    return tuple(found)
