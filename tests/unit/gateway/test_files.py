"""`/api/files`: what can be uploaded, by whom it can be read, and what is left of a refused upload."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from magent2.bus.log import Log
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import SweepBlobs, Topics
from magent2.gateway.limits import GatewayLimits
from magent2.sessions.files import CHUNK_BYTES, find_file, read_file
from tests.support.files import GIF, JPEG, PDF, PNG, WAV, WEBP
from tests.support.gateway import asgi_client

LIMITS = GatewayLimits(file_max_bytes=3 * CHUNK_BYTES, files_per_principal_max_bytes=5 * CHUNK_BYTES)


@pytest.fixture
def bus() -> MemoryBus:
    return MemoryBus()


@pytest.fixture
async def http(bus: MemoryBus) -> AsyncIterator[httpx2.AsyncClient]:
    async with asgi_client(bus, limits=LIMITS) as client:
        yield client


async def left_in(bus: MemoryBus) -> tuple[int, int]:
    """The number of topics of files, and of blobs that no record names."""
    topics = await bus.acall(Topics("file:"))
    return len(topics.topics), await bus.acall(SweepBlobs(0, dry_run=True))


def code(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json().get("code")


async def upload(http: httpx2.AsyncClient, name: str, content: bytes, declared: str | None = None) -> httpx2.Response:
    headers = {} if declared is None else {"content-type": declared}
    return await http.post("/api/files", params={"name": name}, content=content, headers=headers)


async def test_a_file_comes_back_as_it_was_uploaded(bus: MemoryBus, http: httpx2.AsyncClient) -> None:
    content = PNG + bytes(range(256)) * 10_000  # of several chunks

    made = (await upload(http, "photo.png", content, "image/png")).json()
    shown = (await http.get(f"/api/files/{made['file_id']}")).json()
    back = await http.get(f"/api/files/{made['file_id']}/content")

    assert (made["name"], made["media_type"], made["size"]) == ("photo.png", "image/png", len(content))
    assert shown == made
    assert back.content == content
    assert back.headers["content-disposition"].startswith("attachment;")
    assert back.headers["x-content-type-options"] == "nosniff"
    assert back.headers["content-security-policy"] == "default-src 'none'; sandbox"
    file = await find_file(Log(bus), made["file_id"])
    assert file is not None
    assert await read_file(Log(bus), file) == content


async def test_a_form_is_uploaded_as_curl_and_browsers_send_it(http: httpx2.AsyncClient) -> None:
    made = await http.post("/api/files", files={"file": ("größe.pdf", PDF, "application/pdf")})

    assert made.status_code == 201
    assert (made.json()["name"], made.json()["media_type"]) == ("größe.pdf", "application/pdf")


TYPES: list[tuple[str, bytes, str | None, str]] = [
    ("a.png", PNG, "image/png", "image/png"),
    ("a.jpg", JPEG, "image/jpg", "image/jpeg"),
    ("a.gif", GIF, None, "image/gif"),
    ("a", WEBP, "application/octet-stream", "image/webp"),
    ("a.pdf", PDF, "application/pdf; q=1", "application/pdf"),
    ("a.wav", WAV, "audio/x-wav", "audio/wav"),
    ("a.md", b"# Title", None, "text/markdown"),
    ("a.csv", b"a,b\n1,2", "text/csv", "text/csv"),
    ("a.json", b"{}", "application/json", "application/json"),
    ("ID3.txt", b"ID3 tags", "text/plain", "text/plain"),
    ("MZ.txt", b"MZ is a prefix", "text/plain", "text/plain"),
    ("page.html", b"<script>alert(1)</script>", "text/html", "text/plain"),
    ("x.svg", b"<svg onload=alert(1)>", None, "text/plain"),
]


async def test_the_type_is_found_from_the_content(http: httpx2.AsyncClient) -> None:
    made = [await upload(http, name, content, declared) for name, content, declared, _ in TYPES]
    served = [await http.get(f"/api/files/{one.json()['file_id']}/content") for one in made]

    assert [one.json()["media_type"] for one in made] == [found for *_, found in TYPES]
    assert [one.headers["content-type"].partition(";")[0] for one in served] == [found for *_, found in TYPES]


REFUSED: list[tuple[str, bytes, str | None, str]] = [
    ("photo.png", b"\x7fELF\x02\x01\x01" + bytes(60), "image/png", "Linux program"),
    ("photo.png", b"MZ\x90\0" + bytes(60), None, "Windows program"),
    ("notes.txt", b"\xcf\xfa\xed\xfe" + bytes(60), None, "macOS program"),
    ("notes.txt", b"#!/bin/sh\nrm -rf /", "text/plain", "script"),
    ("photo.png", JPEG, "image/png", "content is image/jpeg"),
    ("page.pdf", b"<html>", "application/pdf", "content is text"),
    ("x.svg", b"<svg onload=alert(1)>", "image/svg+xml", "content is text"),
    ("a.gif", b"GIF89a/*=1;alert(1)*/", "image/gif", "content is text"),
    ("a.zip", b"PK\x03\x04" + bytes(60), "application/zip", "PNG, JPEG, GIF"),
    ("a.txt", "größe".encode("utf-16"), "text/plain", "no known type"),
    ("a.txt", b"a" * CHUNK_BYTES + b"\xff\xfe", "text/plain", "not UTF-8"),
    ("a.txt", b"a" * CHUNK_BYTES + b"\0", "text/plain", "null byte"),
]


async def test_what_is_not_allowed_is_refused_and_leaves_nothing(bus: MemoryBus, http: httpx2.AsyncClient) -> None:
    for name, content, declared, says in REFUSED:
        refused = await upload(http, name, content, declared)

        assert code(refused) == (415, "unsupported_file"), (name, content[:20])
        assert says in refused.json()["detail"]
    assert await left_in(bus) == (0, 0)


async def test_a_name_that_is_a_path_or_cannot_be_shown_is_refused(http: httpx2.AsyncClient) -> None:
    for name in ("../x", "a/b.png", "a\\b.png", "..", ".", "", "a\nb", "a\u202egnp.exe", "x" * 256):
        assert code(await upload(http, name, PNG)) == (422, "invalid"), name


@pytest.mark.parametrize("declares_length", [True, False])
async def test_a_file_beyond_the_limit_is_refused_and_leaves_nothing(
    bus: MemoryBus, http: httpx2.AsyncClient, declares_length: bool
) -> None:
    taken = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal taken
        for _ in range(200):
            taken += 1
            yield PNG + bytes(CHUNK_BYTES)

    headers = {"content-length": str(200 * (CHUNK_BYTES + len(PNG)))} if declares_length else {}
    refused = await http.post("/api/files", params={"name": "a.png"}, content=endless(), headers=headers)

    assert code(refused) == (413, "file_too_large")
    assert await left_in(bus) == (0, 0)


async def test_an_empty_file_is_refused(http: httpx2.AsyncClient) -> None:
    assert code(await upload(http, "a.txt", b"")) == (422, "invalid")


async def test_the_files_of_a_principal_have_a_limit(bus: MemoryBus, http: httpx2.AsyncClient) -> None:
    first = await upload(http, "a.png", PNG + bytes(2 * CHUNK_BYTES))
    second = await upload(http, "b.png", PNG + b"x" * 2 * CHUNK_BYTES)
    refused = await upload(http, "c.png", PNG + b"y" * CHUNK_BYTES)
    await http.delete(f"/api/files/{first.json()['file_id']}")
    again = await upload(http, "c.png", PNG + b"y" * CHUNK_BYTES)

    assert code(refused) == (413, "files_full")
    assert (second.status_code, again.status_code) == (201, 201)
    assert await left_in(bus) == (2, 0)


async def test_the_number_of_files_has_a_limit(bus: MemoryBus) -> None:
    async with asgi_client(bus, limits=GatewayLimits(files_per_principal_max=3)) as http:
        answers = [await upload(http, f"{n}.txt", b"x%d" % n) for n in range(5)]

    assert [answer.status_code for answer in answers] == [201, 201, 201, 413, 413]


async def test_an_upload_with_a_key_is_one_file_however_often_it_is_sent(
    bus: MemoryBus, http: httpx2.AsyncClient
) -> None:
    content, headers = PNG + bytes(range(256)) * 4_500, {"idempotency-key": "k1"}  # of two chunks

    async def post(body: bytes, key: dict[str, str] = headers) -> httpx2.Response:
        return await http.post("/api/files", params={"name": "photo.png"}, content=body, headers=key)

    first, second = await asyncio.gather(post(content), post(content))
    refused = [await post(other) for other in (content[:-1], PNG, content[: len(content) // 2])]
    kept = await http.get(f"/api/files/{first.json()['file_id']}/content")
    other = await post(content, {"idempotency-key": "k2"})
    await http.delete(f"/api/files/{first.json()['file_id']}")
    again = await post(content)

    assert first.json() == second.json()
    assert [code(answer) for answer in refused] == [(409, "id_conflict")] * 3
    assert kept.content == content
    assert len({first.json()["file_id"], other.json()["file_id"], again.json()["file_id"]}) == 3
    assert await left_in(bus) == (2, 0)


async def test_a_deleted_file_is_gone(bus: MemoryBus, http: httpx2.AsyncClient) -> None:
    file_id = (await upload(http, "a.png", PNG)).json()["file_id"]

    deleted = await http.delete(f"/api/files/{file_id}")
    answers = [await http.get(f"/api/files/{file_id}{rest}") for rest in ("", "/content")]

    assert deleted.status_code == 204
    assert [code(answer) for answer in answers] == [(404, "unknown_file")] * 2
    assert await left_in(bus) == (0, 0)


async def test_files_that_share_a_chunk_are_deleted_one_by_one(http: httpx2.AsyncClient) -> None:
    first, second = [(await upload(http, name, PNG)).json()["file_id"] for name in ("a.png", "b.png")]

    await http.delete(f"/api/files/{first}")

    assert (await http.get(f"/api/files/{second}/content")).content == PNG


FORM = "multipart/form-data; boundary=b"


def form(*parts: str, end: str = "--b--\r\n") -> bytes:
    return ("".join(f"--b\r\n{part}\r\n" for part in parts) + end).encode()


FILE_PART = 'content-disposition: form-data; name="file"; filename="a.txt"\r\n\r\nhello'


FORMS: list[tuple[bytes, str, tuple[int, str]]] = [
    (form(FILE_PART), "multipart/form-data", (400, "bad_form")),
    (form(FILE_PART, end=""), FORM, (400, "bad_form")),
    (form(), FORM, (400, "bad_form")),
    (b"", FORM, (400, "bad_form")),
    (b"nonsense", FORM, (400, "bad_form")),
    (form(FILE_PART, FILE_PART), FORM, (422, "several_files")),
    (form('content-disposition: form-data; name="purpose"\r\n\r\nx', FILE_PART), FORM, (422, "unknown_field")),
    (form(FILE_PART.replace("a.txt", "../a.txt")), FORM, (422, "invalid")),
    (form("x: y\r\n" * 50 + FILE_PART), FORM, (400, "bad_form")),
    (form(FILE_PART), "multipart/form-data; boundary=" + "b" * 300, (400, "bad_form")),
]


async def test_a_form_that_cannot_be_used_is_refused(bus: MemoryBus, http: httpx2.AsyncClient) -> None:
    for body, declared, expected in FORMS:
        refused = await http.post("/api/files", content=body, headers={"content-type": declared})

        assert code(refused) == expected, body
    assert await left_in(bus) == (0, 0)


async def test_files_are_listed_page_by_page(http: httpx2.AsyncClient) -> None:
    for number in range(5):
        await upload(http, f"{number}.txt", b"x")
    names: list[str] = []
    query: dict[str, Any] = {"limit": 2}
    while True:
        page = (await http.get("/api/files", params=query)).json()
        names += [file["name"] for file in page["files"]]
        if page["next"] is None:
            break
        query["before"] = page["next"]

    assert sorted(names) == [f"{number}.txt" for number in range(5)]
    assert page["file_max_bytes"] == LIMITS.file_max_bytes
