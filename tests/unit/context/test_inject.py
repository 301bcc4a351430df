"""Messages stand where the model first saw them, turn after turn."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from magent2.context import BusMessage
from magent2.context.inject import InjectedMessages, InputItem, for_injection

ASKED: InputItem = {"role": "user", "content": "go"}
CALL: InputItem = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
RESULT: InputItem = {"type": "function_call_output", "call_id": "c1", "output": "seen"}
SAID: InputItem = {"type": "message", "role": "assistant", "content": "done"}


def message(content: str, **fields: Any) -> BusMessage:
    return BusMessage(**{"content": content, "source": "user", "target": "main", **fields})


def block(content: str) -> InputItem:
    return {"role": "user", "content": f'<bus-message source="user">\n{content}\n</bus-message>'}


def test_messages_come_in_order_and_stay_where_they_were_first_seen() -> None:
    injected = InjectedMessages()
    injected.add([message("one"), message("two")], 1)
    assert injected.apply([ASKED]) == [ASKED, block("one"), block("two")]
    injected.commit()

    injected.add([message("three")], 3)

    first = [ASKED, block("one"), block("two"), CALL, RESULT, block("three")]
    assert injected.apply([ASKED, CALL, RESULT]) == first
    assert injected.apply([ASKED, CALL, RESULT, SAID]) == [*first, SAID]


def test_what_no_answer_has_seen_is_taken_out_again() -> None:
    injected = InjectedMessages()
    injected.add([kept := message("kept")], 0)
    injected.commit()
    injected.add([lost := message("lost")], 1)

    assert injected.roll_back() == [lost]

    assert injected.apply([ASKED]) == [block(kept.content), ASKED]
    assert injected.roll_back() == []


def test_a_bad_template_costs_its_own_message_and_not_the_batch() -> None:
    injected = InjectedMessages()
    bad = message("bad", template="{% for x in y %}{% endfor %}")

    failed = injected.add([message("one"), bad, message("two")], 1)

    assert injected.apply([ASKED]) == [ASKED, block("one"), block("two")]
    assert [(one.message, one.error.what) for one in failed] == [(bad, "loop")]


def test_nothing_comes_between_a_call_and_its_result() -> None:
    """As after a handoff whose filter has cut the conversation: places are no longer what they were."""
    injected = InjectedMessages()
    injected.add([message("one")], 2)
    second_call, second_result = {**CALL, "call_id": "c2"}, {**RESULT, "call_id": "c2"}

    shown = injected.apply([ASKED, CALL, second_call, RESULT, second_result, SAID])

    assert shown == [ASKED, CALL, second_call, RESULT, second_result, block("one"), SAID]
    assert injected.apply([ASKED]) == [ASKED, block("one")]


def test_an_agents_own_words_to_everybody_are_not_for_itself() -> None:
    own, note = message("own", source="main", target=None), message("note", source="main", target="main")
    other = message("other", source="a", target=None)

    assert for_injection([own, note, other], "main") == [note, other]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3)), max_size=8))
def test_a_models_past_never_changes(turns: list[tuple[int, int]]) -> None:
    """Whatever comes when: what a turn was shown is how the next one begins."""
    injected, items, before, number = InjectedMessages(), [ASKED], list[InputItem](), 0
    for messages, grown in turns:
        injected.add([message(str(number + offset)) for offset in range(messages)], len(items))
        shown = injected.apply(items)
        assert shown[: len(before)] == before
        assert len(shown) == len(items) + number + messages
        injected.commit()
        number += messages
        items = [*items, *([SAID] * grown)]
        before = shown
