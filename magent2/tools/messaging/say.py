"""`say`: a word to the user in the middle of a run, where they are reached."""

from __future__ import annotations

from pydantic import Field

from magent2.bus.log import Log
from magent2.bus.operations import Append
from magent2.tools.definition import ToolExecutionContext
from magent2.tools.interface import SendKind, SendMark
from magent2.tools.messaging.common import checked_text, now_text
from magent2.tools.messaging.destinations import UserDestination, find_destination, plan_send_to_user
from magent2.tools.sending_tool import Arguments, Payload, SendingTool


class SayArguments(Arguments):
    text: str = Field(description="What to say to the user.")
    reply_to: str | None = Field(default=None, description="The id of a message of this conversation that it answers.")


class SayPayload(Payload):
    place: UserDestination
    text: str
    reply_to: str | None = None
    created_at: str


class SayTool(SendingTool[SayArguments, SayPayload]):
    name = "say"
    description = "Say something to the user you work for, where they are reached, before your final answer."
    arguments = SayArguments
    payload = SayPayload

    async def prepare(self, log: Log, arguments: SayArguments, context: ToolExecutionContext) -> SayPayload:
        text = checked_text(arguments.text)
        place = await find_destination(log, context.run, needs=("text",), reply_to=arguments.reply_to)
        return SayPayload(place=place, text=text, reply_to=arguments.reply_to, created_at=now_text())

    async def perform(self, log: Log, payload: SayPayload, context: ToolExecutionContext, mark: SendMark) -> Append:
        return await plan_send_to_user(
            log,
            payload.place,
            context.run,
            mark,
            needs=("text",),
            text=payload.text,
            reply_to=payload.reply_to,
            created_at=payload.created_at,
        )

    def kind(self, payload: SayPayload) -> SendKind:
        return SendKind(payload.place, payload.text)

    def target(self, payload: SayPayload) -> str:
        return payload.place.shown
