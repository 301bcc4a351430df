"""`/api/agents`, `/api/scenarios`, `/api/orchestrate` and `…/set_active_agent`: the agents, and which one answers."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request

from magent2.bus.operations import Delete, Read, SetHead
from magent2.bus.records import Page
from magent2.errors import Magent2Error, NotYours
from magent2.gateway.instrumentation import add_audit_ids
from magent2.gateway.openapi import problems
from magent2.gateway.problems import Problem, log
from magent2.gateway.routes.dependencies import (
    ACCESS_ERRORS,
    API,
    BODY_ERRORS,
    SESSION_ERRORS,
    caller,
    check_answers,
    get_session,
    json_body,
    parse_body,
    scenario_id_of,
)
from magent2.gateway.routes.messages import envelope_id_for
from magent2.gateway.services import Services, services_of
from magent2.mail.delivery import SendOptions
from magent2.mail.headers import KIND, ROUTE_RUN
from magent2.models.address import chat_topic, conversation_topics, stream_topic
from magent2.models.api.team import (
    RouteRequest,
    RouteResponse,
    ScenarioInfo,
    ScenarioList,
    SwitchRequest,
    SwitchResponse,
    TeamAgent,
    TeamAgentList,
)
from magent2.models.envelope import MessageEnvelope
from magent2.models.principal import ADMIN
from magent2.roster.routing import TIMED_OUT, RouteDecision, fall_back_to_keywords, is_change, route_by_keywords
from magent2.roster.spec import AgentSpec, Roster, Scenario
from magent2.sessions.message_outcome import MessageOutcome
from magent2.sessions.store import HIDDEN, Session, routing_id
from magent2.tools.registry import grants_of

agents_router = APIRouter(prefix=API, tags=["team"])
routing_router = APIRouter(prefix=API, tags=["routing"])


@agents_router.get("/agents", operation_id="list_agents", responses=problems(*ACCESS_ERRORS, 422))
async def agents(request: Request, scenario_id: str | None = None) -> TeamAgentList:
    """List the agents of the roster or of one scenario, with the tools that they may use."""
    services = services_of(request)
    await services.presence.ensure_fresh()
    roster = services.catalogue.roster
    if scenario_id is not None:
        found = list(roster.scenario(scenario_id).agents.values())
    else:
        found = list({name: agent for one in roster.scenarios.values() for name, agent in one.agents.items()}.values())
    return TeamAgentList(agents=[_team_agent(services, roster, agent) for agent in found])


@agents_router.get("/scenarios", operation_id="list_scenarios", responses=problems(*ACCESS_ERRORS))
async def scenarios(request: Request) -> ScenarioList:
    """List the scenarios, and the default scenario of a session."""
    services = services_of(request)
    roster = services.catalogue.roster
    return ScenarioList(
        scenarios=[
            ScenarioInfo(id=one.id, title=one.title, root=one.root, supervisor=one.supervisor, agents=[*one.agents])
            for one in roster.scenarios.values()
        ],
        default=roster.default,
    )


def _team_agent(services: Services, roster: Roster, agent: AgentSpec) -> TeamAgent:
    return TeamAgent(
        name=agent.name,
        role=agent.role,
        model=next(iter(agent.model_names), None),
        voice=agent.voice,
        tools=[*agent.tools],
        mcp=[*agent.mcp],
        mcp_tools=_mcp_tools(roster, agent),
        handoffs=[*agent.handoffs],
        subagents=[*agent.subagents],
        scenarios=[one.id for one in roster.scenarios.values() if agent.name in one.agents],
        output_schema=agent.output_schema if isinstance(agent.output_schema, dict) else None,
        alive=agent.name in services.presence if services.presence.known else None,
    )


def _mcp_tools(roster: Roster, agent: AgentSpec) -> dict[str, list[str] | None]:
    """Return the tools of MCP servers that the agents file allows an agent, by server; `None` for all of a server."""
    found: dict[str, list[str] | None] = {}
    for name, granted in grants_of(agent.tools, agent.mcp).items():
        server = roster.mcp.get(name)
        offered = None if server is None or server.tools is None else frozenset(server.tools)
        allowed = offered if granted is None else granted if offered is None else granted & offered
        found[name] = None if allowed is None else sorted(allowed)
    return found


MANUAL = "manual_switch"
MAIL_PAGE = 50  # of the last records of a session that are searched for its last message
NO_WORKER, RUN_FAILED = "no_worker", "run_failed"


@routing_router.post(
    "/orchestrate",
    operation_id="orchestrate",
    responses=problems(*ACCESS_ERRORS, *SESSION_ERRORS, *BODY_ERRORS, 409, 507),
    openapi_extra=json_body(RouteRequest),
)
async def orchestrate(request: Request) -> RouteResponse:
    """Choose the agent for a text and, in a session, hand the session over to it.

    The supervisor of the scenario decides if it has one and a model is available, else the agents' keywords. A
    change writes one `handoff` event.
    """
    services = services_of(request)
    body = await parse_body(request, services, RouteRequest)
    add_audit_ids(request.scope, session_id=body.session_id)
    principal = caller(request)
    session = None if body.session_id is None else await get_session(services, body.session_id, principal)
    scenario = _scenario(services, session, body.scenario_id)
    text = body.last_user_text
    if text is None:
        text = "" if session is None else await _last_text(services, session)
    choice = await _decide(services, scenario, session, text[: services.limits.text_max_chars])
    return await _apply_decision(services, session, choice)


def _scenario(services: Services, session: Session | None, scenario_id: str | None) -> Scenario:
    own = None if session is None else scenario_id_of(session)
    if own is not None and scenario_id is not None and scenario_id != own:
        raise Problem(
            409, "other_scenario", f"the session uses scenario {own!r}; create it again to use {scenario_id!r}"
        )
    return services.catalogue.roster.scenario(scenario_id if scenario_id is not None else own)


async def _last_text(services: Services, session: Session) -> str:
    """Return the last message of a user. Manual tool calls are not messages."""
    page: Page = await services.bus.acall(Read(chat_topic(session.session_id), None, MAIL_PAGE))
    for record in reversed(page.records):
        if record.erased or record.headers.get(KIND) or str(record.payload.get("sender", "")).startswith("agent:"):
            continue
        return str(record.payload.get("content") or "")
    return ""


async def _apply_decision(services: Services, session: Session | None, choice: RouteDecision) -> RouteResponse:
    changed = choice.changed
    if session is not None and changed:
        switched = await services.sessions.switch(session.session_id, choice.agent, choice.reason)
        changed = switched.changed
    return RouteResponse(
        chosen_root=choice.agent,
        reason=choice.reason,
        changed=changed,
        by=choice.by,
        fallback=choice.fallback,
        scores=dict(choice.scores),
        evidence={name: list(words) for name, words in choice.evidence.items()},
    )


async def _decide(services: Services, scenario: Scenario, session: Session | None, text: str) -> RouteDecision:
    current = session.active_agent if session is not None else None
    if scenario.supervisor is None or not services.catalogue.has_routing_model or not text.strip():
        return route_by_keywords(scenario, text, current)
    await services.presence.ensure_fresh()
    if scenario.supervisor not in services.presence:
        return fall_back_to_keywords(scenario, text, current, NO_WORKER)
    try:
        return await _ask_supervisor(services, scenario, scenario.supervisor, session, text)
    except Magent2Error as error:
        log.warning("cannot ask the supervisor; keywords decide", extra={"error": str(error)})
        return fall_back_to_keywords(scenario, text, current, RUN_FAILED)


async def _ask_supervisor(
    services: Services, scenario: Scenario, supervisor: str, session: Session | None, text: str
) -> RouteDecision:
    """Run the supervisor on a worker, in a conversation of its own. Without a session it is deleted afterwards."""
    current = None if session is None else session.active_agent
    routing_session = routing_id(uuid.uuid4().hex if session is None else session.session_id)
    try:
        outcome = await _supervisor_outcome(services, scenario, supervisor, session, routing_session, text)
    finally:
        if session is None:
            await services.bus.acall(Delete(conversation_topics(routing_session), conversation=routing_session))
    return decision_from_run(scenario, text, current, outcome)


async def _supervisor_outcome(
    services: Services,
    scenario: Scenario,
    supervisor: str,
    session: Session | None,
    routing_session: str,
    text: str,
) -> MessageOutcome:
    """Send the text to the supervisor and wait for the outcome. It has no status if the time is over."""
    current = None if session is None else session.active_agent
    owner = None if session is None else session.owner
    envelope = MessageEnvelope(
        id=envelope_id_for(routing_session, None),
        conversation_id=routing_session,
        sender=owner or ADMIN.name,
        recipient=f"agent:{supervisor}",
        content=text,
        metadata={"scenario_id": scenario.id, **({"current": current} if current else {})},
    )
    head = SetHead(stream_topic(routing_session), {HIDDEN: True})
    earlier = await services.sessions.get(routing_session)
    if earlier is not None and earlier.owner != owner:
        raise NotYours(f"{routing_session!r} belongs to another principal; the session's text is not sent to it")
    await services.sessions.deliver(envelope, SendOptions(principal=owner, kind=ROUTE_RUN, with_heads=(head,)))
    outcome = MessageOutcome(envelope.id)
    await services.replies.wait(routing_session, earlier.last if earlier else 0, outcome, services.limits.route_max_s)
    return outcome


def decision_from_run(scenario: Scenario, text: str, current: str | None, outcome: MessageOutcome) -> RouteDecision:
    """Return the decision of the supervisor's run. Falls back to keywords if it is missing or not a valid target."""
    if outcome.status is None:
        return fall_back_to_keywords(scenario, text, current, TIMED_OUT)
    try:
        found = json.loads(outcome.text) if outcome.status == "finished" else None
    except ValueError:  # a worker of another release may use another format
        found = None
    if not isinstance(found, Mapping) or found.get("agent") not in scenario.route_targets:
        return fall_back_to_keywords(scenario, text, current, RUN_FAILED)
    choice = RouteDecision(
        str(found["agent"]), str(found.get("reason") or ""), False, by=str(found.get("by") or "supervisor")
    )
    return replace(
        choice,
        changed=is_change(scenario, current, choice.agent),
        scores=_mapping(found.get("scores")),
        evidence={name: tuple(words) for name, words in _mapping(found.get("evidence")).items()},
        fallback=found.get("fallback"),
    )


def _mapping(value: object) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


@routing_router.post(
    "/sdk/session/set_active_agent",
    operation_id="set_active_agent",
    responses=problems(*ACCESS_ERRORS, *SESSION_ERRORS, *BODY_ERRORS, 507),
    openapi_extra=json_body(SwitchRequest),
)
async def set_active_agent(request: Request) -> SwitchResponse:
    """Make another agent of the scenario active. A change writes one `handoff` event."""
    services = services_of(request)
    body = await parse_body(request, services, SwitchRequest)
    add_audit_ids(request.scope, session_id=body.session_id, agent=body.agent_name)
    session = await get_session(services, body.session_id, caller(request))
    agent = services.catalogue.roster.scenario(scenario_id_of(session)).agent(body.agent_name)
    check_answers(services, agent.name)
    switched = await services.sessions.switch(session.session_id, agent.name, MANUAL)
    return SwitchResponse(changed=switched.changed, active_agent_id=agent.name, seq=switched.seq)
