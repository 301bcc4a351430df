"""`/agents`: who exists, who is served, and what waits for them."""

from __future__ import annotations

import asyncio
from collections import Counter

from fastapi import APIRouter

from magent2.bus.interface import Engine
from magent2.bus.operations import Lanes, Topics, Workers
from magent2.bus.records import LaneInfo, TopicList, WorkerInfo
from magent2.gateway.openapi import problems
from magent2.gateway.services import Services, served_agents
from magent2.models.api.administration import AgentInfo, AgentList, LaneCounts

AGENTS_MAX = 1000
AGENT_PREFIX = "agent:"


def router(services: Services) -> APIRouter:
    routes = APIRouter(tags=["agents"])

    @routes.get("/agents", responses=problems(401, 403, 429, 501, 503))
    async def agents() -> AgentList:
        """Agents that are known or served, with their lanes."""
        workers = await services.bus.acall(Workers())
        names = await known_agents(services.bus, workers)
        lanes = await asyncio.gather(*(services.bus.acall(Lanes(name)) for name in names))
        return AgentList(agents=[_agent(name, workers, found) for name, found in zip(names, lanes, strict=True)])

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
