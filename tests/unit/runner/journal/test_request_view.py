"""What a model gets of a long request: no cut separates a call from its result, and the newest message stays."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magent2.runner.journal.request_view import (
    TEXT_MIN_CHARS,
    CutGoal,
    CutPoint,
    RequestLayout,
    choose_cut,
    leave_out,
    middle_cut,
    shorten,
    whole_cuts,
    without_orphans,
)
from magent2.runner.journal.window import RequestWindow
from magent2.runner.tokens import estimate_tokens
from magent2.sessions.folds import InputItem, ModelInput
from magent2.sessions.history import CompactionRecord, RunRecord
from tests.support.small_context import orphans_in

RUN = "run-own"
SUMMARY: CompactionRecord = {
    "turn": 0,
    "through": {"run": ""},
    "reason": "size",
    "tokens_before": 2,
    "tokens_after": 1,
    "summary": "what was said",
}


def message(text: str, role: str = "user") -> InputItem:
    return {"role": role, "content": text}


@st.composite
def turns(draw: st.DrawFn, ids: str) -> list[InputItem]:
    """What a turn adds: reasoning, calls and their results. Some servers use the ids of their calls again."""
    number = draw(st.integers(1, 3))
    size = draw(st.integers(0, 400))
    names = [f"{draw(st.sampled_from(['call', ids]))}-{place}" for place in range(number)]
    calls: list[InputItem] = []
    for name in names:
        if draw(st.booleans()):
            calls.append({"type": "reasoning", "id": f"r-{name}", "summary": []})
        calls.append({"type": "function_call", "call_id": name, "name": "look", "arguments": "{}"})
    results: list[InputItem] = [
        {"type": "function_call_output", "call_id": name, "output": "x" * size} for name in names
    ]
    return [*calls, *results]


@st.composite
def layouts(draw: st.DrawFn) -> tuple[RequestWindow, list[InputItem], int]:
    """A run with earlier runs before it, at some turn. Return its window, the request and the turn."""
    items: list[InputItem] = []
    ends: list[tuple[str, int]] = []
    for number in range(draw(st.integers(0, 4))):
        items.append(message(f"question {number} " + "x" * draw(st.integers(0, 400))))
        for turn in range(draw(st.integers(0, 2))):
            items += draw(turns(f"{number}.{turn}"))
        items.append(message("answer", "assistant"))
        ends.append((f"run-{number}", len(items)))
    given = ModelInput([*items, message("the newest question")], 0, tuple(ends), len(items))
    window = RequestWindow(RunRecord(RUN, "Ada", {}, {}, 0))
    window.begin(given)
    request, count = list(given.items), draw(st.integers(0, 6))
    for turn in range(count):
        window.pass_turn(turn, len(request))
        request += draw(turns(f"own.{turn}"))
    window.pass_turn(count, len(request))
    return window, request, count


def no_steers(position: int) -> int:
    return 0


@given(layouts(), st.integers(0, 1_500), st.integers(0, 1_500))
def test_no_view_has_an_orphan_and_each_has_the_newest_question(
    made: tuple[RequestWindow, list[InputItem], int], first_room: int, second_room: int
) -> None:
    window, request, turn = made
    layout = window.layout(turn, request, no_steers)
    before = estimate_tokens(layout.view())

    for room in (first_room, second_room):
        point = choose_cut(layout, CutGoal(room))
        if point is None:
            break
        layout = layout.at(point, {"summary": "short"})
        view = layout.view()
        assert orphans_in(view) == []
        assert message("the newest question") in view
        assert view[-1] == request[-1]
        assert all(follows_reasoning(view, index) for index in range(len(view)))
        assert estimate_tokens(view) <= before + estimate_tokens(layout.view()[0])


def follows_reasoning(items: list[InputItem], index: int) -> bool:
    """Whether reasoning is followed by what it led to."""
    if items[index].get("type") != "reasoning":
        return True
    return index + 1 < len(items) and items[index + 1].get("type") in ("function_call", "reasoning")


@given(layouts(), st.integers(0, 1_500))
def test_another_attempt_finds_the_same_cut(made: tuple[RequestWindow, list[InputItem], int], room: int) -> None:
    window, request, turn = made
    layout = window.layout(turn, request, no_steers)
    point = choose_cut(layout, CutGoal(room))
    if point is None:
        return
    record: CompactionRecord = {**SUMMARY, "turn": turn, "through": point.through}

    window.add(record)
    found = window.layout(turn, request, no_steers)

    assert (found.cut, found.view()) == (point.index, layout.at(point, {"summary": "what was said"}).view())


@given(layouts(), st.integers(0, 1_500))
def test_what_is_left_out_or_shortened_leaves_no_orphan_and_the_newest_message(
    made: tuple[RequestWindow, list[InputItem], int], room: int
) -> None:
    _, request, _ = made

    for view in (leave_out(request, room), shorten(request, room), leave_out(shorten(request, room), room)):
        assert orphans_in(view) == []
        assert any(item.get("content") == "the newest question" for item in view)


@given(layouts())
def test_a_cut_behind_the_last_turn_is_not_offered(made: tuple[RequestWindow, list[InputItem], int]) -> None:
    window, request, turn = made

    points = window.layout(turn, request, no_steers).points

    assert all(point.through != {"run": RUN, "turn": turn - 1} for point in points)
    assert len({point.index for point in points}) == len(points)


def test_a_goal_that_cannot_be_reached_takes_the_last_cut_and_no_cut_is_made_for_nothing() -> None:
    items = [message("x" * 400), message("y" * 400), message("z" * 400)]
    points = [CutPoint(1, {"run": "a"}, 1), CutPoint(2, {"run": "b"}, 0)]
    layout = RequestLayout(items, points, (2, 3))

    assert choose_cut(layout, CutGoal(room=0)) == points[1]
    assert choose_cut(layout, CutGoal(room=250)) == points[0]
    assert choose_cut(layout, CutGoal(room=1_000, runs_max=0)) == points[1]
    assert choose_cut(layout, CutGoal(room=0, worth=1_000)) is None
    assert choose_cut(layout.at(points[1], {}), CutGoal(room=0)) is None


def test_the_last_message_of_the_user_stays_if_it_came_during_the_run() -> None:
    request = [message("question"), *call("a"), message("a steer"), *call("b"), *call("c")]
    layout = RequestLayout(request, [CutPoint(6, {"run": RUN, "turn": 1})], (0, 1))

    view = layout.at(layout.points[0], {"summary": "short"}).view()

    assert [item.get("content") for item in view if "role" in item][1:] == ["question", "a steer"]
    assert orphans_in(view) == []


def call(name: str) -> list[InputItem]:
    return [
        {"type": "function_call", "call_id": name, "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": name, "output": "seen"},
    ]


def test_a_cut_between_a_call_and_its_result_is_not_whole() -> None:
    approval: list[InputItem] = [
        {"type": "mcp_approval_request", "id": "m1"},
        {"type": "mcp_approval_response", "approval_request_id": "m1"},
    ]

    assert whole_cuts([*call("a"), message("b")]) == [True, False, True, True]
    assert whole_cuts(approval) == [True, False, True]
    assert whole_cuts([{"type": "reasoning"}, message("a", "assistant")]) == [True, False, True]


def test_a_result_without_its_call_is_left_out() -> None:
    assert without_orphans([call("a")[1], message("b")]) == [message("b")]


def test_a_list_that_a_handoff_has_rewritten_is_not_cut_at_its_old_places() -> None:
    window = RequestWindow(RunRecord(RUN, "Ada", {}, {}, 0))
    window.begin(ModelInput([message("a"), message("b"), message("c")], 0, (("run-1", 2),), 2))
    window.add({**SUMMARY, "through": {"run": "run-1"}})
    window.pass_turn(0, 3)
    window.pass_turn(1, 2)

    layout = window.layout(1, [message("b"), message("c")], no_steers)

    assert (layout.cut, layout.points, layout.view()) == (0, [], [message("b"), message("c")])


def test_steers_move_the_cut() -> None:
    window = RequestWindow(RunRecord(RUN, "Ada", {}, {}, 0))
    window.begin(ModelInput([message("question")], 0, (), 0))
    for turn, length in enumerate((1, 3, 5)):
        window.pass_turn(turn, length)
    request = [message("question"), *call("a"), message("steer of turn 1"), *call("b")]

    (point,) = window.layout(2, request, lambda position: int(position > 3)).points

    assert point == CutPoint(3, {"run": RUN, "turn": 0})


@given(st.text(max_size=60), st.integers(0, 60))
def test_a_shortened_text_has_its_beginning_and_its_end(text: str, length: int) -> None:
    short = middle_cut(text, length)

    if len(text) <= length:
        assert short == text
    else:
        head = length * 2 // 3
        assert short.startswith(text[:head])
        assert short.endswith(text[len(text) - (length - head) :])


@pytest.mark.parametrize("files", [False, True])
def test_files_are_left_out_only_on_demand(files: bool) -> None:
    image: dict[str, Any] = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
    request: list[InputItem] = [{"role": "user", "content": [{"type": "input_text", "text": "look"}, image]}]

    (item,) = shorten(request, 10_000, files=files)

    kinds = [part["type"] for part in item["content"]]  # type: ignore[attr-defined]
    assert kinds == ["input_text", "input_text" if files else "input_image"]


def test_results_are_shortened_before_messages_and_not_to_nothing() -> None:
    long = "x" * 4_000
    request = [message(long), {**call("a")[0]}, {**call("a")[1], "output": long}]

    some = shorten(request, 500)
    much = shorten(request, 100_000)

    assert (some[0], len(str(some[2]["output"])) < len(long)) == (message(long), True)
    assert len(str(much[0]["content"])) >= TEXT_MIN_CHARS
