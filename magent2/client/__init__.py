"""The Python client of a gateway: `Client` for threads, `AsyncClient` for event loops; the same names on both."""

from magent2.client.asynchronous import AsyncClient
from magent2.client.synchronous import Client
from magent2.client.values import (
    AgentInfo,
    AgentReceipt,
    Answer,
    Approval,
    Conversation,
    ConversationPage,
    EventPage,
    Letter,
    LetterPage,
    Receipt,
    Sent,
    Steered,
    Stopping,
    StreamEvent,
    ToolResult,
)

__all__ = [
    "AgentInfo",
    "AgentReceipt",
    "Answer",
    "Approval",
    "AsyncClient",
    "Client",
    "Conversation",
    "ConversationPage",
    "EventPage",
    "Letter",
    "LetterPage",
    "Receipt",
    "Sent",
    "Steered",
    "Stopping",
    "StreamEvent",
    "ToolResult",
]
