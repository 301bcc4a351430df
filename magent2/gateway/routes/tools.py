"""`/api/tools`: list the tools, show which built-in ones work, and run one by name."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter, Request
from starlette.responses import Response

from magent2.bus.operations import OLDEST, Find
from magent2.bus.records import AppendResult, Record, canonical
from magent2.errors import IdConflict
from magent2.gateway.catalogue import used_by
from magent2.gateway.instrumentation import add_audit_ids
from magent2.gateway.openapi import problems
from magent2.gateway.problems import Problem
from magent2.gateway.routes.dependencies import (
    ACCESS_ERRORS,
    API,
    BODY_ERRORS,
    SESSION_ERRORS,
    caller,
    get_session,
    json_body,
    json_response,
    parse_body,
    scenario_id_of,
)
from magent2.gateway.routes.messages import accepted_response, envelope_id_for, rendered_events
from magent2.gateway.services import Services, services_of
from magent2.mail.delivery import DeliveryResult, SendOptions
from magent2.mail.headers import KIND, STREAM_SEEN, TOOL_RUN
from magent2.models.address import chat_topic
from magent2.models.api.messages import AcceptedResponse
from magent2.models.api.team import ToolInfo, ToolList, ToolRunRequest, ToolRunResponse, ToolsStatus
from magent2.models.envelope import MessageEnvelope
from magent2.models.principal import Principal
from magent2.sessions.message_outcome import MessageOutcome
from magent2.sessions.store import Session
from magent2.tools.builtins import BUILTINS
from magent2.tools.registry import may_run

# Status and code by the error of a call that only the worker could refuse.
_REFUSALS = {
    "ArgumentsError": (422, "bad_arguments"),
    "UnknownTool": (404, "unknown_tool"),
    "Refused": (403, "tool_not_allowed"),
}


router = APIRouter(prefix=f"{API}/tools", tags=["tools"])


@router.get("/list", operation_id="list_tools", responses=problems(*ACCESS_ERRORS))
async def tools(request: Request) -> ToolList:
    """List custom tools with their schemas, tools of MCP servers that agents name, and built-in tools."""
    services = services_of(request)
    return ToolList(tools=_list_tools(services))


@router.get("/config/status", operation_id="get_tools_status", responses=problems(*ACCESS_ERRORS))
async def status(request: Request) -> ToolsStatus:
    """Return which built-in tools are enabled, which work, and what the others need."""
    services = services_of(request)
    catalogue = services.catalogue
    return ToolsStatus(model_kind=catalogue.kind or "unknown", builtins=catalogue.builtin_status())


def _list_tools(services: Services) -> list[ToolInfo]:
    tools, roster = services.catalogue.tools, services.catalogue.roster
    users = used_by(roster)
    custom = {schema["name"]: schema for schema in tools.schemas()}
    names = [*custom, *(name for name in roster.tools if name not in custom)]
    found: list[ToolInfo] = []
    for name in [*names, *(name for name in users if "." in name), *BUILTINS]:
        is_mcp = "." in name and name not in custom
        schema = custom.get(name, {})
        found.append(
            ToolInfo(
                name=name,
                kind="builtin" if name in BUILTINS else "mcp" if is_mcp else "custom",
                description=schema.get("description"),
                params_schema=schema.get("params_schema"),
                agents=users.get(name, []),
            )
        )
    return found


@router.post(
    "/execute",
    operation_id="run_tool",
    response_model=ToolRunResponse,
    responses={
        202: {"model": AcceptedResponse, "description": "In progress: follow the session after `seq`"},
        **problems(*ACCESS_ERRORS, *SESSION_ERRORS, *BODY_ERRORS, 409, 502, 507),
    },
    openapi_extra=json_body(ToolRunRequest),
)
async def execute(request: Request) -> Response:
    """Run a tool of the session's active agent on a worker and wait for the result.

    The tool must be in the agent's list. Built-in tools run at the model's provider and cannot be run here.
    `client_message_id` makes it idempotent: a repeat gets the same result, another call with the same id is 409.
    """
    services = services_of(request)
    body = await parse_body(request, services, ToolRunRequest)
    add_audit_ids(request.scope, session_id=body.session_id, tool=body.tool)
    principal = caller(request)
    session = await get_session(services, body.session_id, principal)
    call = await _find_call(services, session, body) or await _deliver_call(services, session, principal, body)
    add_audit_ids(request.scope, envelope_id=call.delivered.envelope_id, agent=call.agent)
    outcome = MessageOutcome(call.delivered.envelope_id)
    if await services.replies.wait(session.session_id, call.stream_seq, outcome, services.limits.wait_max_s):
        return _done(session.session_id, call.agent, body.tool, outcome)
    return accepted_response(services, session.session_id, call.delivered, "in_progress", call.stream_seq)


def check_call(services: Services, session: Session, body: ToolRunRequest) -> str:
    """Return the agent that runs the tool. Raises a problem if it may not, or if the roster does not have the agent."""
    catalogue = services.catalogue
    scenario_id = scenario_id_of(session)
    scenario = catalogue.roster.scenarios.get(scenario_id or catalogue.roster.default)
    name = session.active_agent or (scenario.root if scenario is not None else "")
    if body.tool in BUILTINS:
        detail = f"{body.tool} runs at the model's provider, as part of a model call; it cannot be run by name"
        raise Problem(403, "builtin_tool", detail)
    agent = catalogue.agent(scenario_id, name)
    if agent is None or not may_run(agent.tools, agent.mcp, body.tool):
        raise Problem(403, "tool_not_allowed", f"agent {name[:80]!r} may not use tool {body.tool[:80]!r}")
    if body.tool in catalogue.tools:
        catalogue.tools.check_arguments(body.tool, body.args)
    return agent.name


@dataclass(frozen=True, slots=True)
class _DeliveredCall:
    """A delivered call, its agent, and the seq of the session after which its result is found."""

    agent: str
    delivered: DeliveryResult
    stream_seq: int


async def _deliver_call(
    services: Services, session: Session, principal: Principal, body: ToolRunRequest
) -> _DeliveredCall:
    """Deliver the call as mail of the kind `tool`. It is not part of the conversation, so no message shows it."""
    agent = check_call(services, session, body)
    envelope = MessageEnvelope(
        id=envelope_id_for(session.session_id, body.client_message_id),
        conversation_id=session.session_id,
        sender=principal.name,
        recipient=f"agent:{agent}",
        metadata={"tool": body.tool, "args": body.args},
    )
    options = SendOptions(principal=principal.bound, kind=TOOL_RUN, stream_seen=session.last)
    services.presence.refresh()
    try:
        delivered = await services.sessions.deliver(envelope, options)
    except IdConflict:  # a concurrent request was first, perhaps for another agent
        found = await _find_call(services, session, body)
        if found is None:
            raise
        return found
    await services.presence.refreshed()
    if delivered.appended.repeat:
        return await _find_call(services, session, body) or _DeliveredCall(agent, delivered, OLDEST)
    return _DeliveredCall(agent, delivered, session.last)


async def _find_call(services: Services, session: Session, body: ToolRunRequest) -> _DeliveredCall | None:
    """Return the call made under this key, even if the active agent or its tools have changed since."""
    if body.client_message_id is None:
        return None
    envelope_id = envelope_id_for(session.session_id, body.client_message_id)
    topic = chat_topic(session.session_id)
    record: Record | None = await services.bus.acall(Find(topic, envelope_id))
    if record is None or record.erased:
        return None
    call = record.payload.get("metadata") or {}
    same = call.get("tool") == body.tool and canonical(call.get("args")) == canonical(body.args)
    if record.headers.get(KIND) != TOOL_RUN or not same:
        raise IdConflict(
            f"client_message_id {body.client_message_id[:80]!r} was used for another request; use a new one"
        )
    agent = str(record.payload.get("recipient", "")).partition(":")[2]
    stream_seq = record.headers.get(STREAM_SEEN)
    appended = AppendResult((record.seq,), repeat=True)
    return _DeliveredCall(
        agent,
        DeliveryResult(envelope_id, (topic,), agent, appended),
        stream_seq if isinstance(stream_seq, int) else OLDEST,
    )


def _done(session_id: str, agent: str, tool: str, outcome: MessageOutcome) -> Response:
    if outcome.status == "failed":
        raise Problem(502, "run_failed", f"the run failed: {outcome.reason or 'see its events'}")
    if outcome.status == "stopped":
        raise Problem(409, "run_stopped", f"the run was stopped: {outcome.reason or 'by command'}")
    call = next(iter(outcome.tool_calls()), {})
    error = call.get("error")
    status, code = _REFUSALS.get(str(error or "").partition(":")[0], (None, ""))
    if status is not None:
        raise Problem(status, code, str(error).partition(": ")[2])
    answer = {
        "session_id": session_id,
        "tool": tool,
        "agent_id": agent,
        "status": "success" if error is None else "error",
        "result": outcome.text,
        "error": error,
        "message_id": outcome.envelope_id,
        "duration_ms": call.get("duration_ms"),
        "events": rendered_events(session_id, outcome),
    }
    return json_response(answer)
