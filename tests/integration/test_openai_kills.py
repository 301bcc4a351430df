"""A response whose gateway and worker are killed in the middle of it, as OpenAI's own client sees it."""

from __future__ import annotations

import random
from collections import defaultdict

import openai
from openai.types.responses import ResponseStreamEvent

from magent2.bus.interface import Engine
from magent2.bus.operations import Leave
from tests.support.audit import whole_log
from tests.support.http_client.service import TOKEN, Service
from tests.support.openai_shapes import check_event
from tests.support.processes import ProcessGroup
from tests.support.worker_fixture import AGENT, LEASE_S

WORDS = " ".join(f"word{number}" for number in range(300))  # for the first worker, half a minute of thinking
SEEN = 4  # pieces of text that the client has when everything is killed


class Reading:
    """What a client knows: the text of each item, the last number, and how the response ended."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = defaultdict(str)
        self.closed: list[str] = []  # items that were given up
        self.pieces = 0
        self.last = -1
        self.ended = ""

    def take(self, event: ResponseStreamEvent) -> None:
        check_event(event.model_dump(exclude_unset=True))
        assert event.sequence_number > self.last
        self.last = event.sequence_number
        if event.type == "response.output_text.delta":
            self.texts[event.item_id] += event.delta
            self.pieces += 1
        elif event.type == "response.output_text.done":
            self.texts[event.item_id] = event.text
        elif event.type == "response.output_item.done" and getattr(event.item, "status", None) == "incomplete":
            self.closed.append(self.texts.pop(str(event.item.id)))
        elif event.type in ("response.completed", "response.failed"):
            self.ended = event.type


def test_a_client_resumes_after_gateway_and_worker_were_killed(
    log_url: str, engine: Engine, process_group: ProcessGroup, rng: random.Random
) -> None:
    service = Service(log_url, engine, process_group, rng)
    port = service.open_gateway()
    service.start_worker(think_max_s=0.2, lease_s=LEASE_S)
    service.await_ready()
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=TOKEN, max_retries=0)
    reading = Reading()

    response_id = ""
    stream = client.responses.create(model=AGENT, input=WORDS, background=True, stream=True)
    for event in stream:
        reading.take(event)
        if event.type == "response.created":
            response_id = event.response.id
        if reading.pieces == SEEN:
            break
    stream.close()
    service.gateways[port].kill()
    for name, child in service.workers.items():
        child.kill()
        engine.call(Leave(name))  # as if its lease had ended. A short one could end earlier on a busy machine.
    service.workers.clear()
    service.open_gateway(port)
    service.start_worker(think_max_s=0.0, lease_s=LEASE_S)
    service.await_ready()
    for event in client.responses.retrieve(response_id, stream=True, starting_after=reading.last):
        reading.take(event)

    found = client.responses.retrieve(response_id)
    client.close()
    assert found.conversation is not None
    outputs = [
        record.payload["text"]
        for record in whole_log(engine, f"stream:{found.conversation.id}")
        if record.payload["event"] == "output"
    ]
    assert reading.ended == "response.completed"
    assert list(reading.texts.values()) == outputs == [found.output_text] == [WORDS]
    assert len(reading.closed) == 1
    assert WORDS.startswith(reading.closed[0].strip())
    service.close_gateways()
