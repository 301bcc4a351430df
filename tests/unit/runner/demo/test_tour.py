from __future__ import annotations

import json
from typing import Any

from magent2.context.block import bus_message_block
from magent2.runner.demo.script import Line, ScriptedCall, ScriptedStep, ScriptedText, tour_line
from magent2.tools.default_tools import weather

ASKED = {"role": "user", "content": "Compare the weather in Oslo, Rome and Lima."}


def visit(city: str) -> list[dict[str, Any]]:
    return [
        {"role": "assistant", "content": f"Looking at {city}."},
        {"type": "function_call", "name": "weather", "arguments": json.dumps({"city": city}), "call_id": city},
        {"type": "function_call_output", "output": json.dumps(weather(city)), "call_id": city},
    ]


def steer(text: str) -> dict[str, Any]:
    return {"role": "user", "content": bus_message_block("user:ann", text)}


def line(*items: dict[str, Any]) -> Line | None:
    return tour_line(items, ["weather"])


def city_of(line: Line | None) -> object:
    assert isinstance(line, ScriptedStep)
    return line.call.arguments["city"]


def test_the_cities_are_visited_in_order_and_all_reported_at_the_end() -> None:
    assert line(ASKED) == ScriptedStep(
        "Looking at Oslo. Write to me meanwhile, or stop me.", ScriptedCall("weather", {"city": "Oslo"})
    )
    assert city_of(line(ASKED, *visit("Oslo"))) == "Rome"
    assert city_of(line(ASKED, *visit("Oslo"), *visit("Rome"))) == "Lima"

    answer = line(ASKED, *visit("Oslo"), *visit("Rome"), *visit("Lima"))

    assert isinstance(answer, ScriptedText)
    assert [part.split(" it is ")[0] for part in answer.text.split("\n\n")] == ["In Oslo", "In Rome", "In Lima"]


def test_a_city_named_in_a_steer_is_left_out() -> None:
    said = steer("leave out rome & be quick")

    assert city_of(line(ASKED, *visit("Oslo"), said)) == "Lima"
    answer = line(ASKED, *visit("Oslo"), said, *visit("Lima"))
    assert isinstance(answer, ScriptedText)
    assert answer.text.endswith("\n\nLeft out, as you said meanwhile: Rome.")
    assert "In Rome" not in answer.text


def test_any_other_steer_is_answered_at_the_end() -> None:
    answer = line(ASKED, *visit("Oslo"), steer("is 1 < 2?"), *visit("Rome"), *visit("Lima"))

    assert isinstance(answer, ScriptedText)
    assert answer.text.endswith("\n\nYou said meanwhile: is 1 < 2?")


def test_a_later_message_ends_the_tour() -> None:
    assert line(ASKED, *visit("Oslo"), {"role": "user", "content": "hello"}) is None
    assert city_of(line(*visit("Oslo"), {"role": "assistant", "content": "hm"}, ASKED)) == "Oslo"


def test_without_the_tool_there_is_no_tour() -> None:
    assert tour_line([ASKED], ["echo_context"]) is None
