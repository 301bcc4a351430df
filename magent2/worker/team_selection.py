"""Selects the agents that a process serves: those of an agents file, one named agent, or the default team."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from magent2.bus.interface import Engine
from magent2.connectors.relay import Relay
from magent2.directory.webhooks import Webhook
from magent2.roster.limits import LimitValues, RetryValues, delivery_retry_policy, run_retry_policy
from magent2.roster.registry import Registry
from magent2.roster.retention import retention_policy
from magent2.roster.spec import Roster
from magent2.runner.circuit import CIRCUIT_FAILURES
from magent2.runner.select import select_team
from magent2.runner.team.runner import TeamRunner
from magent2.sessions.approvals import APPROVAL_MAX_S
from magent2.sessions.queue_depth import QUEUE_MAX_MESSAGES
from magent2.telemetry.observation import RunObserver
from magent2.worker.lane_run import RUN_MAX_S
from magent2.worker.runner_adapter import Runner
from magent2.worker.service import CONCURRENCY, DRAIN_S, LEASE_S, PRINCIPAL_SHARE, WorkerService
from magent2.worker.team_choice import choose_agents
from magent2.worker.webhooks import configured_webhooks


@dataclass(frozen=True, slots=True)
class ServedTeam:
    """The agents to serve, and the runner that runs them all.

    `model_description` is for the banner at the start. `folder` is where the team's own tools are.
    """

    names: tuple[str, ...]
    runner: TeamRunner
    registry: Registry
    model_description: str
    folder: Path | None = None
    fixed: bool = False  # the agents were selected by name: agents that are added to the file are not served

    @property
    def limits(self) -> LimitValues:
        """The limits of the agents file. Those of the environment override them."""
        return self.registry.roster.limits

    @property
    def retry(self) -> RetryValues:
        """The retry policies of the agents file. Those of the environment override them."""
        return self.registry.roster.retry

    def relay(self, bus: Engine) -> Relay:
        """Create a relay with the retry policy and the webhooks of the team."""
        return Relay(bus, retry=delivery_retry_policy(self.retry), configured=self.webhooks)

    def webhooks(self) -> dict[str, Webhook]:
        """Return the webhooks of the agents file and of the environment, by their ids."""
        return configured_webhooks(self.registry.roster.webhooks.values())

    @property
    def first_agent(self) -> str:
        """The agent to write to first: the root of the scenario, if it is served."""
        root = self.registry.roster.scenario().root
        return root if root in self.names else self.names[0]

    def current_runners(self) -> dict[str, Runner]:
        """Return the agents to serve now. An agents file that has changed is read again."""
        return dict.fromkeys(self.names if self.fixed else self.runner.agents(), self.runner)

    def service(
        self, bus: Engine, concurrency: int | None = None, observer: RunObserver | None = None
    ) -> WorkerService:
        """Create a worker for the team. It follows changes of the agents file."""
        limits = self.limits
        retry = self.retry
        if observer is not None and observer.metrics is not None:
            observer.metrics.read_usage_of(self.runner.tool_threads, self.runner.sandbox)
            if observer.metrics.bus is not None:
                observer.metrics.bus.read_usage_of(bus)
        service = WorkerService(
            bus,
            self.current_runners,
            concurrency=limits.get("concurrency", CONCURRENCY) if concurrency is None else concurrency,
            principal_share=limits.get("principal_share", PRINCIPAL_SHARE),
            lease_s=limits.get("lease_s", LEASE_S),
            run_max_s=limits.get("run_max_s", RUN_MAX_S),
            observer=observer,
            retry=run_retry_policy(retry),
            circuit_failures=retry.get("circuit_failures", CIRCUIT_FAILURES),
        )
        service.lane_loop.drain_s = limits.get("run_drain_s", DRAIN_S)
        service.budgets.configured = lambda: self.registry.roster.budgets
        service.retention = lambda: retention_policy(self.registry.roster.retention)
        service.fires_schedules = True
        service.queue_max_messages = limits.get("queue_max_messages", QUEUE_MAX_MESSAGES)
        service.approval_max_s = limits.get("approval_max_s", APPROVAL_MAX_S)
        service.webhooks.configured = self.webhooks
        return service


def choose_team(
    names: Sequence[str] = (),
    model: str | None = None,
    file: Path | None = None,
    *,
    sdk_agents: Sequence[str] = (),
    without_key: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> ServedTeam:
    """Choose the team like `choose_agents`, and create its runner."""
    choice = choose_agents(names, model, file, sdk_agents=sdk_agents, without_key=without_key, environ=environ)
    registry = choice.registry

    def current_roster() -> Roster:
        registry.reload()
        return registry.roster

    runner = select_team(current_roster, choice.model, choice.config, folder=choice.folder)
    served = choice.names or runner.agents()
    return ServedTeam(served, runner, registry, choice.model_description, choice.folder, fixed=bool(choice.names))
