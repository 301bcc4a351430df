"""Answers as pydantic models: the schema that a message asks for, and the model of the answer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from magent2.errors import InvalidInput, OutputMismatch
from magent2.models.run_options import RUN_OPTIONS

SCHEMA_NAME_MAX_CHARS = 64  # what model providers accept

ModelT = TypeVar("ModelT", bound=BaseModel)


def with_output_schema(metadata: Mapping[str, object] | None, model: type[BaseModel]) -> dict[str, object]:
    """The metadata of a message whose answer has to match a model. Other options of the message stay."""
    given = dict(metadata or {})
    options = given.get(RUN_OPTIONS, {})
    if not isinstance(options, Mapping):
        raise InvalidInput(f"metadata[{RUN_OPTIONS!r}] must be an object, not {type(options).__name__}")
    name = re.sub(r"[^a-zA-Z0-9_-]", "_", model.__name__)[:SCHEMA_NAME_MAX_CHARS]  # of a generic model: Page[int]
    schema = {"name": name, "schema": model.model_json_schema()}
    return {**given, RUN_OPTIONS: {**options, "output_schema": schema}}


def parse_output(model: type[ModelT], text: str) -> ModelT:
    """The answer as an instance of its model."""
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        raise OutputMismatch(f"the answer is not a {model.__name__}: {error}") from error
