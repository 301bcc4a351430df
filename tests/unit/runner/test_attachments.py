"""Files in the requests of a model: how much of them, for which model, and what a chat-completions server gets."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest
from agents.models.chatcmpl_converter import Converter

from magent2.bus.log import Log
from magent2.bus.memory import MemoryBus
from magent2.models.files import ContentKind, FileAttachment, file_part
from magent2.runner.attachments import TEXT_ONLY, RequestFiles
from magent2.sessions.files import FileLimits, delete_file, store_inline
from tests.support.files import PDF, PNG, WAV

ALL: frozenset[ContentKind] = frozenset({"text", "image", "file", "audio"})


@pytest.fixture
async def log() -> AsyncIterator[Log]:
    bus = MemoryBus()
    yield Log(bus)
    bus.close()


async def stored(log: Log, name: str, content: bytes) -> FileAttachment:
    return await store_inline(log, FileLimits(), "user:ann", "c1", content, name)


def message(text: str, *files: FileAttachment) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "input_text", "text": text}, *map(file_part, files)]}


async def test_the_newest_files_are_sent_and_older_ones_are_named(log: Log) -> None:
    old, middle, new = [await stored(log, f"{n}.png", PNG + bytes([n]) * 100) for n in range(3)]
    request: Any = [message("first", old, middle), {"role": "assistant", "content": "ok"}, message("second", new)]

    filled: Any = await RequestFiles(log, 2 * (len(PNG) + 100)).fill_in(request, ALL)

    types = [[part["type"] for part in item["content"]] for item in (filled[0], filled[2])]
    assert types == [["input_text", "input_text", "input_image"], ["input_text", "input_image"]]
    assert "0.png" in filled[0]["content"][1]["text"]
    assert "left out: one request has at most" in filled[0]["content"][1]["text"]
    assert request[0]["content"][1]["file_id"] == old.file_id  # the request of the SDK is not changed


async def test_a_file_that_is_deleted_between_two_turns_is_not_sent_again(log: Log) -> None:
    file, files = await stored(log, "a.png", PNG), RequestFiles(log)
    request: Any = [message("look", file)]

    first: Any = await files.fill_in(request, ALL)
    await delete_file(log, file.file_id)
    second: Any = await files.fill_in(request, ALL)

    assert first[0]["content"][1]["type"] == "input_image"
    assert second[0]["content"].endswith("the file was deleted]")


async def test_parts_that_a_client_wrote_need_only_an_id(log: Log) -> None:
    file = await stored(log, "a.pdf", PDF)
    bare = {"role": "user", "content": [{"type": "input_file", "file_id": file.file_id}]}
    unknown = {"role": "user", "content": [{"type": "input_file", "file_id": "file-unknown"}]}
    request: Any = [bare, unknown]

    filled: Any = await RequestFiles(log).fill_in(request, ALL)

    assert filled[0]["content"][0]["filename"] == "a.pdf"
    assert filled[1]["content"] == "[attached: a file; the file was deleted]"


async def test_results_of_tools_and_plain_text_are_left_alone(log: Log) -> None:
    output = [{"type": "input_image", "file_id": "file-of-the-provider"}]
    request: Any = [
        {"type": "function_call_output", "call_id": "c", "output": output},
        {"role": "user", "content": "plain"},
    ]

    assert await RequestFiles(log).fill_in(request, TEXT_ONLY) == request
    assert await RequestFiles(log).fill_in("text", TEXT_ONLY) == "text"


async def test_a_chat_completions_server_gets_its_own_parts(log: Log) -> None:
    files = [await stored(log, name, content) for name, content in (("a.png", PNG), ("a.pdf", PDF), ("a.wav", WAV))]

    filled: Any = await RequestFiles(log).fill_in([message("look", *files)], ALL)  # type: ignore[list-item]
    (sent,) = Converter.items_to_messages(filled)

    content: Any = sent["content"]
    assert [part["type"] for part in content] == ["text", "image_url", "file", "input_audio"]
    assert base64.b64decode(content[1]["image_url"]["url"].partition(",")[2]) == PNG
    assert content[2]["file"]["filename"] == "a.pdf"
    assert base64.b64decode(content[2]["file"]["file_data"].partition(",")[2]) == PDF
    assert base64.b64decode(content[3]["input_audio"]["data"]) == WAV
