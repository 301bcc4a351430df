"""The message that replaces another one."""

from __future__ import annotations

from magent2.models.envelope import MessageEnvelope
from magent2.models.json_types import JsonObject
from magent2.models.run_options import RUN_OPTIONS
from magent2.sessions.history import RunRecord
from magent2.sessions.superseding import Replacement, new_message

GIVEN: list[JsonObject] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Oslo?"},
    {"role": "assistant", "content": "Rain."},
    {"role": "user", "content": [{"type": "input_text", "text": "Bergen?"}]},
]


def replaced(text: str | None) -> JsonObject:
    options = {"instructions": "In Celsius.", "input": GIVEN}
    envelope = MessageEnvelope(
        conversation_id="c1", sender="user:ann", recipient="chat:c1", content="Bergen?", metadata={RUN_OPTIONS: options}
    )
    run = RunRecord("run-1", "desk", envelope.model_dump(mode="json"), {}, 0)
    made = new_message(Replacement("c1", "m2", "user:ann", text), run)
    return dict(made.metadata[RUN_OPTIONS])


def test_an_edited_text_takes_the_place_of_the_last_text_that_the_model_got() -> None:
    options = replaced("Tromsø?")

    assert options == {"instructions": "In Celsius.", "input": [*GIVEN[:3], {"role": "user", "content": "Tromsø?"}]}


def test_a_message_that_is_answered_again_keeps_its_options() -> None:
    assert replaced(None) == {"instructions": "In Celsius.", "input": GIVEN}
