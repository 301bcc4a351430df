"""`send_agent_message`: to an agent by name, to the parent, or to whoever wrote last; a steer, if it is urgent."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from magent2.bus.log import Log
from magent2.bus.operations import Append, Condition, Write
from magent2.sessions.steering import STEER_MAX_CHARS
from magent2.tools.definition import ToolExecutionContext
from magent2.tools.interface import SendMark
from magent2.tools.messaging.common import AgentMail, checked_text, now_text, plan_mail, sender_of
from magent2.tools.messaging.long_text import SPILL_CHARS, SPILLED_MAX_CHARS, attach_long_text, with_attachments
from magent2.tools.messaging.targets import AgentTarget, check_contact, find_target
from magent2.tools.sending_tool import Arguments, Payload, SendingTool


class AgentMessageArguments(Arguments):
    text: str = Field(description="What to tell the agent. A long text goes as an attachment.")
    agent: str | None = Field(
        default=None,
        description='The agent\'s name; in a swarm also the "@nametag" of a contact. Left out: your parent, or else'
        " whoever wrote to you last.",
    )
    steering: bool = Field(default=False, description="Send at once, into the run that the agent is in.")

    @property
    def urgent(self) -> bool:
        return self.now or self.steering


class AgentMessagePayload(Payload):
    target: AgentTarget
    text: str
    attachments: list[dict[str, Any]] = Field(default_factory=list)
    steering: bool = False
    created_at: str


class SendAgentMessage(SendingTool[AgentMessageArguments, AgentMessagePayload]):
    name = "send_agent_message"
    description = (
        "Send a message to another agent: by name, to your parent, or to whoever wrote to you last."
        " With steering=True it reaches the run that the agent is in, at once."
    )
    arguments = AgentMessageArguments
    payload = AgentMessagePayload

    async def prepare(
        self, log: Log, arguments: AgentMessageArguments, context: ToolExecutionContext
    ) -> AgentMessagePayload:
        text = checked_text(arguments.text, SPILLED_MAX_CHARS)
        target = await find_target(log, context.run, arguments.agent)
        shown, attachments = await attach_long_text(log, text, STEER_MAX_CHARS if arguments.steering else SPILL_CHARS)
        return AgentMessagePayload(
            target=target, text=shown, attachments=attachments, steering=arguments.steering, created_at=now_text()
        )

    async def perform(
        self, log: Log, payload: AgentMessagePayload, context: ToolExecutionContext, mark: SendMark
    ) -> Append:
        run, target = context.run, payload.target
        conditions: list[Condition] = await check_contact(log, target)
        metadata: dict[str, Any] = {"origin": {"agent": run.agent, "conversation_id": run.conversation_id}}
        if payload.attachments:
            metadata["attachments"] = payload.attachments
        letter = AgentMail(
            conversation=target.conversation_id,
            agent=target.agent,
            owner=run.principal if target.user is None else f"user:{target.user}",
            sender=sender_of(run, target.agent, target.conversation_id),
            text=payload.text,
            created_at=payload.created_at,
            metadata=metadata,
            steer=payload.steering,
        )
        mail = await plan_mail(log, letter, run, mark)
        return with_attachments(mail, payload.attachments).merge(Write(conditions=tuple(conditions)))

    def target(self, payload: AgentMessagePayload) -> str:
        return payload.target.shown
