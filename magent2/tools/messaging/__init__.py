"""The six tools that send messages to people and agents."""

from __future__ import annotations

from magent2.tools.definition import ToolDefinition
from magent2.tools.messaging.agent_messages import SendAgentMessage
from magent2.tools.messaging.directory_messages import ChannelSend, FriendSend, SendUserMessage
from magent2.tools.messaging.user_messages import SayTool, SendFile
from magent2.tools.sending import definition_of


def messaging_tools() -> tuple[ToolDefinition, ...]:
    return (
        definition_of(SayTool()),
        definition_of(SendFile()),
        definition_of(SendUserMessage()),
        definition_of(SendAgentMessage()),
        definition_of(FriendSend()),
        definition_of(ChannelSend()),
    )
