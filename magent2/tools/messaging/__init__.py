"""The six tools that send messages to people and agents."""

from __future__ import annotations

from magent2.tools.definition import ToolDefinition
from magent2.tools.messaging.channel_send import ChannelSend
from magent2.tools.messaging.friend_send import FriendSend
from magent2.tools.messaging.say import Say
from magent2.tools.sending_tool import definition_of


def messaging_tools() -> tuple[ToolDefinition, ...]:
    return (definition_of(Say()), definition_of(FriendSend()), definition_of(ChannelSend()))
