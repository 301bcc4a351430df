"""`/api/dead`: list, retry and drop dead letters. For administrators."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query
from starlette.responses import Response

from magent2.bus.interface import Engine
from magent2.bus.log import Log
from magent2.bus.operations import OLDEST, Read
from magent2.bus.records import Page
from magent2.errors import UnknownCursor
from magent2.gateway.openapi import problems
from magent2.gateway.problems import Problem
from magent2.gateway.routes.dependencies import API, admins_only
from magent2.gateway.routes.workers import known_agents
from magent2.gateway.services import Services
from magent2.gateway.streaming.sse import CURSOR_MAX
from magent2.mail.dead_letters import DEAD_PAGE, DeadLetter, drop_dead_letter, retry_dead_letter
from magent2.models.address import NAME_MAX_CHARS, check_name, dead_topic
from magent2.models.api.administration import DeadLetterInfo, DeadLetterPage
from magent2.models.api.base import OkResponse

AgentName = Annotated[str, Path(min_length=1, max_length=NAME_MAX_CHARS)]
LetterSeq = Annotated[int, Path(ge=1, le=CURSOR_MAX - 1)]


def router(services: Services) -> APIRouter:
    routes = APIRouter(prefix=f"{API}/dead", tags=["dead letters"], dependencies=[Depends(admins_only)])
    _listing(routes, services)
    _deciding(routes, services)
    return routes


def _listing(routes: APIRouter, services: Services) -> None:
    @routes.get("", responses=problems(401, 403, 410, 422, 429, 501, 503))
    async def letters(
        agent: Annotated[str | None, Query(max_length=NAME_MAX_CHARS, description="of this agent; else of all")] = None,
        after: Annotated[int | None, Query(ge=0, le=CURSOR_MAX, description="`next` of the page before")] = None,
    ) -> DeadLetterPage:
        """Dead letters, oldest first. Pages go on per agent; without one, the oldest of each are shown."""
        if agent is not None:
            check_name(agent, "agent name")
            found, more = await _page(services.bus, agent, after)
            return DeadLetterPage(letters=[_shown(letter) for letter in found], next=more)
        if after is not None:
            raise Problem(422, "bad_parameter", "'after' counts the letters of one agent; name it as 'agent'")
        pages = [await _page(services.bus, name, None) for name in await known_agents(services.bus)]
        return DeadLetterPage(letters=[_shown(letter) for found, _ in pages for letter in found], next=None)


def _deciding(routes: APIRouter, services: Services) -> None:
    @routes.post("/{agent:path}/{seq}/retry", responses=problems(401, 403, 404, 422, 429, 503, 507))
    async def retry(agent: AgentName, seq: LetterSeq) -> OkResponse:
        """Put the mail back into its inbox, once."""
        try:
            await retry_dead_letter(Log(services.bus), check_name(agent, "agent name"), seq)
        except UnknownCursor as error:
            raise _unknown(error) from None
        return OkResponse()

    @routes.delete("/{agent:path}/{seq}", status_code=204, responses=problems(401, 403, 404, 422, 429, 503, 507))
    async def drop(agent: AgentName, seq: LetterSeq) -> Response:
        """Forget the letter."""
        try:
            await drop_dead_letter(Log(services.bus), check_name(agent, "agent name"), seq)
        except UnknownCursor as error:
            raise _unknown(error) from None
        return Response(status_code=204)


async def _page(bus: Engine, agent: str, after: int | None) -> tuple[list[DeadLetter], int | None]:
    """Letters that were neither retried nor dropped; a page may have none of them and not be the last."""
    page: Page = await bus.acall(Read(dead_topic(agent), OLDEST if after is None else after, DEAD_PAGE))
    more = page.records[-1].seq if page.records and page.records[-1].seq < page.last else None
    return [DeadLetter.parse(record) for record in page.records if not record.erased], more


def _unknown(error: UnknownCursor) -> Problem:
    return Problem(404, "unknown_letter", str(error))


def _shown(letter: DeadLetter) -> DeadLetterInfo:
    payload = letter.mail.get("payload")
    text = payload.get("content") if isinstance(payload, dict) else None
    return DeadLetterInfo(
        agent=letter.agent,
        seq=letter.seq,
        conversation_id=letter.conversation_id,
        reason=letter.reason,
        attempts=letter.attempts,
        buried_at=datetime.fromtimestamp(letter.buried_ms / 1000, UTC),
        envelope_id=str(letter.mail.get("id", "")),
        text=text if isinstance(text, str) else None,
    )
