"""The `context_max` that is in force for each agent of a team, and where it comes from."""

from __future__ import annotations

from dataclasses import dataclass

from agents.models import get_default_model

from magent2.roster.spec import AgentSpec, Roster
from magent2.runner.config import RunnerConfig
from magent2.runner.journal.compaction import UNKNOWN_WINDOW, default_context_max
from magent2.runner.providers.catalogue import ModelCatalogue, OwnServer
from magent2.runner.providers.model_info import context_window


@dataclass(frozen=True, slots=True)
class ContextLimit:
    """Tokens above which a request of an agent is compacted. `None`: it follows from a model that the code names."""

    agent: str
    context_max: int | None
    source: str


def context_limits(roster: Roster, config: RunnerConfig, models: ModelCatalogue) -> list[ContextLimit]:
    """The limits of all agents of a roster, as a worker with these settings has them."""
    agents = {name: one for part in roster.scenarios.values() for name, one in part.agents.items()}
    return [_limit_of(agent, roster, config, models) for agent in agents.values()]


def _limit_of(agent: AgentSpec, roster: Roster, config: RunnerConfig, models: ModelCatalogue) -> ContextLimit:
    settings = (
        (agent.context_max, "context_max of the agent"),
        (config.context_max, "AGENT_CONTEXT_MAX"),
        (roster.context.get("context_max"), "[context]"),
    )
    for limit, source in settings:
        if limit:
            return ContextLimit(agent.name, limit, source)
    if agent.agent is not None and not agent.model_names:
        return ContextLimit(agent.name, None, "model of the SDK agent")
    # The first model decides, as in a run. A name may be known as the team has it, or as its provider has it.
    names = agent.model_names or ((config.model,) if config.model else ())
    target = models.find_all(names[:1], OwnServer.of(agent))[0]
    name = target.name or get_default_model()
    window = context_window(name) or (context_window(target.model) if target.model else None)
    limit = default_context_max(window or UNKNOWN_WINDOW, agent.model_settings.get("max_tokens"))
    known = f"known model {name}" if window else f"default: model {name} is not known"
    return ContextLimit(agent.name, limit, known)
