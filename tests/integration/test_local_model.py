"""A real model, offline: real tokens through the real runner."""

from __future__ import annotations

import pytest

from magent2.errors import SettingsError
from magent2.models.envelope import MessageEnvelope, OutputEvent, TokenEvent
from magent2.runner.config import RunnerConfig
from magent2.runner.local import find_weights
from magent2.runner.select import select_runner

pytestmark = pytest.mark.soak


@pytest.fixture(autouse=True)
def installed() -> None:
    try:
        find_weights()
    except SettingsError as missing:
        pytest.skip(str(missing))


def test_the_local_model_streams_an_answer_and_remembers_the_question() -> None:
    runner = select_runner("local", RunnerConfig(instructions="Answer in one short sentence."))

    def ask(text: str) -> list[TokenEvent | OutputEvent]:
        message = MessageEnvelope(conversation_id="c", sender="user:ann", recipient="agent:assistant", content=text)
        return list(runner.stream_run(message))  # type: ignore[arg-type]

    *tokens, output = ask("What is the capital of France?")
    *_, second = ask("And of Italy?")

    assert len(tokens) > 3
    assert "".join(token.text for token in tokens) == output.text
    assert "Paris" in output.text
    assert "Rome" in second.text
    assert isinstance(second, OutputEvent)
    assert second.usage is not None
    assert second.usage["output_tokens"] > 0
