"""The tools of a journalled run: each is asked once, and its answer put as the log keeps it and as a model sees it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agents import (
    FunctionTool,
    ItemHelpers,
    ToolOutputFileContent,
    ToolOutputImage,
    ToolOutputText,
)
from agents.tool import invoke_function_tool
from agents.tool_context import ToolContext
from openai.types.responses import ResponseFunctionToolCall
from pydantic import BaseModel

from magent2.runner.answers import is_plain, storable
from magent2.runner.event_mapping import as_text, encodable, failure_in
from magent2.runner.journal import Journal
from magent2.runner.journal_approvals import refusal_of
from magent2.runner.journal_calls import Call

CONTENT = frozenset({"text", "image", "file", "input_text", "input_image", "input_file"})  # of the SDK, by `type`

Structured = ToolOutputText | ToolOutputImage | ToolOutputFileContent


async def call_tool(journal: Journal, tool: FunctionTool, context: ToolContext[Any], arguments: str, agent: str) -> Any:
    """What the tool answers: from the journal when it has answered already."""
    call = Call(journal, journal.turn - 1, context.tool_call_id, tool.name, arguments, agent)
    if call.recorded is not None:
        return call.recorded.get("value", call.recorded["output"])
    await call.start()
    if (refusal := refusal_of(journal, call.key)) is not None:
        return await call.finish(refusal, refusal, refusal)
    try:
        with call.at_work() as scope:
            value = _settled(await _invoke(tool, context, arguments), tool)
    except Exception as error:
        await call.fail(f"{type(error).__name__}: {error}")
        raise
    failed = journal.failures.pop(call.id, None)
    call.skip_turn = scope.skip_turn and failed is None
    if scope.closing is not None and failed is None:
        return await call.close(scope.closing, scope.sends)
    told = failed or failure_in(value, as_text(value))
    value = _worded(value)
    output = _shown(context, tool, value, failed)
    return await call.finish(value, output, told, () if failed else scope.sends)


async def _invoke(tool: FunctionTool, context: ToolContext[Any], arguments: str) -> Any:
    """The SDK leaves a mark on the context when it words a failure itself; it stays if nothing is put in between."""
    if tool.timeout_seconds is None:
        return await tool.on_invoke_tool(context, arguments)
    return await invoke_function_tool(function_tool=tool, context=context, arguments=arguments)


def _worded(value: Any) -> Any:
    """Objects and lists as JSON: the SDK would show a model how Python prints them. Its own content stays as it is."""
    blocks = value if isinstance(value, list) else [value]
    is_content = any(isinstance(block, Mapping) and block.get("type") in CONTENT for block in blocks)
    return as_text(value) if isinstance(value, dict | list) and not is_content else value


def _settled(result: Any, tool: FunctionTool) -> Any:
    """The result in a form that is the same now and when it is read from the log."""
    if isinstance(result, str):
        return encodable(result)
    if isinstance(result, Structured):
        return result.model_dump(mode="json", exclude_none=True)
    if isinstance(result, list | tuple) and result and all(isinstance(item, Structured) for item in result):
        return [item.model_dump(mode="json", exclude_none=True) for item in result]
    if isinstance(result, BaseModel) and tool.output_json_schema is not None:
        return storable(result.model_dump(mode="json", by_alias=True))
    return result if is_plain(result) else encodable(str(result))


def _shown(context: ToolContext[Any], tool: FunctionTool, value: Any, failed: str | None) -> Any:
    """The result as the SDK will show it to the model."""
    call = context.tool_call or ResponseFunctionToolCall(
        type="function_call", call_id=context.tool_call_id, name=tool.name, arguments=context.tool_arguments
    )
    schema = None if failed else tool.output_json_schema
    return ItemHelpers.tool_call_output_item(call, value, output_json_schema=schema)["output"]
