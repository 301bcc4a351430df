"""The bodies of requests to `/v1`, parsed. What cannot be honoured is refused by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request

from magent2.gateway.limits.http import check_json, check_json_values, read_body
from magent2.gateway.openai_api.errors import invalid, unsupported
from magent2.gateway.openai_api.files import parse_file_part
from magent2.gateway.problems import Problem
from magent2.gateway.services import Services
from magent2.models.api.messages import WhenBusy
from magent2.models.json_types import JsonMapping, JsonObject
from magent2.models.run_options import (
    FILE_PARTS,
    ReasoningEffort,
    RunOptions,
    Verbosity,
)

METADATA_MAX = 16
METADATA_KEY_MAX_CHARS, METADATA_VALUE_MAX_CHARS = 64, 512
SHORT_TEXT_MAX_CHARS = 256  # of names and identifiers in a request
TOOL_CALLS_INCLUDED = "magent2:tool_calls"  # value of `include`: the steps of the agents' own tools are items

ShortText: TypeAlias = Annotated[str, Field(max_length=SHORT_TEXT_MAX_CHARS)]
Metadata: TypeAlias = Annotated[
    dict[
        Annotated[str, Field(max_length=METADATA_KEY_MAX_CHARS)],
        Annotated[str, Field(max_length=METADATA_VALUE_MAX_CHARS)],
    ],
    Field(max_length=METADATA_MAX),
]


class RequestBody(BaseModel):
    """A body. `harmless` are parameters that change nothing as long as they have one of these values."""

    model_config = ConfigDict(extra="allow", populate_by_name=True)
    harmless: ClassVar[Mapping[str, tuple[object, ...]]] = {}

    def check_parameters(self) -> None:
        """Refuse parameters that would have no effect."""
        for name, value in (self.model_extra or {}).items():
            if name not in self.harmless:
                raise invalid(f"unknown parameter: {name[:80]!r}", name, "unknown_parameter")
            if value is not None and value not in self.harmless[name]:
                raise unsupported(name, f"{name!r} with this value is not supported by this server; leave it out")


class ConversationReference(BaseModel):
    """A session, as the Responses API names it."""

    id: ShortText


class ReasoningParameters(RequestBody):
    harmless: ClassVar[Mapping[str, tuple[object, ...]]] = {"summary": (), "generate_summary": ()}
    effort: ReasoningEffort | None = None


class TextFormat(RequestBody):
    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str = "output"
    json_schema: JsonObject | None = Field(default=None, alias="schema")
    strict: bool | None = None
    description: str | None = None


class TextParameters(RequestBody):
    format: TextFormat | None = None
    verbosity: Verbosity | None = None


class ResponseTool(RequestBody):
    type: str
    name: str = ""
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class ToolName(BaseModel):
    type: Literal["function"]
    name: str


class ResponseRequest(RequestBody):
    """The body of `POST /v1/responses`."""

    harmless: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "top_logprobs": (0,),
        "truncation": ("disabled",),
        "service_tier": ("auto", "default"),
        "max_tool_calls": (),
        "prompt": (),
        "prompt_cache_retention": (),
        "context_management": (),
        "stream_options": ({"include_obfuscation": False}, {}),
        "moderation": (),
    }

    model: ShortText | None = None
    input: str | list[JsonObject] | None = None
    instructions: str | None = None
    conversation: ShortText | ConversationReference | None = None
    previous_response_id: Annotated[str, Field(max_length=2_000)] | None = None
    background: bool = False
    stream: bool = False
    store: bool = True
    include: list[str] = []
    metadata: Metadata | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    max_output_tokens: int | None = None
    reasoning: ReasoningParameters | None = None
    text: TextParameters | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: Literal["auto", "none", "required"] | ToolName | None = None
    parallel_tool_calls: bool | None = None
    user: ShortText | None = None
    safety_identifier: ShortText | None = None
    prompt_cache_key: ShortText | None = None
    when_busy: WhenBusy = "queue"

    @property
    def conversation_id(self) -> str | None:
        return self.conversation.id if isinstance(self.conversation, ConversationReference) else self.conversation

    def check(self) -> None:
        """Refuse what cannot be honoured, and parameters that exclude each other."""
        self.check_parameters()
        if self.reasoning is not None:
            _check_part(self.reasoning, "reasoning")
        if self.text is not None:
            _check_part(self.text, "text")
        for place, name in enumerate(self.include):
            if name != TOOL_CALLS_INCLUDED:
                text = f"include: {name[:80]!r} is not supported by this server; it has {TOOL_CALLS_INCLUDED!r}"
                raise unsupported(f"include[{place}]", text)
        if self.conversation is not None and self.previous_response_id is not None:
            raise invalid(
                "give 'conversation' or 'previous_response_id', not both", "previous_response_id", "mutually_exclusive"
            )
        if not self.store and self.background:
            text = "a background response must be stored; leave 'store' out or set it to true"
            raise invalid(text, "store", "unsupported_value")
        if not self.store and (self.conversation is not None or self.previous_response_id is not None):
            text = "'store': false deletes the session at the end, so it needs one of its own; leave the id out"
            raise invalid(text, "store", "unsupported_value")

    def run_options(self, items: list[JsonObject] | None) -> RunOptions:
        """The options for the run. Raises a problem that names the parameter that cannot be used."""
        tool_choice = self.tool_choice.name if isinstance(self.tool_choice, ToolName) else self.tool_choice
        options: JsonObject = {
            "instructions": self.instructions or None,
            "input": items,
            "tools": [_response_tool(place, tool) for place, tool in enumerate(self.tools or ())] or None,
            "tool_choice": tool_choice,
            "after_tool_calls": None if self.store else "end",
            "output_schema": output_schema(None if self.text is None else self.text.format),
            "model_settings": self._model_settings(),
        }
        return checked_options(options, RESPONSE_NAMES)

    def _model_settings(self) -> JsonObject | None:
        settings: JsonObject = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "max_tokens": self.max_output_tokens,
            "reasoning_effort": None if self.reasoning is None else self.reasoning.effort,
            "verbosity": None if self.text is None else self.text.verbosity,
            "parallel_tool_calls": self.parallel_tool_calls,
        }
        given = {name: value for name, value in settings.items() if value is not None}
        return given or None

    def echo(self) -> JsonObject:
        """The parameters that the response object repeats and that are not options of the run."""
        verbosity = None if self.text is None else self.text.verbosity
        reasoning = self.reasoning or ReasoningParameters()
        return {
            "tool_choice": self.tool_choice.model_dump()
            if isinstance(self.tool_choice, ToolName)
            else (self.tool_choice or "auto"),
            "truncation": "disabled",
            "parallel_tool_calls": True if self.parallel_tool_calls is None else self.parallel_tool_calls,
            "text": {} if verbosity is None else {"verbosity": verbosity},
            "top_p": 1.0 if self.top_p is None else self.top_p,
            "temperature": 1.0 if self.temperature is None else self.temperature,
            "presence_penalty": self.presence_penalty or 0.0,
            "frequency_penalty": self.frequency_penalty or 0.0,
            "top_logprobs": 0,
            "reasoning": {"effort": reasoning.effort, "summary": None},
            "max_output_tokens": self.max_output_tokens,
            "max_tool_calls": None,
            "service_tier": "default",
            "metadata": self.metadata or {},
            "user": self.user,
            "safety_identifier": self.safety_identifier,
            "prompt_cache_key": self.prompt_cache_key,
        }


# Names of run options that a request calls otherwise
RESPONSE_NAMES = {
    "model_settings.max_tokens": "max_output_tokens",
    "model_settings.reasoning_effort": "reasoning.effort",
    "model_settings.verbosity": "text.verbosity",
    "output_schema": "text.format",
}


def _check_part(part: RequestBody, name: str) -> None:
    try:
        part.check_parameters()
    except Problem as problem:
        problem.fields["param"] = f"{name}.{problem.fields['param']}"
        raise


def _response_tool(place: int, tool: ResponseTool) -> JsonObject:
    if tool.type != "function":
        text = f"tools of the type {tool.type[:80]!r} are not supported by this server; an agent has its own tools"
        raise unsupported(f"tools[{place}].type", text)
    return client_tool(tool.name, tool.description, tool.parameters, tool.strict)


def client_tool(name: str, description: str | None, parameters: JsonObject | None, strict: bool | None) -> JsonObject:
    """A tool of the client, as an option of the run."""
    shown = {
        "name": name,
        "description": description or "",
        "parameters": parameters or {"type": "object", "properties": {}},
    }
    return shown if strict is None else {**shown, "strict": strict}


def output_schema(wanted: TextFormat | None, param: str = "text.format") -> JsonObject | None:
    """The schema of the output, as an option of the run. `param` is what the request calls it."""
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return {"name": "object", "schema": {"type": "object"}, "strict": False}
    if wanted.json_schema is None:
        raise invalid(f"{param}: a format of the type json_schema has a schema", param, "missing")
    strict = True if wanted.strict is None else wanted.strict
    return {"name": wanted.name, "schema": wanted.json_schema, "strict": strict, "description": wanted.description}


def checked_options(options: JsonObject, names: Mapping[str, str]) -> RunOptions:
    """The options as a model. Raises a problem that names the parameter of the request."""
    given = {name: value for name, value in options.items() if value is not None}
    try:
        return RunOptions.model_validate(given)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
        path = ".".join(str(step) for step in fault["loc"])
        param = next((shown + path.removeprefix(own) for own, shown in names.items() if path.startswith(own)), path)
        param = param.removeprefix("model_settings.") or "input"
        raise invalid(f"{param}: {fault['msg'].removeprefix('Value error, ')}", param) from None


B = TypeVar("B", bound=RequestBody)


async def parse_request(request: Request, services: Services, shape: type[B]) -> B:
    """Parse a body. Raises a problem that names the field that cannot be used."""
    check_json(request.scope)
    limits = replace(services.limits, body_max_bytes=services.limits.inline_body_max_bytes)
    body = await read_body(request.scope, request.receive, limits)
    try:
        parsed = shape.model_validate_json(body)
    except ValidationError as error:
        check_json_values(body)
        fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
        if fault["type"] == "json_invalid":
            raise invalid(f"the body is not JSON: {fault['msg']}", None, "bad_json") from None
        param = ".".join(str(step) for step in fault["loc"])
        raise invalid(f"{param}: {fault['msg']}", param) from None
    check_json_values(body)
    return parsed


# --- input


class ParsedInput(BaseModel):
    """The input of a request: the items for the model, the text that people see, and what the items refer to.

    `outputs` are outputs of calls that are not among the items: those of a run that waits. `refers_to` is the id of the
    last item that the input only refers to. The items before it are in the session already.
    """

    text: str
    items: list[JsonObject] | None = None
    outputs: dict[str, object] = {}
    refers_to: str | None = None


def parse_input(given: str | Sequence[JsonMapping] | None, *, continues: bool = False) -> ParsedInput:
    """Parse `input`. Raises a problem that names the item that cannot be used.

    With `continues`, the session has the calls already: repeated ones are left out, and all outputs are for it.
    """
    if isinstance(given, str):
        if not given.strip():
            raise invalid("'input' is blank; give some text", "input", "missing")
        return ParsedInput(text=given)
    if not given:
        raise invalid("the request has no 'input'", "input", "missing")
    references = [place for place, item in enumerate(given) if item.get("type") == "item_reference"]
    after = references[-1] + 1 if references else 0
    refers_to = str(given[references[-1]].get("id")) if references else None
    parsed = [item for place, one in enumerate(given[after:], after) if (item := _input_item(place, one))]
    items, outputs = _without_outputs(parsed, continues=continues or bool(references))
    return ParsedInput(text=_shown_text(items), items=_simplified(items), outputs=outputs, refers_to=refers_to)


def _without_outputs(parsed: list[JsonObject], *, continues: bool) -> tuple[list[JsonObject], dict[str, object]]:
    """Split items into those for the model and the outputs, by call, that a run of the session waits for."""
    if continues:
        parsed = [item for item in parsed if item.get("type") != "function_call"]
    called = {item["call_id"] for item in parsed if item.get("type") == "function_call"}
    outputs = {
        item["call_id"]: item["output"]
        for item in parsed
        if item.get("type") == "function_call_output" and item["call_id"] not in called
    }
    return [item for item in parsed if item.get("call_id") not in outputs], outputs


def _input_item(place: int, item: JsonMapping) -> JsonObject | None:
    """An item as the model gets it; `None` for an item of ours, which is shown to clients and not read."""
    kind = item.get("type") or "message"
    if kind == "message":
        return _message_item(place, item)
    if kind == "function_call":
        return _call_item(place, item)
    if kind == "function_call_output":
        call_id, output = _output(place, item)
        return {"type": kind, "call_id": call_id, "output": output}
    if str(kind).startswith("magent2:"):
        return None
    text = f"input items of the type {str(kind)[:80]!r} are not supported by this server"
    raise unsupported(f"input[{place}].type", text)


def _simplified(items: list[JsonObject]) -> list[JsonObject] | None:
    """`None` if the items are one plain message of the user: its text says it all."""
    if len(items) == 1 and items[0].get("role") == "user" and isinstance(items[0]["content"], str):
        return None
    return items or None


def _shown_text(items: Sequence[JsonMapping]) -> str:
    """The text that people see: that of the last message of the user."""
    texts = [_text_of(item) for item in items if item.get("role") == "user"]
    return next((text for text in reversed(texts) if text), "")


def _text_of(item: JsonMapping) -> str:
    content = item["content"]
    if isinstance(content, str):
        return content
    return "\n".join(str(part["text"]) for part in content if "text" in part)


def _message_item(place: int, item: JsonMapping) -> JsonObject:
    role, content = item.get("role"), item.get("content")
    where = f"input[{place}]"
    if role not in ("user", "assistant", "system", "developer"):
        raise invalid(f"{where}: the role of a message is user, assistant, system or developer", f"{where}.role")
    if isinstance(content, str):
        return {"role": role, "content": content}
    if not isinstance(content, list) or not content:
        raise invalid(f"{where}: the content of a message is text or a list of parts", f"{where}.content")
    parts = [
        _part(f"{where}.content[{number}]", part, files=role != "assistant") for number, part in enumerate(content)
    ]
    if all(part["type"] == "input_text" for part in parts) and len(parts) == 1:
        return {"role": role, "content": parts[0]["text"]}
    return {"role": role, "content": parts}


def _part(where: str, part: object, *, files: bool = False) -> JsonObject:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(part, Mapping) or not isinstance(kind, str):
        raise invalid(f"{where}: a part has a 'type'", where)
    if kind in ("input_text", "output_text", "text"):
        if not isinstance(part.get("text"), str):
            raise invalid(f"{where}: a part of the type {kind!r} has a 'text'", f"{where}.text")
        return {"type": "input_text" if kind == "text" else kind, "text": part["text"]}
    if kind == "refusal":
        return {"type": "refusal", "refusal": str(part.get("refusal", ""))}
    if files and kind in FILE_PARTS:
        return parse_file_part(where, part)
    raise unsupported(f"{where}.type", f"parts of the type {kind[:80]!r} are not supported by this server")


def _call_item(place: int, item: JsonMapping) -> JsonObject:
    call_id, name = item.get("call_id"), item.get("name")
    if not isinstance(call_id, str) or not isinstance(name, str):
        raise invalid(f"input[{place}]: a function_call has a 'call_id' and a 'name'", f"input[{place}]")
    arguments = item.get("arguments")
    return {
        "type": "function_call",
        "call_id": call_id,
        "name": name,
        "arguments": arguments if isinstance(arguments, str) else "{}",
    }


def _output(place: int, item: JsonMapping) -> tuple[str, object]:
    """The id of a call and its output: text, or a list of parts."""
    call_id, output = item.get("call_id"), item.get("output")
    where = f"input[{place}]"
    if not isinstance(call_id, str) or not call_id:
        raise invalid(f"{where}: a function_call_output has a 'call_id'", f"{where}.call_id")
    if isinstance(output, str):
        return call_id, output
    if isinstance(output, list) and output:
        return call_id, [_part(f"{where}.output[{number}]", part) for number, part in enumerate(output)]
    raise invalid(f"{where}: the output of a call is text or a list of parts", f"{where}.output")
