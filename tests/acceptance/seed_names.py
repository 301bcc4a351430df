"""Every name that the seeds fix, with its home in this package.

A row has the seed that names the thing (or the section of the design: "D3", "D10", "D14"), the name as the seed writes
it, and a check that says where it lives here and what it looks like. A `Sketch` row is a name that a seed mentions and
that has no counterpart of that name; it says why. `test_seed_names.py` runs the check of each row.

Homes are written `module:attribute`. When a module is moved, its rows here move with it; a home in a module that a seed
or the design names by its path (see the `Module` rows) must not move.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Module:
    """An importable module."""

    home: str


@dataclass(frozen=True, slots=True)
class Class:
    """A class; `base` is the home of a class that it extends."""

    home: str
    base: str | None = None


@dataclass(frozen=True, slots=True)
class Function:
    """A function, a method, or a class that is called.

    `signature` is the seed's. `here` gives the annotations that differ from it, by parameter; `added` are our own
    parameters, which must be optional and come after the seed's; `*` stands for any number of them.
    """

    home: str
    signature: str
    here: Mapping[str, str] = field(default_factory=dict)
    added: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fields:
    """Fields of a model or a dataclass, as `name: type` when required and `name: type = ...` when not.

    The type `_` stands for one that the seed does not fix.
    """

    home: str
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Event:
    """An event of the contract: its `event` literal, its own fields, and its schema in `docs/schemas/`."""

    home: str
    event: str
    fields: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Route:
    """A route of the gateway, with the request's fields, its query and header parameters, and the answer's fields."""

    method: str
    path: str
    body: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    answer: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Variable:
    """An environment variable: set to `value`, the reader gives `result`, as its `attribute` when one is named."""

    reader: str
    value: str
    result: object
    attribute: str | None = None
    arguments: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True)
class Returns:
    """A call and its result, or the `attribute` of its result. `environment`: the variables that are set."""

    home: str
    arguments: tuple[object, ...]
    result: object
    attribute: str | None = None
    named: Mapping[str, object] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Raises:
    """A call that raises a `ValueError`, with exactly this message when the seed fixes one."""

    home: str
    arguments: tuple[object, ...]
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Value:
    """A constant, or an attribute of one."""

    home: str
    value: object


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that agents are offered: its parameters and which of them are required. `deferred`: it can be held."""

    parameters: tuple[str, ...]
    required: tuple[str, ...] = ()
    deferred: bool = False


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent of the default team, with tools that its allowlist has."""

    tools: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Builtin:
    """A tool of the Agents SDK that an agent may name; `enabled` without any configuration or not."""

    enabled: bool = False


@dataclass(frozen=True, slots=True)
class Text:
    """A file of the repository that has this text in it."""

    path: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Sketch:
    """Not kept under this name; why."""

    why: str


Check: TypeAlias = (
    Module
    | Class
    | Function
    | Fields
    | Event
    | Route
    | Variable
    | Returns
    | Raises
    | Value
    | Tool
    | Agent
    | Builtin
    | Text
    | Sketch
)

Names: TypeAlias = Mapping[str, Check]


@dataclass(frozen=True, slots=True)
class Row:
    seed: str
    name: str
    check: Check

    @property
    def id(self) -> str:
        return f"{self.seed}-{self.name}"


ENVELOPE = "magent2.models.envelope"
EVENTS = "magent2.models.events"
CHAT = "magent2.tools.chat.function_tools"
RUNNER = "magent2.runner.openai_agents_runner"
CONFIG = "magent2.runner.config:RunnerConfig.read"
WORKER = "magent2.worker.worker"
ADDRESS = "magent2.models.address"
DEFINITION = "magent2.tools.definition"
BLOCK_OUTCOME = "magent2.sandbox.block_outcome"
BAD_RECIPIENT = "recipient must be 'chat:{conversation_id}' or 'agent:{Name}'"
NO_CONVERSATION = "conversation_id not available for agent recipient"

BASE_FIELDS = ("id: str = ...", "conversation_id: str", "created_at: datetime = ...")
RUN_FIELDS = ("run_id: str | None = ...", "attempt: int | None = ...", "agent: str | None = ...")

SEED_000: Names = {
    "magent2/tools/chat/": Module("magent2.tools.chat"),
    "magent2/tools/chat/function_tools.py": Module(CHAT),
    "chat_send (exported)": Class("magent2.tools.chat:chat_send", "agents:FunctionTool"),
    "send_message (exported)": Function(
        "magent2.tools.chat:send_message",
        "(recipient: str, content: str, *, conversation_id: str | None = None, context: dict | None = None) -> dict",
        here={"context": "Context | None", "return": "dict[str, Any]"},
        added=("steer",),
    ),
    "_resolve_conversation_id": Function(
        f"{CHAT}:_resolve_conversation_id",
        "(recipient: str, ctx: dict | None, explicit_conversation_id: str | None) -> str",
        here={"ctx": "Context | None"},
    ),
    "_resolve_conversation_id(chat:…)": Returns(f"{CHAT}:_resolve_conversation_id", ("chat:c1", None, "other"), "c1"),
    "_resolve_conversation_id(explicit)": Returns(
        f"{CHAT}:_resolve_conversation_id", ("agent:A", {"conversation_id": "run"}, "explicit"), "explicit"
    ),
    "_resolve_conversation_id(run context)": Returns(
        f"{CHAT}:_resolve_conversation_id", ("agent:A", {"conversation_id": "run"}, None), "run"
    ),
    "_resolve_sender": Function(f"{CHAT}:_resolve_sender", "() -> str", added=("ctx",)),
    "agent:unknown": Returns(f"{CHAT}:_resolve_sender", (), "agent:unknown"),
    "_build_envelope": Function(
        f"{CHAT}:_build_envelope",
        "(conversation_id: str, sender: str, recipient: str, content: str) -> MessageEnvelope",
    ),
    "_publish": Function(f"{CHAT}:_publish", "(bus: Bus, envelope: MessageEnvelope) -> list[str]"),
    "send_message": Function(
        f"{CHAT}:send_message",
        "(recipient: str, content: str, *, conversation_id: str | None = None, context: dict | None = None) -> dict",
        here={"context": "Context | None", "return": "dict[str, Any]"},
        added=("steer",),
    ),
    "chat_send": Tool(("recipient", "content", "conversation_id"), required=("recipient", "content"), deferred=True),
    "get_bus": Function(f"{CHAT}:get_bus", "() -> Bus"),
    "_get_bus": Function(f"{CHAT}:_get_bus", "() -> Bus"),
    "set_bus_for_testing": Function(f"{CHAT}:set_bus_for_testing", "(bus: Bus | None) -> None"),
    "_TEST_BUS": Sketch("the injected bus and the cached one are one slot behind a lock, so that threads may share it"),
    "recipient message": Raises(f"{CHAT}:send_message", ("room:123", "hello"), BAD_RECIPIENT),
    "recipient message (no suffix)": Raises(f"{CHAT}:send_message", ("agent:", "hello"), BAD_RECIPIENT),
    "content message": Raises(f"{CHAT}:send_message", ("chat:c1", " "), "content must be non-empty"),
    "conversation message": Raises(f"{CHAT}:send_message", ("agent:A", "hello"), NO_CONVERSATION),
    "conversation message (resolution)": Raises(
        f"{CHAT}:_resolve_conversation_id", ("agent:A", None, None), NO_CONVERSATION
    ),
    "CHAT_TOOL_CONVERSATION_ID": Variable(
        f"{CHAT}:_resolve_conversation_id", "conv2", "conv2", arguments=("agent:A", None, None)
    ),
    "AGENT_NAME": Variable(f"{CHAT}:_resolve_sender", "DevAgent", "agent:DevAgent"),
    "REDIS_URL": Variable(
        "magent2.settings:Settings.read", "redis://localhost:6379/0", "redis://localhost:6379/0", "bus_url"
    ),
    "RedisBus": Function("magent2.bus.redis_adapter:RedisBus", "(redis_url)", added=("*",)),
    "tests/test_chat_function_tool.py": Text("tests/test_chat_function_tool.py", "class InMemoryBus"),
    "tests/test_bus_interface.py": Text("tests/test_bus_interface.py", "def test_"),
    "docs/CONTRACTS.md": Text("docs/contracts.md"),
    "docs/refs/openai-agents-sdk.md": Sketch("the installed SDK and its own documentation are the reference"),
    "just check": Text("justfile", "check:"),
}

SEED_001: Names = {
    "magent2/worker/worker.py": Module(WORKER),
    "magent2/worker/__main__.py": Module("magent2.worker.__main__"),
    "magent2/runner/openai_agents_runner.py": Module(RUNNER),
    "magent2/runner/config.py": Module("magent2.runner.config"),
    "Runner": Class(f"{WORKER}:Runner", "typing:Protocol"),
    "Runner.stream_run": Function(
        f"{WORKER}:Runner.stream_run",
        "(self, envelope: MessageEnvelope) -> Iterable[BaseStreamEvent | dict[str, Any]]",
        here={"return": "Iterable[Event]"},
    ),
    "Worker": Class(f"{WORKER}:Worker"),
    "Worker._run_and_stream": Sketch("describes the worker before this work; a lane is claimed, run and settled now"),
    "EchoRunner": Class("magent2.runner.echo:EchoRunner"),
    "EchoRunner without OPENAI_API_KEY": Returns(
        "magent2.worker.__main__:build_runner", (), "EchoRunner", "__class__.__name__"
    ),
    "OpenAIAgentsRunner with OPENAI_API_KEY": Returns(
        "magent2.worker.__main__:build_runner",
        (),
        "OpenAIAgentsRunner",
        "__class__.__name__",
        environment={"OPENAI_API_KEY": "sk-test"},  # pragma: allowlist secret
    ),
    "OpenAIAgentsRunner, OpenAIAgentsRunner(config=...)": Function(
        f"{RUNNER}:OpenAIAgentsRunner",
        "(agent: Agent, *, session_limit: int = 256) -> None",
        here={"agent": "Any = None"},
        added=("config", "sessions_max_bytes", "history_max", "max_turns", "sandbox", "provider"),
    ),
    "OpenAIAgentsRunner.stream_run": Function(
        f"{RUNNER}:OpenAIAgentsRunner.stream_run",
        "(self, envelope: MessageEnvelope) -> Iterable[BaseStreamEvent | dict[str, Any]]",
        here={"return": "Iterator[StreamedEvent]"},
    ),
    "OpenAIAgentsRunner._sessions": Text("magent2/runner/openai_agents_runner.py", "self._sessions: "),
    "OpenAIAgentsRunner._get_session": Function(
        f"{RUNNER}:OpenAIAgentsRunner._get_session",
        "(self, conversation_id: str) -> Session",
        here={"return": "MemorySession"},
    ),
    "OpenAIAgentsRunner._session_order": Sketch("an OrderedDict keeps both the sessions and their order of use"),
    "OpenAIAgentsRunner._run_streaming": Sketch(
        "an async generator, bridged to the iterator by `runner/run_stream.py`"
    ),
    "OpenAIAgentsRunner._map_event": Sketch("mapping has state per run and is a class: `EventMapper.map`"),
    "SDKRunner": Text("magent2/runner/openai_agents_runner.py", "from agents import Runner as SDKRunner"),
    "OPENAI_API_KEY": Variable(CONFIG, "sk-test", "sk-test", "api_key"),
    "AGENT_NAME": Variable(CONFIG, "DevAgent", "DevAgent", "agent_name"),
    "AGENT_MODEL": Variable(CONFIG, "gpt-x", "gpt-x", "model"),
    "AGENT_INSTRUCTIONS": Variable(CONFIG, "Be brief.", "Be brief.", "instructions"),
    "AGENT_INSTRUCTIONS_FILE": Variable(CONFIG, "{file: Be brief.}", "Be brief.", "instructions"),
    "AGENT_TOOLS": Variable(CONFIG, "chat_send, weather", ("chat_send", "weather"), "tools"),
    "TokenEvent": Event(f"{ENVELOPE}:TokenEvent", "token", ("text: str", "index: int")),
    "ToolStepEvent": Event(f"{ENVELOPE}:ToolStepEvent", "tool_step", ("name: str", "args: dict[str, Any] = ...")),
    "OutputEvent": Event(f"{ENVELOPE}:OutputEvent", "output", ("text: str",)),
    "tests/test_runner_sdk.py": Text("tests/test_runner_sdk.py", "def test_"),
    "tests/test_worker.py": Text("tests/test_worker.py", "def test_"),
}

SEED_002: Names = {
    "SessionStore": Class("magent2.sessions.store:SessionStore"),
    "InMemorySessionStore": Class("magent2.sessions.store:InMemorySessionStore", "magent2.sessions.store:SessionStore"),
    "client_message_id": Fields(f"{EVENTS}:UserMessageEvent", ("client_message_id: str | None = ...",)),
    "backend/app_agents/registry.py": Text("magent2/roster/default.toml", 'id = "default"'),
    "agent fields": Fields(
        "magent2.roster.spec:AgentSpec",
        (
            "name: str",
            "role: str = ...",
            "model: str | None = ...",
            "instructions: str = ...",
            "voice: str | None = ...",
            "tools: tuple[str, ...] = ...",
            "handoffs: tuple[str, ...] = ...",
        ),
    ),
    "supervisor": Agent(),
    "general": Agent(("WebSearchTool", "echo_context", "weather")),
    "sales": Agent(),
    "support": Agent(),
    "ToolSpec": Fields(
        "magent2.tools.registry:ToolSpec",
        (
            "name: str",
            "description: str",
            "func: Callable[..., Any]",
            "params_schema: Mapping[str, Any] = ...",
        ),
    ),
    "echo_context": Tool(("text",)),
    "weather": Tool(("city",), required=("city",)),
    "backend/app_agents/sdk_manager.py": Sketch("the gateway records mail and a worker runs it; no object does both"),
    "sdk_manager.create_agent_session": Sketch("the route POST /api/sdk/session/create does it, with its answer"),
    "sdk_manager.run_agent_turn": Sketch("a worker's run; the route POST /api/sdk/session/message waits for it"),
    "_resolve_agent_tools": Sketch("`runner/` builds an agent's tools from its allowlist, `BuiltinTools` the SDK's"),
    "BUILTIN_TOOLS_ENABLED": Variable(
        "magent2.tools.builtins:BuiltinTools.read", "FileSearchTool", frozenset({"FileSearchTool"}), "enabled"
    ),
    "SQLiteSession": Sketch("the log is the transcript; the SDK is given the history that is read from it"),
    "FunctionTool": Value("magent2.tools.builtins:FUNCTION_TOOL", "FunctionTool"),
    "FileSearchTool": Builtin(),
    "WebSearchTool": Builtin(enabled=True),
    "ComputerTool": Builtin(),
    "HostedMCPTool": Builtin(),
    "LocalShellTool": Builtin(),
    "ImageGenerationTool": Builtin(),
    "CodeInterpreterTool": Builtin(),
    "POST /api/sdk/session/create": Route(
        "post",
        "/api/sdk/session/create",
        body=("agent_name", "instructions", "model", "scenario_id", "overlay"),
        answer=("session_id", "agent_name", "model", "tools", "overlay"),
    ),
    "POST /api/sdk/session/message": Route(
        "post", "/api/sdk/session/message", body=("session_id", "client_message_id"), answer=("events", "message_id")
    ),
    "POST /api/orchestrate": Route("post", "/api/orchestrate", answer=("reason", "changed")),
    "POST /api/sdk/session/set_active_agent": Route(
        "post", "/api/sdk/session/set_active_agent", body=("session_id", "agent_name"), answer=("active_agent_id",)
    ),
    "GET /api/sdk/session/{id}/events?since=seq": Route(
        "get", "/api/sdk/session/{session_id}/events", parameters=("since",), answer=("session_id", "events")
    ),
    "POST /api/tools/execute": Route("post", "/api/tools/execute", body=("session_id", "tool", "args")),
    "GET /api/tools/list": Route("get", "/api/tools/list", answer=("tools",)),
    "GET /api/tools/config/status": Route("get", "/api/tools/config/status", answer=("builtins",)),
    "GET /api/agents": Route("get", "/api/agents", answer=("agents",)),
    "active_agent_id, scenario_id": Route(
        "get", "/api/sdk/session/{session_id}", answer=("active_agent_id", "scenario_id")
    ),
    "message": Event(f"{EVENTS}:MessageEvent", "message", ("text: str", "message_id: str | None = ...")),
    "token": Event(f"{ENVELOPE}:TokenEvent", "token", ("text: str",)),
    "handoff": Event(f"{EVENTS}:HandoffEvent", "handoff", ("target: str", "reason: str | None = ...")),
    "manual_switch": Function(
        "magent2.sessions.store:SessionStore.set_active_agent",
        "(self, session_id: str, agent: str, reason: str = 'manual_switch') -> bool",
    ),
    "useEvents": Sketch("the page's `web/src/transport/` streams, and polls at that pace where streams are blocked"),
    "adaptive polling": Text("web/src/transport/polling.ts"),
    "ToolsPanel": Text("web/src/panels/ToolsPanel.tsx", "export function ToolsPanel"),
}

SEED_003: Names = {
    "pai_agent_sdk.context": Module("magent2.context"),
    "pai_agent_sdk.agents": Module("magent2.agents"),
    "pai_agent_sdk.events": Module("magent2.events"),
    "BusMessage": Fields(
        "magent2.context:BusMessage",
        (
            "id: str = ...",
            "content: str",
            "source: str",
            "target: str | None = ...",
            "template: str | None = ...",
            "timestamp: datetime = ...",
        ),
    ),
    "BusMessage.render": Function("magent2.context:BusMessage.render", "(self) -> str"),
    "MessageBus": Function("magent2.context:MessageBus", "(maxlen: int = 500) -> None"),
    "MessageBus.subscribe": Function("magent2.context:MessageBus.subscribe", "(self, agent_id: str) -> None"),
    "MessageBus.unsubscribe": Function("magent2.context:MessageBus.unsubscribe", "(self, agent_id: str) -> None"),
    "MessageBus.send": Function("magent2.context:MessageBus.send", "(self, message: BusMessage) -> BusMessage"),
    "MessageBus.consume": Function("magent2.context:MessageBus.consume", "(self, agent_id: str) -> list[BusMessage]"),
    "MessageBus.has_pending": Function("magent2.context:MessageBus.has_pending", "(self, agent_id: str) -> bool"),
    "MessageBus.peek": Function("magent2.context:MessageBus.peek", "(self, agent_id: str) -> list[BusMessage]"),
    "MessageBus.clear": Function("magent2.context:MessageBus.clear", "(self) -> None"),
    "len(bus)": Function("magent2.context:MessageBus.__len__", "(self) -> int"),
    "AgentContext": Function(
        "magent2.context:AgentContext", "(env: Any) -> None", here={"env": "Any = None"}, added=("maxlen",)
    ),
    "AgentContext.send_message": Function(
        "magent2.context:AgentContext.send_message",
        "(self, message: BusMessage) -> None",
        here={"return": "BusMessage"},
    ),
    "AgentContext.consume_messages": Function(
        "magent2.context:AgentContext.consume_messages", "(self) -> list[BusMessage]"
    ),
    "AgentContext.create_subagent_context": Function(
        "magent2.context:AgentContext.create_subagent_context", "(self, name: str) -> AgentContext"
    ),
    "create_agent": Function(
        "magent2.agents:create_agent",
        "(model: str) -> AgentRuntime",
        here={"model": "str | Model"},
        added=("instructions", "tools", "handoffs", "model_settings", "name", "ctx", "max_turns"),
    ),
    "runtime.ctx": Fields("magent2.agents:AgentRuntime", ("ctx: AgentContext",)),
    "stream_agent": Function(
        "magent2.agents:stream_agent",
        "(runtime: AgentRuntime, prompt: str) -> AsyncIterator[Streamer]",
        here={"prompt": "str | Sequence[InputItem]"},
        added=("history",),
    ),
    "streamer (async for)": Function(
        "magent2.agents:Streamer.__anext__", "(self) -> Any", here={"return": "StreamEvent"}
    ),
    "event.event": Fields("magent2.events:StreamEvent", ("event: BaseStreamEvent",)),
    "inject_bus_messages": Function(
        "magent2.agents:inject_bus_messages",
        "(ctx: AgentContext) -> Any",
        here={"return": "BusInjection"},
        added=("report",),
    ),
    '<bus-message source="…">': Returns(
        "magent2.context.block:bus_message_block",
        ("user", "Stop"),
        '<bus-message source="user">\nStop\n</bus-message>',
    ),
    "MessageReceivedEvent": Fields(
        "magent2.events:MessageReceivedEvent",
        ("event: Literal['message_received'] = ...", "messages: tuple[BusMessage, ...] = ..."),
    ),
}

SEED_004: Names = {
    "ToolDefinition": Fields(
        f"{DEFINITION}:ToolDefinition",
        (
            "tool: ToolSignature",
            "returns: Mapping[str, Any]",
            "execute: _",
            "execute_deferred: _ = ...",
            "visible_by_default: _ = ...",
        ),
    ),
    "ToolExecutionResult": Fields(
        f"{DEFINITION}:ToolExecutionResult",
        (
            "tool_message: Any",
            "typed_result: R",
            "skip_turn: bool = ...",
            "deferred_payload: Mapping[str, Any] | None = ...",
        ),
    ),
    "ToolExecutionContext": Class(f"{DEFINITION}:ToolExecutionContext"),
    "ToolExecutionContext.pythonExecution": Value(f"{DEFINITION}:ToolExecutionContext.python_execution", property),
    "executeDeferred": Sketch("`execute_deferred` plans the append and does not send, so that a block is one append"),
    "RlmStepToolCallResult": Sketch("a call in a block holds its send in the scope of the block, not in a result"),
    "rlmStepToolCall": Sketch("a call in a block is made by the tool `run_python` (`sandbox/python_tool.py`)"),
    "DeferredEntry": Class("magent2.tools.interface:HeldSend"),
    "rlmDeferredFlush": Sketch("nothing is flushed one by one: the append that ends the block has all its sends"),
    "SayDeferredPayload": Fields(
        "magent2.tools.messaging.user_messages:SayPayload",
        ("destination: UserDestination", "text: str", "reply_to: str | None = ..."),
    ),
    "SayDeferredPayload.connector, targetId": Fields(
        "magent2.tools.messaging.user_messages:UserDestination", ("connector: str", "target: str")
    ),
    "deferred payload of send_file": Fields(
        "magent2.tools.messaging.user_messages:FilePayload",
        ("destination: UserDestination", "file: AttachmentFacts", "text: str"),
    ),
    "deferred payload of send_user_message": Fields(
        "magent2.tools.messaging.directory_messages:UserMessagePayload",
        ("agent: str", "text: str", "user: str", "swarm: str | None"),
    ),
    "deferred payload of send_agent_message": Fields(
        "magent2.tools.messaging.agent_messages:AgentMessagePayload",
        ("target: AgentTarget", "text: str", "steering: bool = ..."),
    ),
    "deferred payload of friend_send": Fields(
        "magent2.tools.messaging.directory_messages:FriendPayload", ("user: str", "text: str", "nametag: str")
    ),
    "deferred payload of channel_send": Fields(
        "magent2.tools.messaging.directory_messages:ChannelPayload",
        ("channel: str", "sender_username: str", "text: str", "mentions: list[str]"),
    ),
    "say": Tool(("text", "now"), required=("text",), deferred=True),
    "send_file": Tool(("path", "send_as", "text", "now"), required=("path",), deferred=True),
    "send_user_message": Tool(("text", "wait", "now"), required=("text",), deferred=True),
    "send_agent_message": Tool(("text", "steering", "now"), required=("text",), deferred=True),
    "friend_send": Tool(("nametag", "text", "now"), required=("nametag", "text"), deferred=True),
    "channel_send": Tool(("channel", "text", "mentions", "now"), required=("channel", "text"), deferred=True),
    "[Messages: N sent]": Returns(f"{BLOCK_OUTCOME}:sent_text", (3,), "\n\n[Messages: 3 sent]"),
    "[Messages: N NOT sent (script failed)]": Returns(
        f"{BLOCK_OUTCOME}:not_sent_text", (2,), "\n\n[Messages: 2 NOT sent (script failed)]"
    ),
    "no message on zero deferred": Returns(f"{BLOCK_OUTCOME}:sent_text", (0,), ""),
    "no message on zero discarded": Returns(f"{BLOCK_OUTCOME}:not_sent_text", (0,), ""),
    "wait: true bypasses": Returns(
        "magent2.tools.messaging.directory_messages:UserMessageArguments",
        (),
        True,
        "urgent",
        {"text": "a", "wait": True},
    ),
    "steering: true bypasses": Returns(
        "magent2.tools.messaging.agent_messages:AgentMessageArguments",
        (),
        True,
        "urgent",
        {"text": "a", "steering": True},
    ),
    "now: true bypasses": Returns(
        "magent2.tools.messaging.user_messages:SayArguments", (), True, "urgent", {"text": "a", "now": True}
    ),
    "deferred without now": Returns(
        "magent2.tools.messaging.user_messages:SayArguments", (), False, "urgent", {"text": "a"}
    ),
    "doc/PLUGINS.md": Text("docs/writing-a-tool.md", "## Deferred sends"),
    "monty-python README": Text("docs/python-blocks.md"),
}

DESIGN_3: Names = {
    "magent2/models/envelope.py": Module(ENVELOPE),
    "MessageEnvelope": Fields(
        f"{ENVELOPE}:MessageEnvelope",
        (
            "id: str = ...",
            "conversation_id: str",
            "sender: str",
            "recipient: str",
            "type: Literal['message', 'control'] = ...",
            "content: str | None = ...",
            "metadata: dict[str, Any] = ...",
            "created_at: datetime = ...",
        ),
    ),
    "BaseStreamEvent": Fields(f"{ENVELOPE}:BaseStreamEvent", BASE_FIELDS),
    "TokenEvent": Event(f"{ENVELOPE}:TokenEvent", "token", (*BASE_FIELDS, "text: str", "index: int")),
    "ToolStepEvent": Event(
        f"{ENVELOPE}:ToolStepEvent",
        "tool_step",
        (
            *BASE_FIELDS,
            "name: str",
            "args: dict[str, Any] = ...",
            "result_summary: str | None = ...",
            "status: Literal['start', 'success', 'error'] | None = ...",
            "error: str | None = ...",
            "duration_ms: int | None = ...",
            "tool_call_id: str | None = ...",
        ),
    ),
    "OutputEvent": Event(
        f"{ENVELOPE}:OutputEvent", "output", (*BASE_FIELDS, "text: str", "usage: dict[str, Any] | None = ...")
    ),
    "magent2/bus/interface.py": Module("magent2.bus.interface"),
    "BusMessage": Fields(
        "magent2.bus.interface:BusMessage", ("topic: str", "payload: dict[str, Any]", "id: str = ...")
    ),
    "Bus": Class("magent2.bus.interface:Bus", "typing:Protocol"),
    "Bus.publish": Function("magent2.bus.interface:Bus.publish", "(self, topic: str, message: BusMessage) -> str"),
    "Bus.read": Function(
        "magent2.bus.interface:Bus.read",
        "(self, topic: str, last_id: str | None = None, limit: int = 100) -> Iterable[BusMessage]",
    ),
    "chat:{conversation_id}": Returns(f"{ADDRESS}:chat_topic", ("c1",), "chat:c1"),
    "chat:{agent_name}": Returns(f"{ADDRESS}:chat_topic", ("Dev",), "chat:Dev"),
    "stream:{conversation_id}": Returns(f"{ADDRESS}:stream_topic", ("c1",), "stream:c1"),
    "control:{agent_name}": Returns(f"{ADDRESS}:control_topic", ("Dev",), "control:Dev"),
    "magent2/worker/worker.py": Module(WORKER),
    "Runner.stream_run": Function(f"{WORKER}:Runner.stream_run", "(self, envelope)"),
    "Worker": Function(f"{WORKER}:Worker", "(agent_name: str, bus: Bus, runner: Runner) -> None", added=("lease_s",)),
    "Worker.process_available": Function(
        f"{WORKER}:Worker.process_available", "(self, limit: int) -> int", here={"limit": "int = 100"}
    ),
    "OPENAI_API_KEY": Variable(CONFIG, "sk-test", "sk-test", "api_key"),
    "AGENT_NAME": Variable(CONFIG, "DevAgent", "DevAgent", "agent_name"),
    "AGENT_MODEL": Variable(CONFIG, "gpt-x", "gpt-x", "model"),
    "AGENT_INSTRUCTIONS": Variable(CONFIG, "Be brief.", "Be brief.", "instructions"),
    "AGENT_INSTRUCTIONS and AGENT_INSTRUCTIONS_FILE": Raises(
        CONFIG,
        ({"AGENT_INSTRUCTIONS": "a", "AGENT_INSTRUCTIONS_FILE": "b"},),
    ),
    "AGENT_TOOLS": Variable(CONFIG, "chat_send", ("chat_send",), "tools"),
    "MAGENT2_BUS_URL": Variable("magent2.settings:Settings.read", "memory://", "memory://", "bus_url"),
    "MAGENT2_BUS_URL before REDIS_URL": Returns(
        "magent2.settings:Settings.read",
        ({"MAGENT2_BUS_URL": "memory://", "REDIS_URL": "redis://localhost"},),
        "memory://",
        "bus_url",
    ),
    "bus/connect.py": Function(
        "magent2.bus.connect:connect", "(url: str | None = None) -> Engine", added=("settings",)
    ),
    "create_app(bus)": Function("magent2.gateway.app:create_app", "(bus: Bus) -> FastAPI", added=("*",)),
    "context.BusMessage": Class("magent2.context:BusMessage", "pydantic:BaseModel"),
    "read_blocking": Function("magent2.bus.interface:Engine.read_blocking", "(self, topic)", added=("*",)),
    "run_id, attempt, agent": Fields(f"{EVENTS}:RunFields", RUN_FIELDS),
    "seq": Route("get", "/stream/{conversation_id}", parameters=("since", "last-event-id")),
    "user_message": Event(f"{EVENTS}:UserMessageEvent", "user_message"),
    "session": Event(f"{EVENTS}:SessionEvent", "session", ("status: Literal['created', 'updated', 'deleted']",)),
    "run": Event(
        f"{EVENTS}:RunEvent",
        "run",
        ("status: Literal['started', 'finished', 'failed', 'stopped', 'restarted']", *RUN_FIELDS),
    ),
    "message": Event(f"{EVENTS}:MessageEvent", "message", ("text: str", *RUN_FIELDS)),
    "handoff": Event(f"{EVENTS}:HandoffEvent", "handoff", RUN_FIELDS),
    "message_received": Event(f"{EVENTS}:ReceiptEvent", "message_received", RUN_FIELDS),
    "block": Event(f"{EVENTS}:BlockEvent", "block", RUN_FIELDS),
    "approval": Event(f"{EVENTS}:ApprovalEvent", "approval", RUN_FIELDS),
    "error": Event(f"{EVENTS}:ErrorEvent", "error", RUN_FIELDS),
    "gap": Event(f"{EVENTS}:GapEvent", "gap"),
    "end": Event(f"{EVENTS}:EndEvent", "end"),
}

DESIGN_10: Names = {
    "POST /send": Route(
        "post",
        "/send",
        body=("id", "conversation_id", "sender", "recipient", "type", "content", "metadata", "created_at"),
        answer=("envelope_id", "seq"),
    ),
    "GET /stream/{conversation_id}": Route("get", "/stream/{conversation_id}", parameters=("since", "last-event-id")),
    "/health": Route("get", "/health"),
    "/ready": Route("get", "/ready"),
    "/metrics": Route("get", "/metrics"),
    "one stream route for many sessions": Route("get", "/api/stream"),
    "admin": Value("magent2.models.principal:ADMIN_SCOPE", "admin"),
    "user:{name}": Value("magent2.models.principal:ADMIN.name", "user:local"),
    "code": Fields("magent2.models.api.base:ProblemDocument", ("code: str",)),
    "bus/delivery.py": Sketch("the check stays in the delivery of mail, whose module the second plan moves to `mail/`"),
}

DESIGN_14: Names = {
    "tools/chat/": Module("magent2.tools.chat"),
    "runner/": Module("magent2.runner"),
    "worker/": Module("magent2.worker"),
    "sessions/": Module("magent2.sessions"),
    "roster/": Module("magent2.roster"),
    "tools/": Module("magent2.tools"),
    "gateway/": Module("magent2.gateway"),
    "context/": Module("magent2.context"),
    "agents/": Module("magent2.agents"),
    "events.py": Module("magent2.events"),
    "sandbox/": Module("magent2.sandbox"),
    "connectors/": Module("magent2.connectors"),
    "web/": Text("web/package.json"),
    "docs/contracts.md": Text("docs/contracts.md"),
    "docs/writing-a-tool.md": Text("docs/writing-a-tool.md", "## Deferred sends"),
    "docs/python-blocks.md": Text("docs/python-blocks.md"),
}

TABLE: dict[str, Names] = {
    "000": SEED_000,
    "001": SEED_001,
    "002": SEED_002,
    "003": SEED_003,
    "004": SEED_004,
    "D3": DESIGN_3,
    "D10": DESIGN_10,
    "D14": DESIGN_14,
}


def rows() -> Iterator[Row]:
    for seed, names in TABLE.items():
        for name, check in names.items():
            yield Row(seed, name, check)
