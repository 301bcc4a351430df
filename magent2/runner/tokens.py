"""Estimates how many tokens a request takes, before a model counts them. Pure.

The tokenizers of providers differ and are not all public. So tokens are estimated from the size of the text, and the
estimate is corrected by what the model has reported for the last request (`correction_of`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

ASCII_PER_TOKEN = 4.0  # characters; English text has 4 to 5, code and JSON 3 to 4
UTF8_PER_TOKEN = 3.0  # bytes of other characters: 1 token for a Chinese character, 2 for 3 letters of Cyrillic
ITEM_TOKENS = 4  # of an item besides its text: its role or its kind
IMAGE_TOKENS = 1_100  # of an image of usual size
FILE_BYTES_PER_TOKEN = 200  # of a PDF and similar: most of its bytes are not text
AUDIO_BYTES_PER_TOKEN = 500
CORRECTION_MIN, CORRECTION_MAX = 0.5, 4.0
UNCOUNTED = frozenset({"id", "type", "role", "status", "call_id", "detail", "object"})  # fields that are not text

_BASE64 = 0.75  # bytes for each character


def estimate_tokens(items: object, correction: float = 1.0) -> int:
    """About how many tokens a JSON value takes as the input of a model: a text, an item, or a list of them.

    Images, audio and files with their content count by their kind. `correction` is that of an earlier request.
    """
    return ceil(_tokens(items) * correction)


def correction_of(reported: int, estimated: int) -> float:
    """The factor from estimates to what a model reports, from one request that has both; 1 if it has not.

    It is limited, because servers report numbers that mean something else, such as a count without cached tokens.
    """
    if reported <= 0 or estimated <= 0:
        return 1.0
    return min(CORRECTION_MAX, max(CORRECTION_MIN, reported / estimated))


def _tokens(value: object) -> float:
    if isinstance(value, str):
        return _text_tokens(value)
    if isinstance(value, Mapping):
        return _part_tokens(value) if "type" in value or "role" in value else _field_tokens(value)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return sum(map(_tokens, value))
    return 0.0 if value is None else 1.0  # a number or a truth value


def _text_tokens(text: str) -> float:
    if text.isascii():
        return len(text) / ASCII_PER_TOKEN
    size, ascii_size = len(text.encode(errors="replace")), len(text.encode("ascii", errors="ignore"))
    return ascii_size / ASCII_PER_TOKEN + (size - ascii_size) / UTF8_PER_TOKEN


def _field_tokens(value: Mapping[str, object]) -> float:
    """The tokens of an object that is sent as it is, such as the schema of a tool."""
    return sum(_text_tokens(str(name)) + 1 + _tokens(inner) for name, inner in value.items())


def _part_tokens(value: Mapping[str, object]) -> float:
    """The tokens of an item, or of a part of its content."""
    kind = value.get("type")
    if kind in ("input_image", "image_url"):
        return IMAGE_TOKENS
    if kind == "input_audio":
        audio = value.get("input_audio")
        data = audio.get("data") if isinstance(audio, Mapping) else None
        return ITEM_TOKENS + len(str(data or "")) * _BASE64 / AUDIO_BYTES_PER_TOKEN
    if kind == "input_file":
        data, name = str(value.get("file_data") or ""), str(value.get("filename") or "")
        return ITEM_TOKENS + _text_tokens(name) + len(data) * _BASE64 / FILE_BYTES_PER_TOKEN
    if kind in ("object", "array", "string", "number", "integer", "boolean", "null"):  # a JSON schema
        return _field_tokens(value)
    return ITEM_TOKENS + sum(_tokens(inner) for name, inner in value.items() if name not in UNCOUNTED)
