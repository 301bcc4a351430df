"""Errors of `/v1`, in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

from magent2.gateway.problems import Problem


def invalid(message: str, param: str | None = None, code: str = "invalid_value", status: int = 400) -> Problem:
    """A request that cannot be used. `param` is the name of the field that is wrong."""
    return Problem(status, code, message, fields={"param": param})


def unsupported(param: str, message: str | None = None) -> Problem:
    """A parameter that has no effect here. It is refused, so that no caller believes that it has one."""
    text = message or f"the parameter {param!r} is not supported by this server; leave it out"
    return invalid(text, param, "unsupported_parameter")


def model_not_found(name: str, known: list[str]) -> Problem:
    text = f"the model {name[:80]!r} does not exist; models are agents and scenarios: {', '.join(known)}"
    return invalid(text, "model", "model_not_found", 404)


def previous_not_found(previous: object) -> Problem:
    text = f"there is no response with the id {str(previous)[:80]!r}"
    return invalid(text, "previous_response_id", "previous_response_not_found", 404)


def too_long(param: str) -> Problem:
    text = f"{param!r} is too long for one message; shorten it, or upload long texts as files (POST /api/files)"
    return invalid(text, param, "too_large", 413)


def response_not_found(text: str) -> Problem:
    return invalid(f"there is no response with the id {text[:80]!r}", "response_id", "response_not_found", 404)
