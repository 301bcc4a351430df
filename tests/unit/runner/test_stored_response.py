"""Images in a model's response."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest
from agents import Agent
from agents.items import TResponseStreamEvent
from agents.testing import ModelCall, ModelStep, ScriptedModel
from openai.types.responses import ResponseCompletedEvent
from openai.types.responses.response_output_item import ImageGenerationCall

from magent2.bus.memory import MemoryBus
from magent2.bus.operations import GetBlob
from magent2.runner import stored_response
from magent2.runner.demo.model import build_response
from magent2.runner.demo.script import ScriptedText
from magent2.worker.lane_run import Outcome
from tests.support.journaled_runs import work
from tests.support.worker_fixture import AGENT, history, outputs, stream

JPEG = b"\xff\xd8\xff\xe0" + bytes(range(256)) * 8000  # 2 MB: more than a record may hold


async def draw(bus: MemoryBus, result: str) -> list[Any]:
    drawn = ImageGenerationCall(id="ig-1", type="image_generation_call", status="completed", result=result)
    response = build_response(ScriptedText("Here."), [{}])
    response.output = [drawn, *response.output]

    async def events(call: ModelCall) -> AsyncIterator[TResponseStreamEvent]:
        yield ResponseCompletedEvent(type="response.completed", response=response, sequence_number=0)

    agent: Agent[Any] = Agent(name=AGENT, model=ScriptedModel([ModelStep.stream(events)]))
    assert await work(bus, agent) is Outcome.ANSWERED
    return [event for event in stream(bus) if event["event"] == "message"]


async def test_an_image_is_stored_as_a_blob_and_named_by_an_event(bus: MemoryBus) -> None:
    (message,) = await draw(bus, base64.b64encode(JPEG).decode())

    (attachment,) = message["attachments"]
    assert (attachment["media_type"], attachment["bytes"]) == ("image/jpeg", len(JPEG))
    assert bus.call(GetBlob(attachment["sha256"])) == JPEG
    assert (message["agent"], message["turn"]) == (AGENT, 0)
    assert outputs(bus) == ["Here."]
    assert len(str(history(bus))) < 5000


@pytest.mark.parametrize("result", ["not base64!", base64.b64encode(b"<script>").decode()])
async def test_invalid_images_are_not_stored(bus: MemoryBus, result: str) -> None:
    (message,) = await draw(bus, result)

    assert (message["text"], message["attachments"]) == (stored_response.IMAGE_REJECTED, [])


async def test_an_image_that_is_too_large_is_not_stored(bus: MemoryBus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_response, "IMAGE_MAX_BYTES", 100)
    (message,) = await draw(bus, base64.b64encode(JPEG).decode())

    assert message["attachments"] == []
