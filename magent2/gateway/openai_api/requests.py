"""The bodies of requests to `/v1`, parsed. What cannot be honoured is refused by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails
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
    INPUT_PARTS_MAX,
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
    """A body, or an object in one. A parameter that is `null` is one that is not given.

    `harmless` are parameters that change nothing as long as they have one of these values.
    """

    model_config = ConfigDict(extra="allow", populate_by_name=True)
    harmless: ClassVar[Mapping[str, tuple[object, ...]]] = {}

    @model_validator(mode="before")
    @classmethod
    def _leave_out_nulls(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        return {name: value for name, value in given.items() if value is not None or name not in cls.model_fields}

    def check_parameters(self, where: str = "") -> None:
        """Refuse parameters that would have no effect. `where` is what the names of the parameters begin with."""
        for name, value in (self.model_extra or {}).items():
            param = f"{where}{name[:80]}"
            if name not in self.harmless:
                raise invalid(f"unknown parameter: {param!r}", param, "unknown_parameter")
            if value is not None and value not in self.harmless[name]:
                raise unsupported(param, f"{param!r} with this value is not supported by this server; leave it out")
        for place, part in self._parts():
            part.check_parameters(f"{where}{place}.")

    def _parts(self) -> Iterator[tuple[str, RequestBody]]:
        """The objects in this one, each with its place."""
        for name in type(self).model_fields:
            value = getattr(self, name)
            parts = [(f"{name}[{place}]", part) for place, part in enumerate(value)] if isinstance(value, list) else []
            yield from ((place, part) for place, part in [(name, value), *parts] if isinstance(part, RequestBody))


class ConversationReference(RequestBody):
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
    """A tool of the client."""

    type: str
    name: str = ""
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None

    def check_parameters(self, where: str = "") -> None:
        check_tool_type(self.type, where)
        super().check_parameters(where)


class ToolName(RequestBody):
    """The choice of one function."""

    type: str
    name: str = ""

    def check_parameters(self, where: str = "") -> None:
        check_choice(self.type, self.name, where)
        super().check_parameters(where)


def check_tool_type(kind: str, where: str) -> None:
    if kind != "function":
        text = f"tools of the type {kind[:80]!r} are not supported by this server; an agent has its own tools"
        raise unsupported(f"{where}type", text)


def check_choice(kind: str, name: str, where: str) -> None:
    """Check a `tool_choice` that is an object."""
    if kind != "function":
        raise unsupported(f"{where}type", f"a choice of the type {kind[:80]!r} is not supported; name a function")
    if not name:
        raise invalid("'tool_choice' names no function", f"{where}name", "missing")


class ResponseStreamOptions(RequestBody):
    harmless: ClassVar[Mapping[str, tuple[object, ...]]] = {"include_obfuscation": (False,)}


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
        "moderation": (),
    }

    model: ShortText | None = None
    input: str | list[JsonObject] | None = None
    instructions: str | None = None
    conversation: ShortText | ConversationReference | None = None
    previous_response_id: Annotated[str, Field(max_length=2_000)] | None = None
    background: bool = False
    stream: bool = False
    stream_options: ResponseStreamOptions | None = None
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
            "tools": [
                client_tool(tool.name, tool.description, tool.parameters, tool.strict) for tool in self.tools or ()
            ]
            or None,
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
        path = _path(fault["loc"])
        param = next((shown + path.removeprefix(own) for own, shown in names.items() if path.startswith(own)), path)
        param = param.removeprefix("model_settings.")
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
        raise _invalid_body(error, orjson.loads(body)) from None
    check_json_values(body)
    return parsed


def _invalid_body(error: ValidationError, body: object) -> Problem:
    """The problem of the first parameter that does not match, at the deepest place where it does not.

    A parameter that may be a text or an object has an error for each of them. The one inside the object says more.
    """
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    if not faults[0]["loc"]:
        return invalid(f"the body: {faults[0]['msg']}")
    first = [(_given_path(fault, body), fault) for fault in faults if fault["loc"][0] == faults[0]["loc"][0]]
    path, fault = max(first, key=lambda found: len(found[0]))
    return invalid(f"{_path(path)}: {fault['msg']}", _path(path))


def _given_path(fault: ErrorDetails, body: object) -> list[str | int]:
    """Where a fault is in a body. pydantic's own path names the types of a union too."""
    path: list[str | int] = []
    found = body
    for step in fault["loc"]:
        if isinstance(found, Mapping) and step in found:
            found = found[str(step)]
        elif isinstance(found, list) and isinstance(step, int) and step < len(found):
            found = found[step]
        elif fault["type"] != "missing" or step != fault["loc"][-1]:
            continue
        path.append(step)
    return path


def _path(steps: Sequence[str | int]) -> str:
    """A place in a body, as OpenAI writes it: `tools[0].name`."""
    shown = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
    return shown.removeprefix(".")


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


PlacedItem: TypeAlias = tuple[str, JsonMapping]  # where it is in the request, for errors, and the item


def parse_input(given: str | Sequence[JsonMapping] | None, *, continues: bool = False) -> ParsedInput:
    """Parse `input`; see `parse_items`."""
    if isinstance(given, str):
        if not given.strip():
            raise invalid("'input' is blank; give some text", "input", "missing")
        return ParsedInput(text=given)
    if not given:
        raise invalid("the request has no 'input'", "input", "missing")
    return parse_items([(f"input[{place}]", item) for place, item in enumerate(given)], continues=continues)


def parse_items(given: Sequence[PlacedItem], *, continues: bool = False) -> ParsedInput:
    """Parse input items. Raises a problem that names the item that cannot be used.

    With `continues`, the session has the calls already: repeated ones are left out, and all outputs are for it.
    """
    references = [place for place, (_, item) in enumerate(given) if item.get("type") == "item_reference"]
    after, refers_to = 0, None
    if references:
        after, continues = references[-1] + 1, True
        where, reference = given[references[-1]]
        refers_to = reference.get("id")
        if not isinstance(refers_to, str):
            raise invalid(f"{where}: an item_reference has the 'id' of an item", f"{where}.id", "missing")
    parsed = [(where, item) for where, one in given[after:] if (item := _input_item(where, one))]
    items, outputs = _without_outputs(parsed, continues=continues)
    return ParsedInput(text=_shown_text(items), items=_simplified(items), outputs=outputs, refers_to=refers_to)


def _without_outputs(
    parsed: Sequence[tuple[str, JsonObject]], *, continues: bool
) -> tuple[list[JsonObject], dict[str, object]]:
    """Split items into those for the model and the outputs, by call, that a run of the session waits for.

    Some models use the id of a call again in a later turn, so each output answers the last call before it.
    """
    items: list[JsonObject] = []
    outputs: dict[str, object] = {}
    waiting: dict[str, str] = {}  # where the calls are that have no output yet
    answered: set[str] = set()
    for where, item in parsed:
        kind, call_id = item.get("type"), item.get("call_id", "")
        if kind == "function_call" and continues:
            continue
        if kind == "function_call":
            waiting[call_id] = where
        elif kind == "function_call_output" and call_id in waiting:
            del waiting[call_id]
            answered.add(call_id)
        elif kind == "function_call_output":
            if call_id in outputs or call_id in answered:
                text = f"{where}: the call {call_id[:80]!r} has an output already; send one output for each call"
                raise invalid(text, where, "duplicate_output")
            outputs[call_id] = item["output"]
            continue
        items.append(item)
    for call_id, where in waiting.items():
        text = f"{where}: the call {call_id[:80]!r} has no output; send the outputs of all calls after them"
        raise invalid(text, where, "missing_output")
    return items, outputs


def _input_item(where: str, item: JsonMapping) -> JsonObject | None:
    """An item as the model gets it; `None` for an item of ours, which is shown to clients and not read."""
    kind = item.get("type") or "message"
    if kind == "message":
        return _message_item(where, item)
    if kind == "function_call":
        return _call_item(where, item)
    if kind == "function_call_output":
        call_id, output = _output(where, item)
        return {"type": kind, "call_id": call_id, "output": output}
    if str(kind).startswith("magent2:"):
        return None
    text = f"input items of the type {str(kind)[:80]!r} are not supported by this server"
    raise unsupported(f"{where}.type", text)


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


def _message_item(where: str, item: JsonMapping) -> JsonObject:
    role, content = item.get("role"), item.get("content")
    if role not in ("user", "assistant", "system", "developer"):
        raise invalid(f"{where}: the role of a message is user, assistant, system or developer", f"{where}.role")
    if isinstance(content, str):
        return {"role": role, "content": content}
    if not isinstance(content, list) or not 0 < len(content) <= INPUT_PARTS_MAX:
        text = f"{where}: the content of a message is text or a list of 1 to {INPUT_PARTS_MAX} parts"
        raise invalid(text, f"{where}.content")
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


def _call_item(where: str, item: JsonMapping) -> JsonObject:
    call_id, name = item.get("call_id"), item.get("name")
    if not isinstance(call_id, str) or not call_id or not isinstance(name, str) or not name:
        raise invalid(f"{where}: a call of a function has an id and the name of the function", where)
    arguments = item.get("arguments")
    return {
        "type": "function_call",
        "call_id": call_id,
        "name": name,
        "arguments": arguments if isinstance(arguments, str) else "{}",
    }


def _output(where: str, item: JsonMapping) -> tuple[str, object]:
    """The id of a call and its output: text, or a list of parts."""
    call_id, output = item.get("call_id"), item.get("output")
    if not isinstance(call_id, str) or not call_id:
        raise invalid(f"{where}: the output of a call has the id of the call", where)
    if isinstance(output, str):
        return call_id, output
    if isinstance(output, list) and output:
        return call_id, [_part(f"{where}.output[{number}]", part) for number, part in enumerate(output)]
    raise invalid(f"{where}: the output of a call is text or a list of parts", f"{where}.output")
