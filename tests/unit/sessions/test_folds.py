"""What a model is shown of earlier runs."""

from __future__ import annotations

from typing import Any

from magent2.sessions.folds import run_items
from magent2.sessions.history import RunRecord


def kinds(*output: dict[str, Any]) -> list[str]:
    run = RunRecord("r", "desk", {"sender": "user:ann", "content": "hello"}, {}, 0)
    run.answers[0] = {"turn": 0, "speaker": "desk", "response": {"output": list(output)}}
    return [str(item.get("type", item.get("role"))) for item in run_items(run)]


def test_a_search_that_the_provider_made_is_told_by_its_text_alone() -> None:
    search = {"type": "web_search_call", "id": "ws", "status": "completed", "action": {}}
    text = {"type": "message", "role": "assistant", "content": []}

    assert kinds(search, text) == ["user", "message"]


def test_a_thought_goes_with_the_call_that_it_led_to_and_stays_with_others() -> None:
    thought, search = {"type": "reasoning", "id": "rs"}, {"type": "file_search_call", "id": "fs"}
    call = {"type": "function_call", "name": "f", "call_id": "c", "arguments": "{}"}

    assert kinds(thought, search, thought, call) == ["user", "reasoning", "function_call", "function_call_output"]
    assert kinds(thought, thought, search) == ["user"]
