"""Structured output on a real server: the client asks for a pydantic model, the process dies between two turns."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pydantic import BaseModel, field_validator

from magent2.client import Client
from magent2.errors import OutputMismatch, RequestRefused, RunFailed
from tests.support.command_line import CommandLine
from tests.support.http_client.service import quiet_port
from tests.support.model_server import ModelServer, Reply
from tests.support.waiting import eventually

TEAM = '[[scenario]]\nid = "s"\n[[scenario.agent]]\nname = "desk"\noutput_schema = "bills:Bill"\n'
MODULE = "from pydantic import BaseModel\nclass Bill(BaseModel):\n    total: float\n"
BAD, GOOD = '{"total": "seven"}', '{"total": 7}'


class Bill(BaseModel):
    total: float

    @field_validator("total")
    @classmethod
    def _check(cls, total: float) -> float:
        if total < 0:
            raise ValueError("a bill is not negative")
        return total


class Script:
    """Answers by the text of the request. The first correction of `slow` is held until its process is dead."""

    def __init__(self) -> None:
        self.told: list[bool] = []
        self.asked_again = threading.Event()
        self.release = threading.Event()

    def __call__(self, request: dict[str, Any]) -> Reply:
        question = next(item["content"] for item in reversed(request["input"]) if "cost" in str(item["content"]))
        told = "does not match" in json.dumps(request["input"][-1])
        if question == "cost, never right":
            return Reply("about seven")
        if question == "cost, negative":
            return Reply('{"total": -1}')
        self.told.append(told)
        if not told:
            return Reply(BAD)
        gate = None if self.asked_again.is_set() else self.release
        self.asked_again.set()
        return Reply(GOOD, gate=gate)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "magent2.toml").write_text(TEAM)
    (tmp_path / "bills.py").write_text(MODULE)
    (tmp_path / "schema.json").write_text(json.dumps(Bill.model_json_schema()))
    return tmp_path


def test_the_answer_is_a_model_although_its_process_dies_before_the_second_turn(folder: Path) -> None:
    script = Script()
    with ModelServer(script) as server:
        variables = {"OPENAI_API_KEY": "any", "OPENAI_BASE_URL": server.url}  # pragma: allowlist secret
        with CommandLine(folder / "data", folder=folder, **variables) as commands:
            options = ("serve", "--config", "magent2.toml", "--port", str(quiet_port()))
            process = commands.start(*options)
            _, url, token = commands.greeting(process)
            found: list[Bill] = []
            asking = threading.Thread(target=lambda: found.append(ask(url, token, "cost?")))
            asking.start()
            assert script.asked_again.wait(60)
            process.kill()
            process.wait()
            script.release.set()
            commands.greeting(commands.start(*options))
            asking.join(60)

            assert found == [Bill(total=7)]
            assert script.told == [False, True, True]  # the killed worker asked once, and another one for it
            check_errors(url, token)
            check_session_api(url, token)
            place = ("--url", url, "--token", token)
            done = commands.run("send", "desk", "cost?", "--schema", "schema.json", *place)
            assert (done.code, done.out) == (0, f"{GOOD}\n")
            bad = commands.run("send", "desk", "cost?", "--schema", "bills.py", *place)
            assert (bad.code, "--schema bills.py: Expecting value" in bad.err) == (2, True)


def ask(url: str, token: str, text: str) -> Bill:
    with Client(url, token) as client:
        return client.ask("desk", text, schema=Bill, conversation_id="one", timeout_s=60)


def check_errors(url: str, token: str) -> None:
    with Client(url, token) as client:
        with pytest.raises(RunFailed, match="the answer does not match its schema"):
            client.ask("desk", "cost, never right", schema=Bill)
        (letter,) = eventually(lambda: client.dead("desk").letters)
        assert "OutputMismatch" in letter.model_dump_json()
        with pytest.raises(OutputMismatch, match="the answer is not a Bill"):
            client.ask("desk", "cost, negative", schema=Bill)
        hostile = {"run_options": {"output_schema": {"schema": {"$ref": "http://127.0.0.1:9/x"}}}}
        with pytest.raises(RequestRefused, match="does not name a schema of this document"):
            client.send("desk", "cost?", metadata=hostile)


def check_session_api(url: str, token: str) -> None:
    with httpx2.Client(base_url=url, headers={"authorization": f"Bearer {token}"}, timeout=60) as http:
        http.post("/api/sdk/session/create", json={"session_id": "two"})
        said = {"session_id": "two", "user_input": "cost?"}
        schema = {"type": "object", "properties": {"total": {"type": "integer"}}, "required": ["total"]}
        answer = http.post("/api/sdk/session/message", json={**said, "output_schema": {"schema": schema}}).json()
        refused = http.post("/api/sdk/session/message", json={**said, "output_schema": {"schema": {"type": "?"}}})
        texts = [line["text"] for line in http.get("/api/sdk/session/two/transcript").json()["messages"]]
    assert answer["final_output"] == GOOD
    assert texts == ["cost?", GOOD]
    assert (refused.status_code, "it is not a JSON Schema" in refused.text) == (422, True)
