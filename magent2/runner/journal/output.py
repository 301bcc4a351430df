"""The output of a run that has to match a schema: told to the model, and checked when the model has answered.

The SDK ends a run whose output does not match. Here it accepts any text, and `JournalledRun` checks it: a mismatch is
named to the model once, in one more turn of the same run.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from inspect import isawaitable
from typing import Any

from agents import Agent, GuardrailFunctionOutput, ModelBehaviorError, OutputGuardrail, RunContextWrapper
from agents.agent_output import AgentOutputSchema, AgentOutputSchemaBase
from agents.exceptions import UserError
from agents.strict_schema import ensure_strict_json_schema

from magent2.bus.records import canonical
from magent2.models.json_types import JsonObject
from magent2.models.output_schema import output_fault
from magent2.models.run_options import OutputSchema
from magent2.runner.event_mapping import as_text, cut

TYPE_FAULT_MAX_CHARS = 1000


class CheckedText(str):
    """An answer, with what is wrong with it; None if it matches."""

    __slots__ = ("fault",)

    def __new__(cls, text: str, fault: str | None) -> CheckedText:
        made = super().__new__(cls, text)
        made.fault = fault
        return made

    fault: str | None


class CheckedOutput(AgentOutputSchemaBase):
    """An output type that accepts every answer, and returns one that does not match as `CheckedText`."""

    def is_plain_text(self) -> bool:
        return False


class SchemaOutput(CheckedOutput):
    """An output that is described by a JSON schema. The run's output is the text of the model."""

    def __init__(self, schema: OutputSchema) -> None:
        self._schema = schema

    def name(self) -> str:
        return self._schema.name

    def json_schema(self) -> JsonObject:
        return self._schema.json_schema

    def is_strict_json_schema(self) -> bool:
        """Whether the provider is told to enforce it. Providers refuse this for a schema that breaks their rules."""
        return self._schema.strict and is_strict(self._schema.json_schema)

    def validate_json(self, json_str: str) -> CheckedText:
        return CheckedText(json_str, output_fault(self._schema.json_schema, json_str))


class TypedOutput(CheckedOutput):
    """The `output_type` of an SDK agent. Its answer is an object of that type."""

    def __init__(self, inner: AgentOutputSchemaBase) -> None:
        self._inner = inner

    def is_plain_text(self) -> bool:
        return self._inner.is_plain_text()

    def name(self) -> str:
        return self._inner.name()

    def json_schema(self) -> dict[str, Any]:
        return self._inner.json_schema()

    def is_strict_json_schema(self) -> bool:
        return self._inner.is_strict_json_schema()

    def validate_json(self, json_str: str) -> Any:
        try:
            return self._inner.validate_json(json_str)
        except ModelBehaviorError as error:
            return CheckedText(json_str, cut(str(error), TYPE_FAULT_MAX_CHARS))


def check_output_of(agent: Agent, wanted: OutputSchema | None) -> None:
    """Have the output of this copy of an agent checked by its run. `wanted` takes the place of its own schema."""
    own = agent.output_type
    if wanted is not None:
        agent.output_type = SchemaOutput(wanted)
    elif own is not None and own is not str and not isinstance(own, CheckedOutput):
        inner = own if isinstance(own, AgentOutputSchemaBase) else AgentOutputSchema(own)
        agent.output_type = TypedOutput(inner)
    if isinstance(agent.output_type, CheckedOutput):
        agent.output_guardrails = [_for_answers(guardrail) for guardrail in agent.output_guardrails]


def _for_answers(guardrail: OutputGuardrail) -> OutputGuardrail:
    """The guardrail, which does not see answers that do not match: in the SDK, a run ends before they reach it."""

    async def check(context: RunContextWrapper, agent: Agent, output: Any) -> GuardrailFunctionOutput:
        if isinstance(output, CheckedText) and output.fault is not None:
            return GuardrailFunctionOutput(output_info=None, tripwire_triggered=False)
        found = guardrail.guardrail_function(context, agent, output)
        return await found if isawaitable(found) else found

    return replace(guardrail, guardrail_function=check, name=guardrail.get_name())


def fault_of(agent: object, output: object) -> str | None:
    """What is wrong with the output of a run that ended with this agent; None if nothing is."""
    checked = getattr(agent, "output_type", None)
    if isinstance(checked, SchemaOutput) and not isinstance(output, CheckedText):  # the result of a tool is the output
        output = checked.validate_json(as_text(output))
    return output.fault if isinstance(output, CheckedText) else None


def correction(agent: object, fault: str) -> str:
    """The message that names a mismatch to the model. It has the schema, because not every model was told it."""
    checked = getattr(agent, "output_type", None)
    schema = canonical(checked.json_schema()) if isinstance(checked, CheckedOutput) else ""
    return (
        f"Your answer does not match its schema: {fault}\n"
        f"Answer again, with one JSON value that matches this JSON schema and nothing else:\n{schema}"
    )


def stored_schema(schema: JsonObject) -> OutputSchema:
    """A schema that was checked before."""
    return OutputSchema.model_construct(name="output", json_schema=schema, strict=True, description=None)


def is_strict(schema: JsonObject) -> bool:
    """Whether a schema keeps the rules of strict mode: it requires all properties of an object and allows no others."""
    try:
        return bool(ensure_strict_json_schema(copy.deepcopy(schema)) == schema)
    except (UserError, TypeError, ValueError, RecursionError):
        return False
