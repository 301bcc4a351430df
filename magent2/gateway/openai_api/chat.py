"""`POST /v1/chat/completions`: each request is a session of its own, which is deleted at the end unless stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

import orjson
from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from magent2.gateway.access.auth import Identity
from magent2.gateway.instrumentation import add_audit_ids
from magent2.gateway.openai_api.errors import invalid, unsupported
from magent2.gateway.openai_api.ids import COMPLETION_PREFIX
from magent2.gateway.openai_api.mapping import ProtocolEvent, ResponseMapping
from magent2.gateway.openai_api.messages import ApiMessage, forget_response, post_message
from magent2.gateway.openai_api.requests import (
    Metadata,
    ParsedInput,
    PlacedItem,
    RequestBody,
    ShortText,
    TextFormat,
    check_choice,
    check_tool_type,
    checked_options,
    client_tool,
    output_schema,
    parse_items,
    parse_request,
)
from magent2.gateway.openai_api.responses import OPENAI_API, Key, wait_for_response
from magent2.gateway.openai_api.streams import RECORDS_FORMAT, ResponseReader, ResponseStream
from magent2.gateway.openapi import OPENAI_RESPONSE, openai_problems
from magent2.gateway.problems import Problem
from magent2.gateway.routes.dependencies import ACCESS_ERRORS, BODY_ERRORS, caller, json_body, json_response
from magent2.gateway.services import services_of
from magent2.models.json_types import JsonMapping, JsonObject
from magent2.models.run_options import ReasoningEffort, RunOptions, Verbosity

STREAM_DONE = b"data: [DONE]\n\n"
BETWEEN_TEXTS = "\n\n"  # between the texts of two turns of a run
FINISH_REASONS = {"max_output_tokens": "length", "content_filter": "content_filter"}  # of incomplete responses
NOT_CONTINUED = "the run was started again and its text has changed; send the request again"


class FunctionDefinition(RequestBody):
    """A function in `tools`."""

    name: str
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class ChatTool(RequestBody):
    """A tool of the client."""

    type: str
    function: FunctionDefinition | None = None

    def check_parameters(self, where: str = "") -> None:
        check_tool_type(self.type, where)
        if self.function is None:
            raise invalid("a tool of the type 'function' has a 'function'", f"{where}function", "missing")
        super().check_parameters(where)


class FunctionName(RequestBody):
    """`tool_choice.function`."""

    name: str = ""


class ChatToolName(RequestBody):
    """The choice of one function."""

    type: str
    function: FunctionName = FunctionName()

    def check_parameters(self, where: str = "") -> None:
        check_choice(self.type, self.function.name, f"{where}function." if self.type == "function" else where)
        super().check_parameters(where)


class JsonSchemaFormat(RequestBody):
    """`response_format.json_schema`."""

    name: str
    json_schema: JsonObject | None = Field(default=None, alias="schema")
    strict: bool | None = None
    description: str | None = None


class ResponseFormatParameter(RequestBody):
    """`response_format`."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class StreamOptions(RequestBody):
    """`stream_options`."""

    harmless: ClassVar[Mapping[str, tuple[object, ...]]] = {"include_obfuscation": (False,)}
    include_usage: bool = False


class ChatRequest(RequestBody):
    """The body of `POST /v1/chat/completions`."""

    harmless: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "n": (1,),
        "logprobs": (False,),
        "top_logprobs": (0,),
        "logit_bias": ({},),
        "seed": (),
        "stop": ([],),
        "modalities": (["text"],),
        "audio": (),
        "prediction": (),
        "service_tier": ("auto", "default"),
        "web_search_options": (),
        "functions": ([],),
        "function_call": ("none",),
        "prompt_cache_retention": (),
        "moderation": (),
    }

    model: ShortText
    messages: Annotated[list[JsonObject], Field(min_length=1)]
    stream: bool = False
    stream_options: StreamOptions | None = None
    store: bool = False
    metadata: Metadata | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    reasoning_effort: ReasoningEffort | None = None
    verbosity: Verbosity | None = None
    response_format: ResponseFormatParameter | None = None
    tools: list[ChatTool] | None = None
    tool_choice: Literal["auto", "none", "required"] | ChatToolName | None = None
    parallel_tool_calls: bool | None = None
    user: ShortText | None = None
    safety_identifier: ShortText | None = None
    prompt_cache_key: ShortText | None = None

    def run_options(self, items: list[JsonObject] | None) -> RunOptions:
        """The options for the run. Raises a problem that names the parameter that cannot be used."""
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise invalid("give 'max_completion_tokens' or 'max_tokens', not both", "max_tokens", "mutually_exclusive")
        choice = self.tool_choice
        settings: JsonObject = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "max_tokens": self.max_completion_tokens if self.max_tokens is None else self.max_tokens,
            "reasoning_effort": self.reasoning_effort,
            "verbosity": self.verbosity,
            "parallel_tool_calls": self.parallel_tool_calls,
        }
        options: JsonObject = {
            "input": items,
            "tools": [
                client_tool(made.name, made.description, made.parameters, made.strict)
                for tool in self.tools or ()
                if (made := tool.function) is not None
            ]
            or None,
            "tool_choice": choice.function.name if isinstance(choice, ChatToolName) else choice,
            "after_tool_calls": "end",
            "output_schema": _output_schema(self.response_format),
            "model_settings": {name: value for name, value in settings.items() if value is not None} or None,
        }
        return checked_options(options, CHAT_NAMES)


# Names of run options that a request calls otherwise
CHAT_NAMES = {
    "output_schema.": "response_format.json_schema.",
    "output_schema": "response_format",
    "input": "messages",
}


def _output_schema(wanted: ResponseFormatParameter | None) -> JsonObject | None:
    if wanted is None:
        return None
    if wanted.json_schema is None:
        return output_schema(TextFormat(type=wanted.type), "response_format")
    given = wanted.json_schema
    fields = {**given.model_dump(by_alias=True), "type": "json_schema"}
    return output_schema(TextFormat.model_validate(fields), "response_format")


# --- messages


def chat_input(messages: Sequence[JsonMapping]) -> ParsedInput:
    """The messages of a chat completion as input items of the Responses API."""
    items: list[PlacedItem] = []
    for place, message in enumerate(messages):
        items += _items(f"messages[{place}]", message)
    parsed = parse_items(items)
    if parsed.outputs:
        call_id = next(iter(parsed.outputs))
        raise invalid(f"messages: no tool call before has the id {call_id[:80]!r}", "messages", "unknown_call")
    return parsed


def _items(where: str, message: JsonMapping) -> list[PlacedItem]:
    role, content = message.get("role"), message.get("content")
    if role == "tool":
        output = _tool_text(where, content)
        return [(where, {"type": "function_call_output", "call_id": message.get("tool_call_id"), "output": output})]
    if role not in ("user", "assistant", "system", "developer"):
        text = f"{where}: the role of a message is user, assistant, system, developer or tool"
        raise invalid(text, f"{where}.role")
    items: list[PlacedItem] = []
    if content:
        shown = content if isinstance(content, str) else _parts(where, role, content)
        items.append((where, {"role": role, "content": shown}))
    for number, call in enumerate(message.get("tool_calls") or ()):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping):
            raise unsupported(f"{where}.tool_calls[{number}]", "only calls of functions are supported by this server")
        item: JsonObject = {
            "type": "function_call",
            "call_id": call.get("id"),
            "name": function.get("name"),
            "arguments": function.get("arguments"),
        }
        items.append((f"{where}.tool_calls[{number}]", item))
    if not items and role != "assistant":
        raise invalid(f"{where}: the message has no content", f"{where}.content", "missing")
    return items


def _parts(where: str, role: str, content: object) -> list[JsonObject]:
    """Parts of a message. Only their types are named otherwise than in the Responses API."""
    if not isinstance(content, list):
        raise invalid(f"{where}: the content of a message is text or a list of parts", f"{where}.content")
    return [_part(f"{where}.content[{number}]", role, part) for number, part in enumerate(content)]


def _part(where: str, role: str, part: object) -> JsonObject:
    if not isinstance(part, Mapping):
        raise invalid(f"{where}: a part is an object with a 'type'", where)
    match part:
        case {"type": "text"}:
            return {"type": "output_text" if role == "assistant" else "input_text", "text": part.get("text")}
        case {"type": "refusal"}:
            return {"type": "refusal", "refusal": part.get("refusal")}
        case {"type": "input_audio"}:
            return dict(part)
        case {"type": "image_url", "image_url": {"url": url, **rest}}:
            return {"type": "input_image", "image_url": url, "detail": rest.get("detail")}
        case {"type": "image_url"}:
            raise invalid(f"{where}: a part of the type 'image_url' has an 'image_url.url'", f"{where}.image_url")
        case {"type": "file", "file": dict(file)}:
            return {"type": "input_file", **file}
        case {"type": "file"}:
            raise invalid(f"{where}: a part of the type 'file' has a 'file'", f"{where}.file")
    text = f"parts of the type {str(part.get('type'))[:80]!r} are not supported by this server"
    raise unsupported(f"{where}.type", text)


def _tool_text(where: str, content: object) -> str:
    """The content of a tool message as text."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid(f"{where}: the content of a tool message is text or a list of parts", f"{where}.content")
    texts: list[str] = []
    for number, part in enumerate(content):
        match part:
            case {"type": "text", "text": str(text)}:
                texts.append(text)
            case _:
                place = f"{where}.content[{number}]"
                raise unsupported(f"{place}.type", f"{place}: the content of a tool message has parts with text only")
    return "".join(texts)


# --- the completion


def completion(mapping: ResponseMapping) -> JsonObject:
    """The chat completion of a response that is over."""
    response = mapping.response()
    texts = [item["content"][0]["text"] for item in mapping.output if item["type"] == "message"]
    message: JsonObject = {
        "role": "assistant",
        "content": BETWEEN_TEXTS.join(texts) if texts else None,
        "refusal": None,
        "annotations": [],
    }
    if mapping.calls:
        message["tool_calls"] = [tool_call(call) for call in mapping.calls]
    return {
        "id": chat_id(mapping),
        "object": "chat.completion",
        "created": response["created_at"],
        "model": response["model"],
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason(mapping)}],
        "usage": chat_usage(response["usage"]),
        "service_tier": "default",
        "system_fingerprint": None,
    }


def chat_id(mapping: ResponseMapping) -> str:
    return COMPLETION_PREFIX + mapping.id.core


def finish_reason(mapping: ResponseMapping) -> str:
    if mapping.status == "incomplete":
        return FINISH_REASONS.get(str(mapping.incomplete_reason), "length")
    return "tool_calls" if mapping.calls else "stop"


def tool_call(item: JsonMapping) -> JsonObject:
    function = {"name": item["name"], "arguments": item["arguments"]}
    return {"id": item["call_id"], "type": "function", "function": function}


def chat_usage(usage: JsonMapping | None) -> JsonObject:
    counts = usage or {}
    cached = counts.get("input_tokens_details", {}).get("cached_tokens", 0)
    reasoning = counts.get("output_tokens_details", {}).get("reasoning_tokens", 0)
    return {
        "prompt_tokens": counts.get("input_tokens", 0),
        "completion_tokens": counts.get("output_tokens", 0),
        "total_tokens": counts.get("total_tokens", 0),
        "prompt_tokens_details": {"cached_tokens": cached, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": reasoning, "audio_tokens": 0},
    }


def failure_of(mapping: ResponseMapping) -> Problem:
    if mapping.status == "cancelled":
        return Problem(409, "run_stopped", "the run was stopped")
    message = "the run failed" if mapping.error is None else str(mapping.error["message"])
    return Problem(502, failure_code(mapping), message, {"x-should-retry": "false"})


def failure_code(mapping: ResponseMapping) -> str:
    code = "server_error" if mapping.error is None else str(mapping.error["code"])
    return "run_failed" if code == "server_error" else code


class ChatChunks:
    """Makes chunks of the events of a response. A text that is begun again is continued only if it begins the same."""

    def __init__(self, mapping: ResponseMapping, *, with_usage: bool) -> None:
        self.failed = False
        self._mapping = mapping
        self._with_usage = with_usage
        self._sent = ""  # of the text of the current turn
        self._text = ""  # of the current turn, which may have been begun again
        self._texts = 0  # complete
        self._calls = 0

    def chunks(self, event: ProtocolEvent) -> list[JsonObject]:
        """The chunks of an event. After a failure there are none."""
        found: list[JsonObject] = []
        if self.failed:
            return found
        match event.type:
            case "response.created":
                found = [self._chunk({"role": "assistant", "content": ""})]
            case "response.output_item.added":
                self._text = ""
            case "response.output_text.delta":
                self._text += event.fields["delta"]
                found = self._more()
            case "response.output_text.done":
                self._text = event.fields["text"]
                found = self._more() if self._text.startswith(self._sent) else [self._fail(NOT_CONTINUED)]
                self._sent, self._texts = "", self._texts + 1
            case "response.output_item.done" if event.fields["item"]["type"] == "function_call":
                found = [self._chunk({"tool_calls": [{"index": self._calls, **tool_call(event.fields["item"])}]})]
                self._calls += 1
            case "response.completed":
                found = self._end()
            case "response.incomplete" if self._mapping.status == "incomplete":
                found = self._end()
            case "response.failed" | "response.incomplete":
                found = [self._fail(failure_of(self._mapping).detail)]
        return found

    def _more(self) -> list[JsonObject]:
        """The text that was not sent yet, as far as it continues what was sent."""
        if len(self._text) <= len(self._sent):
            return [] if self._sent.startswith(self._text) else [self._fail(NOT_CONTINUED)]
        if not self._text.startswith(self._sent):
            return [self._fail(NOT_CONTINUED)]
        new = self._text[len(self._sent) :]
        if not self._sent and self._texts:
            new = BETWEEN_TEXTS + new
        self._sent = self._text
        return [self._chunk({"content": new})]

    def _end(self) -> list[JsonObject]:
        last = self._chunk({})
        last["choices"][0]["finish_reason"] = finish_reason(self._mapping)
        if not self._with_usage:
            return [last]
        usage = chat_usage(self._mapping.response()["usage"])
        return [last, {**self._chunk({}), "choices": [], "usage": usage}]

    def _fail(self, message: str) -> JsonObject:
        self.failed = True
        code = failure_code(self._mapping)
        return {"error": {"message": message, "type": "server_error", "param": None, "code": code}}

    def _chunk(self, delta: JsonObject) -> JsonObject:
        return {
            "id": chat_id(self._mapping),
            "object": "chat.completion.chunk",
            "created": self._mapping.facts["created_at"],
            "model": self._mapping.facts["model"],
            "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}],
            **({"usage": None} if self._with_usage else {}),
        }


class ChatReader(ResponseReader):
    """Reads a response as chunks of a chat completion."""

    __slots__ = ("_chunks",)

    def use(self, chunks: ChatChunks) -> ChatReader:
        self._chunks = chunks
        return self

    def encode(self, event: ProtocolEvent) -> bytes:
        frames = b"".join(b"data: %b\n\n" % orjson.dumps(chunk) for chunk in self._chunks.chunks(event))
        self._over = self._over or self._chunks.failed
        return frames

    def closing(self) -> bytes:
        return STREAM_DONE


class ChatStream(ResponseStream):
    """The streaming response of a chat completion."""

    with_usage = False

    def make_reader(self, identity: Identity) -> ResponseReader:
        fanout = self._streams.fanout(RECORDS_FORMAT)
        chunks = ChatChunks(self._mapping, with_usage=self.with_usage)
        return ChatReader(self._bus, fanout, self._mapping, identity, -1).use(chunks)


router = APIRouter(prefix=OPENAI_API, tags=["openai"])


@router.post(
    "/chat/completions",
    operation_id="create_chat_completion",
    response_class=Response,
    responses={
        200: OPENAI_RESPONSE,
        **openai_problems(*ACCESS_ERRORS, *BODY_ERRORS, 404, 409, 410, 501, 502, 504, 507),
    },
    openapi_extra=json_body(ChatRequest),
)
async def create(request: Request, idempotency_key: Key = None) -> Response:
    """Create a chat completion, as OpenAI's API does. `model` is an agent or a scenario."""
    services = services_of(request)
    body = await parse_request(request, services, ChatRequest)
    body.check_parameters()
    parsed = chat_input(body.messages)
    message = ApiMessage(
        model=body.model,
        text=parsed.text,
        options=body.run_options(parsed.items),
        echo={"metadata": body.metadata or {}, "user": body.user},
        key=idempotency_key,
        store=body.store,
        input_param="messages",
    )
    add_audit_ids(request.scope, model=body.model)
    mapping = await post_message(services, caller(request), message)
    add_audit_ids(request.scope, session_id=mapping.id.session, envelope_id=mapping.id.envelope)

    async def forget() -> None:
        await forget_response(services, message, mapping.id)

    if body.stream:
        stream = ChatStream(services.bus, services.streams, mapping, at_end=forget)
        stream.with_usage = body.stream_options is not None and body.stream_options.include_usage
        return stream
    if not await wait_for_response(services, mapping, services.limits.response_wait_max_s):
        text = f"the run took longer than {services.limits.response_wait_max_s:g} s; use /v1/responses"
        raise Problem(504, "timeout", text, {"x-should-retry": "false"})
    await forget()
    if mapping.status not in ("completed", "incomplete"):
        raise failure_of(mapping)
    return json_response(completion(mapping))
