"""The six tools that send messages to people and agents."""

from __future__ import annotations

from magent2.tools.definition import ToolDefinition
from magent2.tools.messaging.channel_send import ChannelSend
from magent2.tools.messaging.friend_send import FriendSend
from magent2.tools.messaging.say import SayTool
from magent2.tools.messaging.send_agent_message import SendAgentMessage
from magent2.tools.messaging.send_file import SendFile
from magent2.tools.messaging.send_user_message import send_user_message_definition
from magent2.tools.sending_tool import definition_of


def messaging_tools() -> tuple[ToolDefinition, ...]:
    return (
        definition_of(SayTool()),
        definition_of(SendFile()),
        send_user_message_definition(),
        definition_of(SendAgentMessage()),
        definition_of(FriendSend()),
        definition_of(ChannelSend()),
    )
