"""`/api/workers`: agents, their live workers and their lanes. For administrators."""

from __future__ import annotations

import asyncio
from collections import Counter

from fastapi import APIRouter, Depends

from magent2.bus.interface import Engine
from magent2.bus.operations import Lanes, Topics, Workers
from magent2.bus.records import LaneInfo, TopicList, WorkerInfo
from magent2.gateway.openapi import problems
from magent2.gateway.routes.dependencies import ACCESS_ERRORS, API, admins_only
from magent2.gateway.services import Services, served_agents
from magent2.models.api.administration import AgentInfo, AgentList, LaneCounts

AGENTS_MAX = 1000
AGENT_PREFIX = "agent:"


def router(services: Services) -> APIRouter:
    routes = APIRouter(prefix=API, tags=["administration"], dependencies=[Depends(admins_only)])

    @routes.get("/workers", responses=problems(*ACCESS_ERRORS, 501))
    async def workers() -> AgentList:
        """List registered agents and agents with a live worker, with the state of their lanes."""
        live = await services.bus.acall(Workers())
        names = await known_agents(services.bus, live)
        lanes = await asyncio.gather(*(services.bus.acall(Lanes(name)) for name in names))
        return AgentList(agents=[_agent(name, live, found) for name, found in zip(names, lanes, strict=True)])

    return routes


async def known_agents(bus: Engine, workers: tuple[WorkerInfo, ...] | None = None) -> list[str]:
    """Agents that ever enlisted, and those of workers that live."""
    listed: TopicList = await bus.acall(Topics(AGENT_PREFIX, limit=AGENTS_MAX))
    served = served_agents(await bus.acall(Workers()) if workers is None else workers)
    return sorted({info.topic.removeprefix(AGENT_PREFIX) for info in listed.topics} | served)[:AGENTS_MAX]


def _agent(name: str, workers: tuple[WorkerInfo, ...], lanes: tuple[LaneInfo, ...]) -> AgentInfo:
    at_work = sorted(worker.worker for worker in workers if worker.lease_s > 0 and name in worker.agents)
    states = Counter(lane.state for lane in lanes)
    return AgentInfo(
        name=name,
        alive=bool(at_work),
        workers=at_work,
        lanes=LaneCounts(**{state: states[state] for state in LaneCounts.model_fields}),
        pending=sum(lane.pending for lane in lanes),
    )
