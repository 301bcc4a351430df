"""Outputs of the client's tools: they go to the run that waits for them, and begin its next response."""

from __future__ import annotations

from collections.abc import Mapping

from magent2.bus.log import Log
from magent2.bus.operations import OLDEST
from magent2.errors import AlreadyDecided, PayloadTooLarge
from magent2.gateway.openai_api.errors import invalid, too_long
from magent2.gateway.openai_api.ids import ResponseId
from magent2.gateway.services import Services
from magent2.mail.delivery import SendOptions
from magent2.models.address import stream_topic
from magent2.models.principal import Principal
from magent2.models.run_options import RunOptions, read_run_options
from magent2.sessions.approvals import Approval, answer_call, find_client_calls
from magent2.sessions.history import run_id_of

STREAM_PAGE = 500
STREAM_PAGES_MAX = 40  # pages of a stream that are searched for a call, from its end


async def answer_calls(
    services: Services,
    principal: Principal,
    session_id: str,
    previous: ResponseId | None,
    outputs: Mapping[str, object],
    options: RunOptions,
) -> ResponseId:
    """Send outputs to the run that waits for them, once. Return the response that they begin.

    All calls of a response have to be answered in one request, with no other `options` than those of the run. Raises a
    problem that names a call which is not known or has no output, or an option that differs.
    """
    log = Log(services.bus)
    found = await find_client_calls(log, session_id, services.histories.read_with)
    calls = [call for call in found if _is_of(call, session_id, previous)]
    named = {call.call_id: call for call in calls if call.call_id in outputs}
    unknown = sorted(outputs.keys() - named.keys())
    if unknown:
        raise invalid(f"no function call waits for the output of {unknown[0][:80]!r}", "input", "unknown_call")
    last = list(named.values())[-1]
    group = [call for call in calls if (call.run_id, call.turn) == (last.run_id, last.turn)]
    check_all_answered([call for call in group if call.status == "pending"], outputs)
    envelope = (await services.histories.read(session_id)).runs[last.run_id].envelope
    _check_same_options(options, read_run_options(envelope.get("metadata") or {}))
    sending = SendOptions(principal=principal.bound)
    try:
        for call in group:
            if call.call_id in outputs:
                await answer_call(log, session_id, call, outputs[call.call_id], principal.name, sending)
    except PayloadTooLarge:
        raise too_long("input") from None
    except AlreadyDecided as error:
        raise invalid(str(error), "input", "already_answered", 409) from None
    return ResponseId(session_id, str(envelope["id"]), await _call_seq(log, session_id, last), last.turn)


async def last_answered_turn(services: Services, response_id: ResponseId) -> int | None:
    """The last turn of a run whose calls the client has answered. The last response of the run has it in its id."""
    found = await find_client_calls(Log(services.bus), response_id.session, services.histories.read_with)
    own = [call for call in found if _is_of(call, response_id.session, response_id)]
    return max((call.turn for call in own if call.status != "pending"), default=None)


def _is_of(call: Approval, session_id: str, previous: ResponseId | None) -> bool:
    """Whether the call is one of the run of this response, if a response is named."""
    return previous is None or call.run_id == run_id_of(call.agent, session_id, previous.envelope)


def _check_same_options(given: RunOptions, pinned: RunOptions) -> None:
    """Refuse options that differ from those of the run: they would have no effect."""
    own = pinned.payload()
    for name, value in given.payload().items():
        if name not in ("input", "tool_choice") and own.get(name) != value:
            text = f"{name!r} differs from that of the run that waits for the outputs; repeat it or leave it out"
            raise invalid(text, name, "unsupported_value")


async def check_not_waiting(services: Services, session_id: str) -> None:
    """Refuse a message to a session whose run waits for outputs of the client."""
    calls = await find_client_calls(Log(services.bus), session_id, services.histories.read_with)
    check_all_answered([call for call in calls if call.status == "pending"], {})


def check_all_answered(waiting: list[Approval], outputs: Mapping[str, object]) -> None:
    missing = [call.call_id for call in waiting if call.call_id not in outputs]
    if missing:
        text = f"no function_call_output for {', '.join(missing)[:500]}; send the outputs of all calls"
        raise invalid(text, "input", "missing_output")


async def _call_seq(log: Log, session_id: str, call: Approval) -> int:
    """The seq of the first event that asks for the calls of a turn. It is near the end of the stream."""
    topic = stream_topic(session_id)
    (info,) = await log.describe(topic)
    end = info.last
    for _ in range(STREAM_PAGES_MAX):
        start = max(info.floor, end - STREAM_PAGE)
        page = await log.read(topic, start or OLDEST, STREAM_PAGE)
        for record in page.records:
            payload = record.payload
            if (
                payload.get("event") == "client_call"
                and payload.get("status") == "requested"
                and (payload.get("run_id"), payload.get("turn")) == (call.run_id, call.turn)
                and not payload.get("index")
            ):
                return record.seq
        if start <= info.floor:
            break
        end = start
    raise invalid("the events of this function call are gone; start a new conversation", "input", "events_gone", 404)
