"""`/v1/responses` as OpenAI's own client sees it, over a socket, with a team on a scripted model server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import openai
import pytest

from magent2.bus.interface import Engine
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Lanes, Read, Topics
from magent2.gateway.limits import GatewayLimits
from magent2.models.address import stream_topic
from magent2.roster.spec import AgentSpec
from tests.support.engines import DISTINCT_ENGINES, new_engines
from tests.support.keys import create_key_holder
from tests.support.model_server import Call, Reply
from tests.support.openai_service import openai_service
from tests.support.openai_shapes import check_event, check_response
from tests.support.team import roster
from tests.support.waiting import DEADLINE_S
from tests.support.worker_fixture import history, stream, until

TEXT = "One two three four."


@pytest.fixture
async def bus() -> AsyncIterator[MemoryBus]:
    bus = MemoryBus()
    yield bus
    await bus.aclose()


def checked(response: Any) -> Any:
    """The response, after a comparison with the published types."""
    check_response(response.model_dump(exclude_unset=True, warnings=False))  # the client warns of our items
    return response


# --- create, continue, find again


async def test_a_response_is_created_and_continued_by_its_id(bus: MemoryBus) -> None:
    async with openai_service(bus, [Reply("Hello."), Reply("Again.")]) as service, service.client() as client:
        first = checked(await client.responses.create(model="desk", input="hi", instructions="Be brief."))
        second = checked(await client.responses.create(input="and?", previous_response_id=first.id))

    assert (first.status, first.output_text, second.output_text) == ("completed", "Hello.", "Again.")
    assert first.usage is not None
    assert first.usage.total_tokens == 12
    asked, again = service.model.requests
    assert asked["instructions"].endswith("Be brief.")
    assert "Be brief." not in again["instructions"]  # instructions are not inherited
    assert [item["content"] for item in again["input"] if item["role"] == "user"] == ["hi", "and?"]
    assert second.conversation is not None
    assert first.conversation == second.conversation


async def test_only_the_last_response_can_be_continued(bus: MemoryBus) -> None:
    async with openai_service(bus, [Reply("a"), Reply("b")]) as service, service.client() as client:
        first = await client.responses.create(model="desk", input="hi")
        await client.responses.create(input="and?", previous_response_id=first.id)

        with pytest.raises(openai.BadRequestError, match="last response") as refused:
            await client.responses.create(input="fork", previous_response_id=first.id)

    assert refused.value.code == "previous_response_not_last"
    assert len(service.model.requests) == 2


async def test_a_scenario_is_a_model_and_a_conversation_is_a_session(bus: MemoryBus) -> None:
    async with openai_service(bus, [Reply("a"), Reply("b"), Reply("c")]) as service, service.client() as client:
        await client.responses.create(model="house", input="hi", conversation="talk-1")
        await client.responses.create(model="shop", input="and?", conversation={"id": "talk-1"})
        await client.responses.create(model="shop", input="more", conversation="talk-1")
        names = [model.id for model in (await client.models.list()).data]
        one = await client.models.retrieve("house")

    starts = [record["agent"] for record in history(bus, "talk-1") if record["kind"] == "start"]
    assert starts == ["desk", "shop", "shop"]
    assert names == ["away", "desk", "house", "shop", "stranger"]  # the supervisor only routes
    assert one.id == "house"


async def test_a_response_is_found_again_with_its_input(bus: MemoryBus) -> None:
    items: Any = [{"role": "developer", "content": "Rules."}, {"role": "user", "content": "hi"}]
    async with openai_service(bus, [Reply(TEXT)]) as service, service.client() as client:
        made = await client.responses.create(model="desk", input=items, metadata={"topic": "demo"}, temperature=0.5)
        found = checked(await client.responses.retrieve(made.id))
        listed = [item async for item in client.responses.input_items.list(made.id, order="asc")]
        await client.responses.delete(made.id)
        with pytest.raises(openai.NotFoundError) as gone:
            await client.responses.retrieve(made.id)

    assert found == made
    assert (found.metadata, found.temperature) == ({"topic": "demo"}, 0.5)
    assert [getattr(item, "role", None) for item in listed] == ["developer", "user"]
    assert gone.value.code == "response_not_found"
    assert service.model.requests[0]["temperature"] == 0.5


# --- streams


async def test_the_stream_helper_gives_the_same_response(bus: MemoryBus) -> None:
    async with openai_service(bus, [Reply(TEXT)]) as service, service.client() as client:
        async with client.responses.stream(model="desk", input="hi") as stream:
            deltas = [event.delta async for event in stream if event.type == "response.output_text.delta"]
            final = await stream.get_final_response()
        found = await client.responses.retrieve(final.id)

    assert "".join(deltas) == TEXT == final.output_text == found.output_text


async def test_a_stream_resumes_after_any_of_its_events(bus: MemoryBus) -> None:
    async with openai_service(bus, [Reply(TEXT)]) as service, service.client() as client:
        whole = [event async for event in await client.responses.create(model="desk", input="hi", stream=True)]
        made = whole[0].response.id  # type: ignore[union-attr]
        for event in whole:
            check_event(event.model_dump(exclude_unset=True))

        for place, event in enumerate(whole):
            resumed = await client.responses.retrieve(made, stream=True, starting_after=event.sequence_number)
            rest = [later.sequence_number async for later in resumed]
            assert rest == [later.sequence_number for later in whole[place + 1 :]]


async def test_a_background_response_is_returned_at_once_and_can_be_cancelled(bus: MemoryBus) -> None:
    gate = threading.Event()
    async with openai_service(bus, [Reply(TEXT, gate=gate)]) as service, service.client() as client:
        made = checked(await client.responses.create(model="desk", input="hi", background=True))
        stream = await client.responses.retrieve(made.id, stream=True)
        async for event in stream:
            if event.type == "response.output_text.delta":
                break
        await stream.close()
        cancelled = checked(await client.responses.cancel(made.id))
        again = checked(await client.responses.cancel(made.id))
        gate.set()

    assert made.status in ("queued", "in_progress")
    assert (cancelled.status, again.status) == ("cancelled", "cancelled")


async def test_a_response_that_waits_behind_another_one_is_cancelled_without_a_run(bus: MemoryBus) -> None:
    gate = threading.Event()
    async with openai_service(bus, [Reply(TEXT, gate=gate), Reply("Third.")]) as service, service.client() as client:
        create = client.responses.create
        texts = ("first", "second", "third")
        made = [await create(model="desk", input=text, conversation="c1", background=True) for text in texts]
        await until(lambda: len(service.model.requests) == 1)
        waiting = checked(await client.responses.cancel(made[1].id))
        gate.set()
        await until(lambda: len(service.model.requests) == 2)
        found = [checked(await wait_for(client, one.id)) for one in made]

    assert waiting.status in ("queued", "in_progress")
    assert [one.status for one in found] == ["completed", "cancelled", "completed"]
    assert [one.output_text for one in found] == [TEXT, "", "Third."]
    assert len(service.model.requests) == 2
    assert await bus.acall(Lanes("desk")) == ()  # the stop has left with its message


async def test_a_response_that_waits_behind_a_paused_run_is_cancelled_without_a_run(bus: MemoryBus) -> None:
    desk = AgentSpec("desk", tools=("weather",), approval=("weather",))
    replies = [Reply(calls=[Call("weather", {"city": "Oslo"})]), Reply("Sunny.")]
    async with openai_service(bus, replies, who=roster(desk)) as service, service.client() as client:
        create = client.responses.create
        made = [await create(model="desk", input=text, conversation="c1", background=True) for text in ("one", "two")]
        await until(lambda: any(event["event"] == "approval" for event in stream(bus, "c1")))
        await client.responses.cancel(made[1].id)
        await until(lambda: [(lane.pending, lane.state) for lane in bus.call(Lanes("desk"))] == [(3, "later")])
        (asked,) = [event for event in stream(bus, "c1") if event["event"] == "approval"]
        path = service.url.replace("/v1", f"/api/sdk/session/c1/approvals/{asked['tool_call_id']}")
        async with httpx2.AsyncClient(headers=service.holder.headers, timeout=DEADLINE_S) as http:
            decided = await http.post(path, json={"decision": "approve"})
        found = [await wait_for(client, one.id) for one in made]

    assert decided.status_code == 200, decided.text
    assert [one.status for one in found] == ["completed", "cancelled"]
    assert len(service.model.requests) == 2


async def wait_for(client: openai.AsyncOpenAI, response_id: str) -> Any:
    """The response when it is over."""
    stream = await client.responses.retrieve(response_id, stream=True)
    async for _ in stream:
        pass
    return await client.responses.retrieve(response_id)


async def test_a_response_that_joined_a_run_is_cancelled_with_the_run(bus: MemoryBus) -> None:
    turn, gate = threading.Event(), threading.Event()
    oslo, rome = Call("weather", {"city": "Oslo"}), Call("weather", {"city": "Rome"}, id="call-2")
    calls = [Reply("Let me see.", [oslo], gate=turn), Reply(calls=[rome]), Reply(TEXT, gate=gate)]
    async with openai_service(bus, calls) as service, service.client() as client:
        first = await client.responses.create(model="desk", input="hi", conversation="c1", background=True)
        await until(lambda: len(service.model.requests) >= 1)
        steer: Any = {"when_busy": "steer"}
        joined = await client.responses.create(input="in Celsius", conversation="c1", background=True, extra_body=steer)
        turn.set()
        await until(lambda: len(service.model.requests) == 3)
        cancelled = await client.responses.cancel(joined.id)
        gate.set()

        assert cancelled.status == "cancelled"
        assert (await client.responses.retrieve(first.id)).status == "cancelled"


async def test_a_response_that_interrupts_is_answered_after_the_run_was_stopped(bus: MemoryBus) -> None:
    gate = threading.Event()
    replies = [Reply(TEXT, gate=gate), Reply("At once.")]
    async with openai_service(bus, replies) as service, service.client() as client:
        first = await client.responses.create(model="desk", input="hi", conversation="c1", background=True)
        await until(lambda: len(service.model.requests) == 1)
        interrupt: Any = {"when_busy": "interrupt"}
        second = await client.responses.create(input="now", conversation="c1", extra_body=interrupt)
        gate.set()
        stopped = await client.responses.retrieve(first.id)

    assert (stopped.status, second.status, second.output_text) == ("cancelled", "completed", "At once.")


# --- one run per key


@pytest.mark.parametrize("kind", DISTINCT_ENGINES)
async def test_ten_parallel_posts_with_one_key_are_one_run(kind: str, request: pytest.FixtureRequest) -> None:
    bus: Engine = new_engines(kind, request)()
    async with openai_service(bus, [Reply("Only once.")]) as service, service.client() as client:
        headers = {"Idempotency-Key": "k1"}
        posts = [client.responses.create(model="desk", input="hi", extra_headers=headers) for _ in range(10)]
        made = await asyncio.gather(*posts)

        with pytest.raises(openai.ConflictError) as conflict:
            await client.responses.create(model="desk", input="something else", extra_headers=headers)

    assert {(response.id, response.output_text) for response in made} == {(made[0].id, "Only once.")}
    assert len(service.model.requests) == 1
    assert conflict.value.code == "idempotency_key_reused"
    await bus.aclose()


async def test_the_same_key_of_another_user_is_another_response(bus: MemoryBus) -> None:
    headers = {"Idempotency-Key": "k1"}
    async with openai_service(bus, [Reply("one"), Reply("two")]) as service, service.client() as client:
        other = await create_key_holder(bus, "user:bob")
        first = await client.responses.create(model="desk", input="hi", extra_headers=headers)
        mine = client.with_options(api_key=other.text)
        second = await mine.responses.create(model="desk", input="hi", extra_headers=headers)
        with pytest.raises(openai.NotFoundError):
            await mine.responses.retrieve(first.id)
        with pytest.raises(openai.NotFoundError):
            await mine.responses.create(model="desk", input="x", previous_response_id=first.id)

    assert first.id != second.id


# --- what is refused


FUNCTION: dict[str, Any] = {"type": "function", "name": "f", "parameters": {"type": "object"}}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "x"}

REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"model": "nobody"}, "model", "model_not_found"),
    ({"model": None}, "model", "missing"),
    ({"input": []}, "input", "missing"),
    ({"input": " "}, "input", "missing"),
    ({"colour": "red"}, "colour", "unknown_parameter"),
    ({"truncation": "auto"}, "truncation", "unsupported_parameter"),
    ({"top_logprobs": 3}, "top_logprobs", "unsupported_parameter"),
    ({"service_tier": "flex"}, "service_tier", "unsupported_parameter"),
    ({"prompt": {"id": "p"}}, "prompt", "unsupported_parameter"),
    ({"max_tool_calls": 3}, "max_tool_calls", "unsupported_parameter"),
    ({"include": ["reasoning.encrypted_content"]}, "include[0]", "unsupported_parameter"),
    ({"reasoning": {"summary": "detailed"}}, "reasoning.summary", "unsupported_parameter"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type", "unsupported_parameter"),
    ({"temperature": 9}, "temperature", "invalid_value"),
    ({"max_output_tokens": 0}, "max_output_tokens", "invalid_value"),
    ({"stream": "maybe"}, "stream", "invalid_value"),
    ({"input": [{"type": "computer_call"}]}, "input[0].type", "unsupported_parameter"),
    ({"input": [{"role": "judge", "content": "x"}]}, "input[0].role", "invalid_value"),
    ({"conversation": "c", "previous_response_id": "r"}, "previous_response_id", "mutually_exclusive"),
    ({"previous_response_id": "resp_x"}, "previous_response_id", "previous_response_not_found"),
    ({"store": False, "background": True}, "store", "unsupported_value"),
    ({"store": False, "conversation": "c"}, "store", "unsupported_value"),
    ({"when_busy": "steer", "temperature": 0.5}, "when_busy", "unsupported_value"),
    ({"when_busy": "now"}, "when_busy", "invalid_value"),
    ({"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation", "unsupported_parameter"),
    ({"stream_options": {"colour": 1}}, "stream_options.colour", "unknown_parameter"),
    ({"text": {"format": {"type": "text", "colour": 1}}}, "text.format.colour", "unknown_parameter"),
    ({"tools": [{**FUNCTION, "colour": 1}]}, "tools[0].colour", "unknown_parameter"),
    ({"tools": [{**FUNCTION, "name": "a b"}]}, "tools[0].name", "invalid_value"),
    ({"tools": [{"type": "mcp", "server_label": "x"}]}, "tools[0].type", "unsupported_parameter"),
    ({"tools": [FUNCTION, FUNCTION]}, "tools", "invalid_value"),
    ({"tool_choice": "any"}, "tool_choice", "invalid_value"),
    ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice.type", "unsupported_parameter"),
    ({"tool_choice": {"type": "function"}}, "tool_choice.name", "missing"),
    ({"input": ["hi"]}, "input[0]", "invalid_value"),
    ({"input": [{"role": "user", "content": "a"}, {**CALL}]}, "input[1]", "missing_output"),
    ({"input": [CALL, OUTPUT, OUTPUT]}, "input[2]", "duplicate_output"),
    ({"input": [OUTPUT]}, "input", "unknown_call"),
    ({"input": [{"type": "item_reference"}]}, "input[0].id", "missing"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}] * 201}]},
        "input[0].content",
        "invalid_value",
    ),
    ({"conversation": ""}, "conversation", "invalid_value"),
    ({"conversation": "schedule:x"}, "conversation", "invalid_value"),
    ({"conversation": {}}, "conversation.id", "invalid_value"),
    ({"conversation": {"id": "c", "colour": 1}}, "conversation.colour", "unknown_parameter"),
]


async def test_what_cannot_be_honoured_is_refused_by_name_and_changes_nothing(bus: MemoryBus) -> None:
    async with (
        openai_service(bus, []) as service,
        httpx2.AsyncClient(headers=service.holder.headers, timeout=DEADLINE_S) as client,
    ):
        for body, param, code in REFUSED:
            answer = await client.post(f"{service.url}/responses", json={"model": "desk", "input": "hi", **body})
            error = answer.json()["error"]
            assert (error["param"], error["code"]) == (param, code), body
            assert answer.status_code == (404 if code.endswith("not_found") else 400), body
        sessions = await client.get(f"{service.url.removesuffix('/v1')}/api/sdk/sessions")

    assert sessions.json()["sessions"] == []


async def test_a_parameter_that_is_null_is_one_that_is_not_given(bus: MemoryBus) -> None:
    optional = {"background", "stream", "store", "include", "when_busy", "text", "tools", "metadata", "truncation"}
    async with openai_service(bus, [Reply("Hello.")]) as service, service.client() as client:
        made = await client.responses.create(model="desk", input="hi", extra_body=dict.fromkeys(optional))

    assert (made.status, made.output_text) == ("completed", "Hello.")


async def test_parameters_of_the_query_are_refused_by_name(bus: MemoryBus) -> None:
    refused = [
        ("include[]=reasoning.encrypted_content", "include"),  # as OpenAI's client writes it
        ("include=x", "include"),
        ("colour=red", "colour"),
        ("starting_after=1", "starting_after"),
        ("stream=true&starting_after=-1", "starting_after"),
    ]
    async with openai_service(bus, [Reply("Hello.")]) as service, service.client() as client:
        made = await client.responses.create(model="desk", input="hi")
        async with httpx2.AsyncClient(headers=service.holder.headers) as http:
            for query, param in refused:
                answer = await http.get(f"{service.url}/responses/{made.id}?{query}")
                assert (answer.is_client_error, answer.json()["error"]["param"]) == (True, param), query
            plain = await http.get(f"{service.url}/responses/{made.id}?stream=false&include_obfuscation=false")

    assert plain.status_code == 200


async def test_a_rejected_message_does_not_make_another_agent_active(bus: MemoryBus) -> None:
    gate = threading.Event()
    async with openai_service(bus, [Reply("One two.", gate=gate)]) as service, service.client() as client:
        await client.responses.create(model="desk", input="hi", conversation="talk", background=True)
        before = bus.call(Read(stream_topic("talk"), 0, 100)).last
        with pytest.raises(openai.ConflictError) as refused:
            await client.responses.create(
                model="shop", input="and?", conversation="talk", extra_body={"when_busy": "reject"}
            )
        events = bus.call(Read(stream_topic("talk"), before, 100)).records
        gate.set()

    assert refused.value.code == "busy"
    assert "session" not in {record.payload["event"] for record in events}


async def test_parallel_repeats_of_a_message_that_may_be_rejected_get_one_answer(bus: MemoryBus) -> None:
    async with openai_service(bus, [Reply("One."), Reply("Two.")]) as service, service.client() as client:
        await client.responses.create(model="desk", input="hi", conversation="talk")
        more: Any = {"extra_headers": {"Idempotency-Key": "k1"}, "extra_body": {"when_busy": "reject"}}
        posts = [client.responses.create(model="shop", input="and?", conversation="talk", **more) for _ in range(10)]
        answers = await asyncio.gather(*posts)

    assert {answer.output_text for answer in answers} == {"Two."}
    assert len({answer.id for answer in answers}) == 1


async def test_a_deleted_response_cannot_be_continued(bus: MemoryBus) -> None:
    async with openai_service(bus, [Reply("Hello.")]) as service, service.client() as client:
        made = await client.responses.create(model="desk", input="hi")
        await client.responses.delete(made.id)
        with pytest.raises(openai.NotFoundError) as refused:
            await client.responses.create(input="and?", previous_response_id=made.id)

    assert (refused.value.param, refused.value.code) == ("previous_response_id", "previous_response_not_found")


async def test_a_request_that_is_too_long_leaves_no_session_and_no_file(bus: MemoryBus) -> None:
    picture = {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"}
    broken = {"type": "input_image", "image_url": "data:image/png;base64,!"}
    long: Any = [{"role": "user", "content": [{"type": "input_text", "text": "x" * 2_000_000}, picture]}]
    half: Any = [{"role": "user", "content": [picture, broken]}]
    async with openai_service(bus, []) as service, service.client() as client:
        with pytest.raises(openai.APIStatusError) as too_long:
            await client.responses.create(model="desk", input=long)
        with pytest.raises(openai.BadRequestError) as bad_file:
            await client.responses.create(model="desk", input=half)

    assert (too_long.value.status_code, too_long.value.param) == (413, "input")
    assert bad_file.value.param == "input[0].content[1]"
    assert bus.call(Topics("stream:")).topics == bus.call(Topics("file:")).topics == ()


async def test_every_error_has_the_shape_of_openai(bus: MemoryBus) -> None:
    limits = GatewayLimits(inline_body_max_bytes=1 << 20)
    async with (
        openai_service(bus, [], limits=limits) as service,
        httpx2.AsyncClient(base_url=service.url, timeout=DEADLINE_S) as client,
    ):
        mine = service.holder.headers
        large = b'{"input": "' + b"x" * 2_000_000 + b'"}'
        json_type = {**mine, "content-type": "application/json"}
        answers = {
            401: await client.get("/models"),
            404: await client.get("/nothing", headers=mine),
            405: await client.put("/responses", headers=mine),
            413: await client.post("/responses", content=large, headers=json_type),
            415: await client.post("/responses", content=b"hi", headers=mine),
            422: await client.get("/responses/resp_x", params={"starting_after": "x"}, headers=mine),
            400: await client.post("/responses", content=b"[]", headers=json_type),
        }

    for status, answer in answers.items():
        assert answer.status_code == status
        assert answer.json()["error"].keys() == {"message", "type", "param", "code"}
    assert answers[422].json()["error"]["param"] == "starting_after"
    assert answers[400].json()["error"]["param"] is None


# --- the agents' own tools


async def test_own_tools_are_never_calls_for_the_client(bus: MemoryBus) -> None:
    def script() -> list[Reply]:
        return [Reply("Let me see.", calls=[Call("weather", {"city": "Oslo"})]), Reply("Cold.")]

    async with openai_service(bus, script() * 2) as service, service.client() as client:
        plain = checked(await client.responses.create(model="desk", input="weather?"))
        shown = checked(
            await client.responses.create(
                model="desk", input="weather?", extra_body={"include": ["magent2:tool_calls"]}
            )
        )

    assert plain.output_text == shown.output_text == "Let me see.Cold."
    assert [item.type for item in plain.output] == ["message", "message"]
    assert [item.type for item in shown.output] == ["message", "magent2:tool_call", "message"]
    step = shown.output[1].model_dump(warnings=False)
    assert (step["name"], step["arguments"], step["status"]) == ("weather", {"city": "Oslo"}, "completed")


# --- tools of the client

PICK: Any = {
    "type": "function",
    "name": "pick",
    "description": "Pick a number.",
    "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}},
    "strict": None,
}
TWO_CALLS = Reply("Two picks.", calls=[Call("pick", {"n": 1}, "call-a"), Call("pick", {"n": 2}, "call-b")])


def output(call_id: str, text: str) -> Any:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


async def test_a_run_waits_for_the_outputs_of_the_clients_tools_and_goes_on(bus: MemoryBus) -> None:
    outputs = [output("call-a", "one"), output("call-b", "two")]
    async with openai_service(bus, [TWO_CALLS, Reply("Done.")]) as service, service.client() as client:
        asked = checked(await client.responses.create(model="desk", input="pick", tools=[PICK]))
        made = checked(await client.responses.create(previous_response_id=asked.id, input=outputs))
        again = await client.responses.create(previous_response_id=asked.id, input=outputs)
        found = checked(await client.responses.retrieve(made.id))
        first = await client.responses.retrieve(asked.id)

    assert (asked.status, [item.type for item in asked.output]) == ("completed", ["message", *["function_call"] * 2])
    assert (made.output_text, made.id == again.id, found.output_text) == ("Done.", True, "Done.")
    assert first.output == asked.output
    assert len(service.model.requests) == 2
    assert "pick" in {tool.get("name") for tool in service.model.requests[0]["tools"]}
    results = [item for item in service.model.requests[1]["input"] if item.get("type") == "function_call_output"]
    assert [item["output"] for item in results] == ["one", "two"]
    assert made.conversation is not None
    kinds = [record["kind"] for record in history(bus, made.conversation.id)]
    assert (kinds.count("start"), kinds.count("end")) == (1, 1)  # it is one run


async def test_lists_tell_that_a_run_waits_for_its_client_and_not_for_approval(bus: MemoryBus) -> None:
    pick: Any = {"type": "function", "name": "pick", "parameters": {"type": "object"}, "strict": None}
    given: Any = [{"type": "function_call_output", "call_id": "call-1", "output": "one"}]
    async with (
        openai_service(bus, [Reply(calls=[Call("pick")]), Reply("Done.")]) as service,
        service.client() as client,
    ):
        path = service.url.replace("/v1", "/api/sdk/sessions")
        async with httpx2.AsyncClient(headers=service.holder.headers, timeout=DEADLINE_S) as http:
            asked = await client.responses.create(model="desk", input="hi", tools=[pick])
            (waiting,) = (await http.get(path, params={"state": "waiting"})).json()["sessions"]
            await client.responses.create(previous_response_id=asked.id, input=given)
            (ended,) = (await http.get(path)).json()["sessions"]

    assert (waiting["client_calls"], waiting["approvals"], waiting["run_status"]) == (1, 0, "running")
    assert (ended["client_calls"], ended["approvals"], ended["run_status"]) == (0, 0, "finished")


async def test_outputs_that_are_missing_unknown_or_different_are_refused_by_name(bus: MemoryBus) -> None:
    async with openai_service(bus, [TWO_CALLS, Reply("Done.")]) as service, service.client() as client:
        asked = await client.responses.create(model="desk", input="pick", tools=[PICK])

        async def refused(items: Any, **more: Any) -> str | None:
            with pytest.raises(openai.APIStatusError) as error:
                await client.responses.create(input=items, previous_response_id=asked.id, **more)
            return error.value.code

        assert await refused([output("call-a", "one")]) == "missing_output"
        assert await refused([output("call-x", "one")]) == "unknown_call"
        assert await refused("never mind") == "missing_output"
        both = [output("call-a", "one"), output("call-b", "two")]
        assert await refused(both, instructions="Others.") == "unsupported_value"
        made = await client.responses.create(input=both, previous_response_id=asked.id)
        assert await refused([output("call-a", "another"), output("call-b", "two")]) == "already_answered"

    assert made.output_text == "Done."


async def test_an_earlier_response_of_the_same_run_cannot_be_continued(bus: MemoryBus) -> None:
    outputs = [output("call-a", "one"), output("call-b", "two")]
    async with openai_service(bus, [TWO_CALLS, Reply("Done."), Reply("Bye.")]) as service, service.client() as client:
        asked = await client.responses.create(model="desk", input="pick", tools=[PICK])
        made = await client.responses.create(previous_response_id=asked.id, input=outputs)
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.create(previous_response_id=asked.id, input="and?")
        last = await client.responses.create(previous_response_id=made.id, input="and?")

    assert (refused.value.param, refused.value.code) == ("previous_response_id", "previous_response_not_last")
    assert last.output_text == "Bye."


async def test_two_outputs_of_one_call_are_refused(bus: MemoryBus) -> None:
    twice = [output("call-a", "one"), output("call-b", "two"), output("call-a", "three")]
    async with openai_service(bus, [TWO_CALLS, Reply("Done.")]) as service, service.client() as client:
        asked = await client.responses.create(model="desk", input="pick", tools=[PICK])
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.create(previous_response_id=asked.id, input=twice)
        made = await client.responses.create(previous_response_id=asked.id, input=twice[:2])

    assert (refused.value.param, refused.value.code) == ("input[2]", "duplicate_output")
    assert made.output_text == "Done."


async def test_without_a_store_the_calls_end_the_run_and_nothing_is_kept(bus: MemoryBus) -> None:
    async with openai_service(bus, [TWO_CALLS, Reply("Done.")]) as service, service.client() as client:
        asked = checked(await client.responses.create(model="desk", input="pick", tools=[PICK], store=False))
        items: Any = [{"role": "user", "content": "pick"}]
        items += [item.model_dump(exclude_none=True) for item in asked.output]
        items += [output("call-a", "one"), output("call-b", "two")]
        made = checked(await client.responses.create(model="desk", input=items, tools=[PICK], store=False))
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(asked.id)

    assert [item.type for item in asked.output] == ["message", "function_call", "function_call"]
    assert made.output_text == "Done."
    assert bus.call(Topics("stream:")).topics == ()


# --- files


PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


async def test_files_in_the_input_are_stored_and_reach_the_model_as_parts(bus: MemoryBus) -> None:
    picture, text = f"data:image/png;base64,{PNG}", "data:text/plain;base64,aGVsbG8="
    content: Any = [
        {"type": "input_text", "text": "look"},
        {"type": "input_image", "image_url": picture, "detail": "low"},
        {"type": "input_file", "filename": "a.txt", "file_data": text},
    ]
    chat: Any = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": picture}}]
    async with openai_service(bus, [Reply("A dot."), Reply("A dot.")]) as service, service.client() as client:
        made = checked(await client.responses.create(model="desk", input=[{"role": "user", "content": content}]))
        await client.chat.completions.create(model="desk", messages=[{"role": "user", "content": chat}])
        far: Any = [{"type": "input_image", "image_url": "https://example.org/a.png"}]
        with pytest.raises(openai.BadRequestError, match="does not fetch files"):
            await client.responses.create(model="desk", input=[{"role": "user", "content": far}])
        other: Any = [{"type": "input_image", "file_id": "file-of-another"}]
        with pytest.raises(openai.APIStatusError, match="no file"):
            await client.responses.create(model="desk", input=[{"role": "user", "content": other}])

    assert made.output_text == "A dot."
    first, second = (request["input"][-1]["content"] for request in service.model.requests)
    assert [part["type"] for part in first] == ["input_text", "input_image", "input_text"]
    assert first[1]["image_url"] == second[1]["image_url"] == picture
    assert PNG not in str([record.payload for record in bus.call(Read("chat:desk")).records])


async def test_all_files_of_a_request_are_shown_and_too_many_are_refused(bus: MemoryBus) -> None:
    parts: Any = [
        {"type": "input_file", "filename": f"{number}.txt", "file_data": "data:text/plain;base64,aGVsbG8="}
        for number in range(101)
    ]
    async with openai_service(bus, [Reply("Many.")]) as service, service.client() as client:
        again = [*parts[:25], *parts[:25]]  # one file is named once
        made = await client.responses.create(model="desk", input=[{"role": "user", "content": again}])
        with pytest.raises(openai.BadRequestError, match="at most 100 parts") as refused:
            await client.responses.create(model="desk", input=[{"role": "user", "content": parts}])

    assert made.conversation is not None
    (shown,) = [event for event in stream(bus, made.conversation.id) if event["event"] == "user_message"]
    assert [file["name"] for file in shown["attachments"]] == [f"{number}.txt" for number in range(25)]
    assert refused.value.code == "too_many_files"
    assert len(bus.call(Topics("file:")).topics) == 25
