"""`/api/agents`, `/api/scenarios`: who there is, and what they may use."""

from __future__ import annotations

from fastapi import APIRouter

from magent2.gateway.openapi import problems
from magent2.gateway.routes.dependencies import ACCESS_ERRORS, API
from magent2.gateway.services import Services
from magent2.models.api.team import ScenarioInfo, ScenarioList, TeamAgent, TeamAgentList
from magent2.roster.spec import AgentSpec, Roster


def router(services: Services) -> APIRouter:
    routes = APIRouter(prefix=API, tags=["team"])

    @routes.get("/agents", responses=problems(*ACCESS_ERRORS, 422))
    async def agents(scenario_id: str | None = None) -> TeamAgentList:
        """The agents of the roster, or of one scenario, with their allowlists."""
        asking = services.presence.refresh()
        if asking is not None:
            await asking
        roster = services.catalogue.roster
        if scenario_id is not None:
            found = list(roster.scenario(scenario_id).agents.values())
        else:
            found = list(
                {name: agent for one in roster.scenarios.values() for name, agent in one.agents.items()}.values()
            )
        return TeamAgentList(agents=[_agent(services, roster, agent) for agent in found])

    @routes.get("/scenarios", responses=problems(*ACCESS_ERRORS))
    async def scenarios() -> ScenarioList:
        """The scenarios, and which one a session has that names none."""
        roster = services.catalogue.roster
        return ScenarioList(
            scenarios=[
                ScenarioInfo(id=one.id, title=one.title, root=one.root, supervisor=one.supervisor, agents=[*one.agents])
                for one in roster.scenarios.values()
            ],
            default=roster.default,
        )

    return routes


def _agent(services: Services, roster: Roster, agent: AgentSpec) -> TeamAgent:
    return TeamAgent(
        name=agent.name,
        role=agent.role,
        model=agent.model,
        voice=agent.voice,
        tools=[*agent.tools],
        mcp=[*agent.mcp],
        handoffs=[*agent.handoffs],
        scenarios=[one.id for one in roster.scenarios.values() if agent.name in one.agents],
        alive=agent.name in services.presence if services.presence.known else None,
    )
