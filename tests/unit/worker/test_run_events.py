"""The events of a run that are built as JSON."""

from __future__ import annotations

import pytest

from magent2.models.events import RunEvent
from magent2.worker.run_events import RunEvents


@pytest.mark.parametrize("kind", ["message", "route"])
@pytest.mark.parametrize("reason", [None, "no answer"])
def test_the_event_of_a_run_is_the_one_of_the_contract(kind: str, reason: str | None) -> None:
    payload = RunEvents("one", "Ada", "run-1", 2, "mail-1", kind).run("failed", reason).payload

    assert RunEvent.model_validate(payload).model_dump(mode="json", exclude_none=True) == payload
    assert (payload.get("run_kind"), payload.get("reason")) == (None if kind == "message" else kind, reason)


def test_a_reason_that_utf_8_cannot_encode_does_not_end_the_run() -> None:
    payload = RunEvents("one", "Ada", "run-1", 1, "mail-1").run("failed", "half a \ud83d").payload

    assert payload["reason"] == "half a ?"
