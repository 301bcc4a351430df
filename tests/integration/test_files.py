"""Files of messages: what a real model server receives, through the client, the command line and the session API.

The gateway and the worker are a real process. The model is a real HTTP server.
"""

from __future__ import annotations

import base64
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from magent2.bus.connect import connect
from magent2.bus.interface import Engine
from magent2.bus.log import run_sync
from magent2.bus.operations import SweepBlobs, Topics
from magent2.bus.retention import RetentionPolicy
from magent2.client import AsyncClient, Client
from magent2.errors import NotFound
from magent2.sessions.files import CHUNK_BYTES, UPLOAD_ABANDONED_S, UPLOADING
from magent2.sessions.sweep import sweep_log
from tests.support.audit import whole_log
from tests.support.command_line import CommandLine
from tests.support.files import PDF, PNG, WAV
from tests.support.model_server import Json, ModelServer, Reply
from tests.support.waiting import DEADLINE_S, eventually

NOTES = b"The colour of the week is vermilion."
FILE = """
[[scenario]]
id = "desk"
root = "seer"

[[scenario.agent]]
name = "seer"

[[scenario.agent]]
name = "listener"
accepts = ["audio"]

[[scenario.agent]]
name = "reader"
accepts = ["text"]
"""


@dataclass(slots=True)
class Service:
    """A process that serves a log, and the model that it asks."""

    commands: CommandLine
    log_url: str
    model: ModelServer
    config: Path
    variables: dict[str, str] = field(default_factory=dict)
    url: str = ""
    process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        key = {"OPENAI_API_KEY": "any"}  # pragma: allowlist secret
        given = {**key, "OPENAI_BASE_URL": self.model.url, "MAGENT2_LIMIT_LEASE_S": "1", **self.variables}
        place = ("--bus", self.log_url, "--config", str(self.config), "--port", "0")
        self.process = self.commands.start("serve", *place, **given)
        _, self.url, _ = self.commands.greeting(self.process)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def client(self, token: str | None = None) -> Client:
        return Client(self.url, token or self.commands.token)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One service for the tests that kill nothing."""
    folder = tmp_path_factory.mktemp("files")
    with ModelServer(lambda _: Reply("I see.")) as model, CommandLine(folder / "data") as commands:
        (folder / "team.toml").write_text(FILE)
        made = Service(commands, f"sqlite:///{folder / 'log.db'}", model, folder / "team.toml")
        made.start()
        yield made


def parts(request: Json) -> list[Json]:
    """The parts of the last message of a request. Plain text is one part."""
    content = request["input"][-1]["content"]
    return [{"type": "input_text", "text": content}] if isinstance(content, str) else content


def decoded(url: str) -> tuple[str, bytes]:
    head, _, body = url.partition(",")
    return head, base64.b64decode(body)


def check_parts(found: list[Json], text: str) -> None:
    """A text, a PNG, a PDF and a text file, as the model has to get them."""
    assert [part["type"] for part in found] == ["input_text", "input_image", "input_file", "input_text"]
    assert found[0]["text"] == text
    assert decoded(found[1]["image_url"]) == ("data:image/png;base64", PNG)
    assert found[2]["filename"] == "report.pdf"
    assert decoded(found[2]["file_data"]) == ("data:application/pdf;base64", PDF)
    assert found[3]["text"].startswith("[attached: notes.txt, text/plain, 36 bytes]")
    assert found[3]["text"].endswith(NOTES.decode())


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    found = [tmp_path / name for name in ("photo.png", "report.pdf", "notes.txt")]
    for path, content in zip(found, (PNG, PDF, NOTES), strict=True):
        path.write_bytes(content)
    return found


def test_the_client_sends_files_and_later_turns_have_them_too(service: Service, paths: list[Path]) -> None:
    with service.client() as client:
        sent = client.send("seer", "Look", files=[paths[0], ("report.pdf", PDF), str(paths[2])])
        client.wait(sent, DEADLINE_S)
        first = service.model.requests[-1]
        client.ask("seer", "And now?", conversation_id=sent.conversation_id, timeout_s=DEADLINE_S)
        second = service.model.requests[-1]

    check_parts(parts(first), "Look")
    assert second["input"][0] == first["input"][0]
    assert second["input"][-1]["content"] == "And now?"


async def test_the_asynchronous_client_sends_files(service: Service, paths: list[Path]) -> None:
    async with AsyncClient(service.url, service.commands.token) as client:
        uploaded = await client.upload(paths[0])
        await client.ask("seer", "Hm", files=[uploaded, paths[1], paths[2]], timeout_s=DEADLINE_S)
        listed = await client.files(limit=3)

        check_parts(parts(service.model.requests[-1]), "Hm")
        assert {file.name for file in listed.files} == {path.name for path in paths}
        assert await client.download(uploaded.file_id) == PNG
        await client.delete_file(uploaded.file_id)
        with pytest.raises(NotFound):
            await client.download(uploaded.file_id)


def test_the_command_line_sends_files(service: Service, paths: list[Path]) -> None:
    options = [word for path in paths for word in ("--file", str(path))]
    done = service.commands.run("send", "seer", "From here", *options, "--wait", MAGENT2_URL=service.url)
    sent = parts(service.model.requests[-1])
    lines = f"/file {paths[2]}\nRead it\n"
    service.commands.run("chat", "seer", "--file", str(paths[0]), stdin=lines, MAGENT2_URL=service.url)
    missing = service.commands.run("send", "seer", "x", "--file", "nowhere.png", MAGENT2_URL=service.url)

    assert (done.code, done.out) == (0, "I see.\n")
    check_parts(sent, "From here")
    assert [part["type"] for part in parts(service.model.requests[-1])] == ["input_text", "input_image", "input_text"]
    assert (missing.code, "nowhere.png" in missing.err) == (2, True)


def test_the_session_api_takes_a_message_of_files_only(service: Service) -> None:
    with service.client() as client:
        session = client.create_session(agent="seer")
        file = client.upload(("photo.png", PNG))
        http = client._http
        body = {"session_id": session, "user_input": "", "attachments": [file.file_id]}
        answered = http.post("/api/sdk/session/message", json=body)
        events = http.get(f"/api/sdk/session/{session}/events").json()["events"]
        shown = next(event for event in events if event["role"] == "user")
        listed = next(item for item in client.conversations().conversations if item.conversation_id == session)

    assert answered.json()["final_output"] == "I see."
    assert [part["type"] for part in parts(service.model.requests[-1])] == ["input_image"]
    assert shown["data"]["attachments"] == [
        {"file_id": file.file_id, "name": "photo.png", "media_type": "image/png", "size": len(PNG)}
    ]
    assert listed.title == "photo.png"


def test_a_model_gets_the_content_that_it_accepts_and_the_names_of_the_rest(service: Service) -> None:
    files = [("photo.png", PNG), ("voice.wav", WAV), ("notes.txt", NOTES)]
    with service.client() as client:
        client.ask("reader", "Read", files=files, timeout_s=DEADLINE_S)
        read = service.model.requests[-1]["input"][-1]["content"]
        client.ask("listener", "Listen", files=files, timeout_s=DEADLINE_S)
        heard = parts(service.model.requests[-1])

    assert read.split("\n\n")[:3] == [
        "Read",
        f"[attached: photo.png, image/png, {len(PNG)} bytes]",
        f"[attached: voice.wav, audio/wav, {len(WAV)} bytes]",
    ]
    assert read.endswith(NOTES.decode())
    assert [part["type"] for part in heard] == ["input_text", "input_text", "input_audio", "input_text"]
    assert heard[2]["input_audio"] == {"data": base64.b64encode(WAV).decode(), "format": "wav"}


def test_a_deleted_file_is_named_and_its_message_is_still_the_same_message(service: Service) -> None:
    with service.client() as client:
        file = client.upload(("photo.png", PNG))
        sent = client.send("seer", "Look", files=[file])
        client.wait(sent, DEADLINE_S)
        client.delete_file(file.file_id)

        again = client.send(
            "seer", "Look", conversation_id=sent.conversation_id, envelope_id=sent.envelope_id, files=[file]
        )
        client.ask("seer", "And now?", conversation_id=sent.conversation_id, timeout_s=DEADLINE_S)
        with pytest.raises(NotFound):
            client.send("seer", "Look", files=[file])

    first = service.model.requests[-1]["input"][0]["content"]
    assert again.seq == sent.seq
    assert first == f"Look\n\n[attached: photo.png, image/png, {len(PNG)} bytes; the file was deleted]"


def test_files_of_others_do_not_exist(service: Service) -> None:
    keys = [
        service.commands.run("keys", "create", "--scope", f"user:{name}", "--json", "--bus", service.log_url).json
        for name in ("ann", "bob")
    ]
    with service.client(keys[0]["key"]) as ann, service.client(keys[1]["key"]) as bob:
        file = ann.upload(("photo.png", PNG))
        session = bob.create_session(agent="seer")
        message = {"session_id": session, "user_input": "hi", "attachments": [file.file_id]}
        options = {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": file.file_id}]}]}
        envelope = {"conversation_id": session, "recipient": f"chat:{session}", "content": "hi"}
        http = bob._http
        path = f"/api/files/{file.file_id}"
        answers = [
            http.get(path),
            http.get(f"{path}/content"),
            http.delete(path),
            http.post("/api/sdk/session/message", json=message),
            http.post("/send", json={**envelope, "metadata": {"attachments": [file.file_id]}}),
            http.post("/send", json={**envelope, "metadata": {"attachments": [{"file_id": file.file_id}]}}),
            http.post("/send", json={**envelope, "metadata": {"run_options": options}}),
        ]

        assert [(answer.status_code, answer.json()["code"]) for answer in answers] == [(404, "unknown_file")] * 7
        assert bob.files().files == []
        assert [one.file_id for one in ann.files().files] == [file.file_id]
        assert http.get("/api/files", params={"owner": "user:ann"}).json()["files"] == []
        assert ann.download(file.file_id) == PNG


# --- /v1


def data_url(media_type: str, content: bytes) -> str:
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


def test_parts_of_a_responses_request_reach_the_model(service: Service) -> None:
    with service.client() as client:
        note = client.upload(("notes.txt", NOTES))
        content = [
            {"type": "input_text", "text": "Look"},
            {"type": "input_image", "image_url": data_url("image/png", PNG), "detail": "low"},
            {"type": "input_file", "filename": "report.pdf", "file_data": data_url("application/pdf", PDF)},
            {"type": "input_file", "file_id": note.file_id},
        ]
        body = {"model": "seer", "input": [{"role": "user", "content": content}]}
        http = client._http
        key = {"idempotency-key": "look-1"}
        answers = [http.post("/v1/responses", json=body, headers=key).json() for _ in range(2)]
        sent = parts(service.model.requests[-1])
        items = http.get(f"/v1/responses/{answers[0]['id']}/input_items").json()["data"]
        stored = [file for file in client.files().files if file.conversation_id is not None]

    check_parts(sent, "Look")
    assert sent[1]["detail"] == "low"
    assert answers[0]["id"] == answers[1]["id"]
    assert [part["type"] for part in items[0]["content"]] == ["input_text", "input_image", "input_file", "input_file"]
    assert "data:" not in str(items)
    assert sorted(file.name for file in stored) == ["image", "report.pdf"]


def test_parts_of_a_chat_completion_reach_the_model_and_are_deleted_with_it(service: Service) -> None:
    audio = {"data": base64.b64encode(WAV).decode(), "format": "wav"}
    content = [
        {"type": "text", "text": "Look"},
        {"type": "image_url", "image_url": {"url": data_url("image/png", PNG)}},
        {"type": "file", "file": {"filename": "report.pdf", "file_data": data_url("application/pdf", PDF)}},
        {"type": "input_audio", "input_audio": audio},
    ]
    with service.client() as client:
        before = {file.file_id for file in client.files().files}
        body = {"model": "listener", "messages": [{"role": "user", "content": content}]}
        answer = client._http.post("/v1/chat/completions", json=body).json()
        eventually(lambda: {file.file_id for file in client.files().files} == before)

    assert answer["choices"][0]["message"]["content"] == "I see."
    sent = parts(service.model.requests[-1])
    assert [part["type"] for part in sent] == ["input_text", "input_text", "input_text", "input_audio"]
    assert sent[1]["text"].startswith("[attached: image, image/png")


def test_parts_that_cannot_be_used_are_refused_by_name(service: Service) -> None:
    bad = [
        ({"type": "input_image", "image_url": "https://example.org/a.png"}, 400, "does not fetch files", ".image_url"),
        ({"type": "input_file", "file_url": "https://example.org/a.pdf"}, 400, "does not fetch files", ".file_url"),
        ({"type": "input_file", "file_data": data_url("application/pdf", b"MZ\0")}, 400, "Windows program", ""),
        ({"type": "input_file", "filename": "a.txt", "file_data": "not base64"}, 400, "base64", ""),
        ({"type": "input_image", "file_id": "file-unknown"}, 404, "there is no file", ".file_id"),
        ({"type": "input_audio", "input_audio": {"data": "x", "format": "ogg"}}, 400, "wav or mp3", ".input_audio"),
    ]
    with service.client() as client:
        for part, status, text, field in bad:
            body = {"model": "seer", "input": [{"role": "user", "content": [part]}]}
            answer = client._http.post("/v1/responses", json=body)

            error = answer.json()["error"]
            assert (answer.status_code, text in error["message"]) == (status, True), answer.text
            assert error["param"] == f"input[0].content[0]{field}"


# --- kills


def serving(folder: Path, log_url: str, model: ModelServer, commands: CommandLine) -> Service:
    (folder / "team.toml").write_text(FILE)
    service = Service(commands, log_url, model, folder / "team.toml")
    service.start()
    return service


def test_a_run_that_is_taken_over_sends_the_same_parts_and_records_none(tmp_path: Path, paths: list[Path]) -> None:
    log_url = f"sqlite:///{tmp_path / 'log.db'}"
    replies = iter([Reply("never sent", pause_s=60.0), Reply("I see.")])
    with ModelServer(lambda _: next(replies)) as model, CommandLine(tmp_path / "data") as commands:
        service = serving(tmp_path, log_url, model, commands)
        with service.client() as client:
            sent = client.send("seer", "Look", files=paths)
        eventually(lambda: model.requests)
        service.kill()
        service.start()
        with service.client() as client:
            answer = client.wait(sent, DEADLINE_S)
        service.kill()

    assert answer.text == "I see."
    assert len(model.requests) == 2
    check_parts(parts(model.requests[0]), "Look")
    assert model.requests[1]["input"] == model.requests[0]["input"]
    with closing(connect(log_url)) as bus:
        topics = [info.topic for info in bus.call(Topics("", limit=1000)).topics]
        recorded = repr([record.payload for topic in topics for record in whole_log(bus, topic)])
    assert base64.b64encode(PDF).decode()[:60] not in recorded
    assert NOTES.decode() not in recorded


def test_an_upload_that_dies_with_its_gateway_is_swept(engine: Engine, log_url: str, tmp_path: Path) -> None:
    with ModelServer([]) as model, CommandLine(tmp_path / "data") as commands:
        service = serving(tmp_path, log_url, model, commands)
        with service.client() as client:
            kept = client.upload(("kept.png", PNG))
        address = urlsplit(service.url)
        with socket.create_connection((address.hostname or "", address.port or 0)) as upload:
            fields = f"host: {address.netloc}\r\nauthorization: Bearer {commands.token}\r\n"
            size = f"content-length: {9 * CHUNK_BYTES}\r\n\r\n"
            upload.sendall(f"POST /api/files?name=a.png HTTP/1.1\r\n{fields}{size}".encode())
            upload.sendall(PNG + b"x" * (2 * CHUNK_BYTES + 1000))
            eventually(lambda: any(info.head.get("status") == UPLOADING for info in file_topics(engine)))
            service.kill()
        left = len(file_topics(engine))
        now_ms = max(info.active_ms for info in file_topics(engine))
        early = run_sync(engine, sweep_log, RetentionPolicy(), now_ms)
        late = run_sync(engine, sweep_log, RetentionPolicy(blobs_after_s=0), now_ms + round(UPLOAD_ABANDONED_S * 1000))

    assert (left, early.files, late.files) == (2, 0, 1)
    assert [info.topic for info in file_topics(engine)] == [f"file:{kept.file_id}"]
    assert engine.call(SweepBlobs(0, dry_run=True)) == 0


def file_topics(engine: Engine) -> tuple[Any, ...]:
    return engine.call(Topics("file:")).topics
