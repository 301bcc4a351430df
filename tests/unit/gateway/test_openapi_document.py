"""The OpenAPI document itself: nothing in it points nowhere, all has an example that fits, and docs/api.md agrees."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from magent2.bus.memory import MemoryBus
from magent2.gateway.access.middleware import is_open
from magent2.gateway.app import create_app
from magent2.gateway.openapi import PROBLEM_TYPE
from magent2.gateway.routes.sessions import encode_list_cursor
from tests.support.routes import TABLE, routes_of

Draft202012Validator = import_module("jsonschema").Draft202012Validator
PAGE = Path(__file__).parents[3] / "docs" / "api.md"
STREAM = "text/event-stream"
METHOD = re.compile(r"`(GET|POST|PUT|PATCH|DELETE) (/api\S*)`")
FIELDS = re.compile(r"(\d+) `\{(.*?)\}`")


def read_document() -> dict[str, Any]:
    bus = MemoryBus()
    document: dict[str, Any] = json.loads(json.dumps(create_app(bus).openapi()))
    bus.close()
    return document


DOCUMENT = read_document()
OPERATIONS = {
    (method.upper(), path): operation
    for path, operations in DOCUMENT["paths"].items()
    for method, operation in operations.items()
}
OF_API = {key: operation for key, operation in OPERATIONS.items() if key[1].startswith("/api")}


def test_examples_of_errors_under_v1_have_the_type_of_their_status() -> None:
    found = {
        (status, content["example"]["error"]["type"])
        for (_, path), operation in OPERATIONS.items()
        if path.startswith("/v1/")
        for status, answer in operation["responses"].items()
        if int(status) >= 400
        for content in answer["content"].values()
    }

    assert found >= {("400", "invalid_request_error"), ("401", "authentication_error"), ("404", "not_found_error")}
    assert {kind for status, kind in found if status.startswith("5")} == {"server_error"}


def contents(operation: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(where, media type, content) of the body and of every answer."""
    for media, content in operation.get("requestBody", {}).get("content", {}).items():
        yield "body", media, content
    for status, answer in operation["responses"].items():
        for media, content in answer.get("content", {}).items():
            yield status, media, content


def examples(content: dict[str, Any]) -> list[Any]:
    if "example" in content:
        return [content["example"]]
    found = [alternative.get("examples", []) for alternative in alternatives(content["schema"])]
    return [example for shown in found for example in shown] if all(found) else []


def alternatives(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """The schemas of which one holds: several where a parameter chooses the format."""
    shown = resolved(schema)
    return [resolved(one) for one in shown["anyOf"]] if "anyOf" in shown else [shown]


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    found: Any = schema
    while "$ref" in found:
        found = DOCUMENT
        for step in schema["$ref"].removeprefix("#/").split("/"):
            found = found[step]
        schema = found
    return dict(found)


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from references(item)


def test_every_reference_points_at_something() -> None:
    found = {*references(DOCUMENT["paths"]), *references(DOCUMENT["components"])}

    assert found
    for reference in found:
        assert resolved({"$ref": reference}), reference


@pytest.mark.parametrize("key", sorted(OF_API), ids=" ".join)
def test_every_body_and_every_answer_has_an_example_that_fits(key: tuple[str, str]) -> None:
    for where, media, content in contents(OF_API[key]):
        shown = examples(content)
        assert shown, f"{where} has no example"
        schema = {**content["schema"], "components": DOCUMENT["components"]}
        for example in shown:
            Draft202012Validator(schema).validate(example)
            if media == PROBLEM_TYPE:
                assert example["status"] == int(where)
            if media == STREAM:
                json.loads(example["data"])


def test_every_route_that_takes_a_body_shows_it_and_no_other_does() -> None:
    for (method, path), operation in OF_API.items():
        takes_one = (method, path) in TAKE_A_BODY
        assert ("requestBody" in operation) == takes_one, path


TAKE_A_BODY = {key for key, row in TABLE.items() if row.body is not None}


def test_the_document_has_every_route_of_the_application() -> None:
    bus = MemoryBus()
    routes = routes_of(create_app(bus))
    bus.close()

    unseen = {(method, path) for method in ("GET", "HEAD") for path in ("/", "/page/{name}", "/openapi.json")}
    assert routes - set(OPERATIONS) == {*unseen, ("HEAD", "/health"), ("HEAD", "/ready")}
    assert set(OPERATIONS) <= routes


def test_operations_have_plain_names_that_generated_clients_can_use() -> None:
    names = [operation["operationId"] for operation in OPERATIONS.values()]

    assert len(set(names)) == len(names)
    assert [name for name in names if not re.fullmatch("[a-z]+(_[a-z]+){0,3}", name)] == []
    assert {"create_session", "send_envelope", "list_dead_letters"} <= set(names)


def test_request_bodies_have_names() -> None:
    bodies = [operation["requestBody"] for operation in OPERATIONS.values() if "requestBody" in operation]
    schemas = [content["schema"] for body in bodies for content in body["content"].values()]

    assert {schema["$ref"].rpartition("/")[2] for schema in schemas} >= {"SendRequest", "SessionRequest"}


def test_ids_and_cursors_have_patterns_that_their_examples_match() -> None:
    found: dict[str, str] = {}
    for operation in OPERATIONS.values():
        for parameter in operation.get("parameters", []):
            if parameter["name"] in ("session_id", "conversation_id", "since", "before", "last-event-id", "sha256"):
                schema = {**parameter["schema"], **parameter["schema"].get("anyOf", [{}])[0]}
                if schema["type"] == "string":
                    found.setdefault(parameter["name"], schema.get("pattern", ""))

    assert re.search(found["session_id"], "team/one two")
    assert not re.search(found["conversation_id"], " x")
    assert re.search(found["since"], "12")
    assert not re.search(found["last-event-id"], "12:x")
    assert re.search(found["before"], encode_list_cursor((7, "stream:one")))
    body = DOCUMENT["components"]["schemas"]["MessageRequest"]["properties"]["session_id"]
    assert body["pattern"] == found["session_id"]


def test_every_route_says_whether_it_wants_a_credential() -> None:
    assert DOCUMENT["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"
    for (_, path), operation in OPERATIONS.items():
        assert (operation["security"] == []) == is_open(path), path
        if not is_open(path):
            assert {"401", "403", "421", "429"} <= set(operation["responses"]), path


# --- docs/api.md


def rows() -> dict[tuple[str, str], tuple[str, str]]:
    """(takes, answers) of every route in the page's table."""
    found = {}
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        route = METHOD.fullmatch(cells[1]) if len(cells) == 5 else None
        if route is not None:
            found[route[1], route[2]] = (cells[2], cells[3])
    return found


def test_the_page_has_every_route_and_no_other() -> None:
    assert set(rows()) == set(OF_API)


@pytest.mark.parametrize("key", sorted(OF_API), ids=" ".join)
def test_the_page_says_what_a_route_takes_and_answers(key: tuple[str, str]) -> None:
    operation = OF_API[key]
    takes, answers = rows()[key]

    if "requestBody" in operation:
        body = resolved(next(iter(operation["requestBody"]["content"].values()))["schema"])
        assert set(takes.partition("{")[2].partition("}")[0].split(", ")) == fields_of(body)
    else:
        asked = {item["name"] for item in operation.get("parameters", []) if item["in"] != "path"}
        assert set(re.findall(r"`([\w-]+)\?`", takes)) == asked
    good = {status for status in operation["responses"] if status.startswith("2")}
    assert set(re.findall(r"\b(2\d\d)\b", answers)) == good
    for status, names in FIELDS.findall(answers):
        content = operation["responses"][status]["content"]["application/json"]
        assert set(names.split(", ")) == fields_of(alternatives(content["schema"])[0])


def fields_of(schema: dict[str, Any]) -> set[str]:
    """Names of fields as the page writes them."""
    needed = schema.get("required", [])
    return {name if name in needed else f"{name}?" for name in schema["properties"]}


def test_the_fields_of_an_event_are_those_that_the_page_shows() -> None:
    (block,) = re.findall(r"```text\n(\{\"session_id\".*?\})\n```", PAGE.read_text(), re.S)

    assert re.findall(r'"(\w+)":', block) == list(DOCUMENT["components"]["schemas"]["ApiEvent"]["properties"])
