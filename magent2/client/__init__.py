"""The Python client of a gateway: `Client` for threads, `AsyncClient` for asyncio, with the same methods."""

from magent2.client.async_client import AsyncClient
from magent2.client.results import (
    ApprovalCallback,
    AsyncApprovalCallback,
    ConversationEvent,
    Decision,
    EventPage,
    MessageReply,
    SentMessage,
    SteeredMessage,
    ToolResult,
)
from magent2.client.sync_client import Client
from magent2.client.uploads import FileSource
from magent2.models.api.administration import AgentInfo, DeadLetterInfo, DeadLetterPage, DeadLettersResponse
from magent2.models.api.files import FileInfo, FileList
from magent2.models.api.messages import AgentReceipt, ApprovalInfo, MessageReceipt
from magent2.models.api.schedules import ScheduleDetail, ScheduleInfo, ScheduleList, SlotInfo
from magent2.models.api.sessions import Conversation, ConversationPage, StopResponse
from magent2.models.api.webhooks import WebhookDelivery, WebhookInfo

__all__ = [
    "AgentInfo",
    "AgentReceipt",
    "ApprovalCallback",
    "ApprovalInfo",
    "AsyncApprovalCallback",
    "AsyncClient",
    "Client",
    "Conversation",
    "ConversationEvent",
    "ConversationPage",
    "DeadLetterInfo",
    "DeadLetterPage",
    "DeadLettersResponse",
    "Decision",
    "EventPage",
    "FileInfo",
    "FileList",
    "FileSource",
    "MessageReceipt",
    "MessageReply",
    "ScheduleDetail",
    "ScheduleInfo",
    "ScheduleList",
    "SentMessage",
    "SlotInfo",
    "SteeredMessage",
    "StopResponse",
    "ToolResult",
    "WebhookDelivery",
    "WebhookInfo",
]
