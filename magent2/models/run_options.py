"""Options of one message for the run that answers it. They are in the metadata of its envelope, under `run_options`.

They are on the log with the message and are the same for every attempt. No later message inherits them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from magent2.errors import InvalidInput
from magent2.models.json_types import JsonMapping, JsonObject
from magent2.models.output_schema import SCHEMA_MAX_BYTES, check_output_schema, schema_size

RUN_OPTIONS = "run_options"  # metadata field of an envelope

CLIENT_TOOLS_MAX = 128  # tools that one message may bring
TOOL_NAME_PATTERN = r"^[a-zA-Z0-9_-]{1,64}$"  # what model providers accept
TOOL_DESCRIPTION_MAX_CHARS = 8_192
OPTION_INSTRUCTIONS_MAX_CHARS = 200_000
INPUT_ITEMS_MAX = 2_000
INPUT_PARTS_MAX = 200  # of one item
OUTPUT_TOKENS_MAX = 10_000_000

ReasoningEffort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh"]
Verbosity: TypeAlias = Literal["low", "medium", "high"]
MessageRole: TypeAlias = Literal["user", "assistant", "system", "developer"]

TEXT_PARTS = frozenset({"input_text", "output_text", "refusal"})
FILE_PARTS = frozenset({"input_image", "input_file", "input_audio"})


class _Option(BaseModel):
    model_config = ConfigDict(extra="forbid", populate_by_name=True, frozen=True)


class ClientTool(_Option):
    """A function that the sender of the message runs. The run waits for its output, or ends with its call."""

    name: str = Field(pattern=TOOL_NAME_PATTERN)
    description: str = Field(default="", max_length=TOOL_DESCRIPTION_MAX_CHARS)
    parameters: JsonObject = Field(default_factory=dict)
    strict: bool | None = None

    @model_validator(mode="after")
    def _check(self) -> ClientTool:
        check_schema_size(self.parameters, f"the parameters of tool {self.name!r}")
        return self


class OutputSchema(_Option):
    """The JSON schema that the answer has to match."""

    name: str = Field(default="output", pattern=TOOL_NAME_PATTERN)
    json_schema: JsonObject = Field(alias="schema")
    strict: bool = True
    description: str | None = Field(default=None, max_length=TOOL_DESCRIPTION_MAX_CHARS)

    @model_validator(mode="after")
    def _check(self) -> OutputSchema:
        check_output_schema(self.json_schema)
        return self


class RunModelSettings(_Option):
    """Settings of the model. They take precedence over those of the agent."""

    temperature: float | None = Field(default=None, ge=0, le=2, allow_inf_nan=False)
    top_p: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2, allow_inf_nan=False)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2, allow_inf_nan=False)
    max_tokens: int | None = Field(default=None, ge=1, le=OUTPUT_TOKENS_MAX)
    reasoning_effort: ReasoningEffort | None = None
    verbosity: Verbosity | None = None
    parallel_tool_calls: bool | None = None


class RunOptions(_Option):
    """The options of one message.

    `instructions` come after the agent's own and the overlay of the session. `input` takes the place of the text in the
    input of the model, as items of the Responses API; people see the text. `tool_choice` is `auto`, `none`, `required`
    or the name of a tool. `after_tool_calls` says what a run does that calls a tool of the client: it waits for the
    output (`park`), or it ends (`end`).
    """

    instructions: str | None = Field(default=None, max_length=OPTION_INSTRUCTIONS_MAX_CHARS)
    input: Annotated[list[JsonObject], Field(max_length=INPUT_ITEMS_MAX)] | None = None
    tools: Annotated[list[ClientTool], Field(max_length=CLIENT_TOOLS_MAX)] | None = None
    tool_choice: str | None = Field(default=None, pattern=TOOL_NAME_PATTERN)
    after_tool_calls: Literal["park", "end"] | None = None
    output_schema: OutputSchema | None = None
    model_settings: RunModelSettings | None = None

    @field_validator("tools")
    @classmethod
    def _check_tools(cls, tools: list[ClientTool] | None) -> list[ClientTool] | None:
        names = [tool.name for tool in tools or ()]
        if len(set(names)) < len(names):
            raise ValueError("two tools have the same name; give each its own")
        return tools

    @field_validator("input")
    @classmethod
    def _check_input(cls, items: list[JsonObject] | None) -> list[JsonObject] | None:
        check_input_items(items or ())
        return items

    def payload(self) -> JsonObject:
        """The options as JSON, without those that are not set."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    def client_tool(self, name: str) -> ClientTool | None:
        return next((tool for tool in self.tools or () if tool.name == name), None)


def read_run_options(metadata: JsonMapping) -> RunOptions:
    """The options in the metadata of an envelope. Raises `InvalidInput` if they cannot be used."""
    found = metadata.get(RUN_OPTIONS)
    if found is None:
        return NO_OPTIONS
    try:
        return RunOptions.model_validate(found)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(step) for step in (RUN_OPTIONS, *fault["loc"]))
        raise InvalidInput(f"{where}: {fault['msg'].removeprefix('Value error, ')}") from None


def check_schema_size(schema: JsonObject, what: str) -> None:
    size = schema_size(schema)
    if size > SCHEMA_MAX_BYTES:
        raise ValueError(f"{what} take {size} bytes, the limit is {SCHEMA_MAX_BYTES}; make the schema smaller")


# --- Items of the input


def check_input_items(items: Iterable[JsonMapping]) -> None:
    """Raise `ValueError` for an item that a model cannot get, and for calls and outputs that do not belong together."""
    open_calls: set[str] = set()
    for place, item in enumerate(items):
        kind = item.get("type", "message")
        if kind == "message":
            _check_message(place, item)
        elif kind == "function_call":
            call_id, name = item.get("call_id"), item.get("name")
            if not isinstance(call_id, str) or not call_id or not isinstance(name, str) or not name:
                raise ValueError(f"input.{place}: a function_call has a 'call_id' and a 'name'")
            open_calls.add(call_id)
        elif kind == "function_call_output":
            if item.get("call_id") not in open_calls:
                raise ValueError(f"input.{place}: no function_call before it has the call_id {item.get('call_id')!r}")
            open_calls.discard(str(item["call_id"]))
        else:
            raise ValueError(f"input.{place}: items of the type {kind!r} cannot be used")
    if open_calls:
        raise ValueError(f"input: no function_call_output for {', '.join(sorted(open_calls))}")


def _check_message(place: int, item: JsonMapping) -> None:
    if item.get("role") not in ("user", "assistant", "system", "developer"):
        raise ValueError(f"input.{place}: the role of a message is user, assistant, system or developer")
    content = item.get("content")
    if isinstance(content, str):
        return
    if not isinstance(content, list) or not content or len(content) > INPUT_PARTS_MAX:
        raise ValueError(f"input.{place}: the content of a message is text or a list of 1 to {INPUT_PARTS_MAX} parts")
    for part in content:
        _check_part(place, part)


def _check_part(place: int, part: object) -> None:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(part, Mapping) or kind not in TEXT_PARTS | FILE_PARTS:
        raise ValueError(f"input.{place}: parts of the type {kind!r} cannot be used")
    if kind in TEXT_PARTS and not isinstance(part.get("refusal" if kind == "refusal" else "text"), str):
        raise ValueError(f"input.{place}: a part of the type {kind!r} has a text")
    if kind in FILE_PARTS and not isinstance(part.get("file_id"), str):
        raise ValueError(f"input.{place}: a part of the type {kind!r} names a stored file by 'file_id'")


NO_OPTIONS = RunOptions()
