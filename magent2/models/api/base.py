"""What every schema of the HTTP API shares."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonValue

from magent2.models.address import NAME_PATTERN

KEY_MAX_CHARS = 200  # of a `client_message_id`


# The id of a session in a request. The pattern is for documents: the error of `check_name` says more.
RequestedId = Annotated[str, Field(json_schema_extra={"pattern": NAME_PATTERN})]


class ApiModel(BaseModel):
    """A request or response body. Unknown fields are ignored, so a client reads the responses of a later release."""

    model_config = ConfigDict(frozen=True)


class StrictRequest(ApiModel):
    """A request body that refuses unknown fields."""

    model_config = ConfigDict(extra="forbid")


def example(**fields: JsonValue) -> ConfigDict:
    """Configure a schema to show this example in the OpenAPI document."""
    return ConfigDict(json_schema_extra={"examples": [fields]})


class ProblemDocument(ApiModel):
    """An error response (RFC 9457). `code` is stable; `detail` is for people and names the next step."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str
    code: str


class OkResponse(ApiModel):
    """The request was carried out."""

    model_config = example(status="ok")

    status: Literal["ok"] = "ok"
