"""What a failure tells users and operators. Secrets are in tests/attacks."""

from __future__ import annotations

import logging
import traceback

import pytest

from magent2.errors import BusUnavailable, ModelError, StorageFull, ToolError
from magent2.failures import (
    CAUSES_MAX,
    FAILURE_TEXT_MAX_CHARS,
    Failure,
    cause_of,
    failure_id,
    log_failure,
    text_for_users,
)

log = logging.getLogger("tests.failures")


def raised(error: Exception, cause: Exception | None = None) -> Exception:
    try:
        raise error from cause
    except type(error) as caught:
        return caught


@pytest.mark.parametrize("error", [RuntimeError("at db1"), BusUnavailable("db1 is away"), StorageFull("/srv/log.db")])
def test_only_errors_that_a_user_can_act_on_show_their_text(error: Exception) -> None:
    failure = Failure.of(error, "the run failed", "run-1", 1)

    assert text_for_users(error) is None
    assert failure.text == f"the run failed; the operator's log has the cause (failure id {failure.id})"
    assert failure.named == f"{type(error).__name__}: {failure.text}"
    assert failure.cause == f"{type(error).__name__}: {error} (failure id {failure.id})"


def test_an_error_of_this_package_shows_its_text_and_not_its_cause() -> None:
    error = raised(ModelError("the run failed; check the key"), RuntimeError("401 from db1"))

    failure = Failure.of(error, "the run failed", "run-1", 1)

    assert failure.text == f"the run failed; check the key (failure id {failure.id})"
    assert failure.cause.startswith("ModelError: the run failed; check the key <- RuntimeError: 401 from db1")


def test_the_id_of_the_same_work_is_the_same_and_others_are_random() -> None:
    assert failure_id("run-1", 1) == failure_id("run-1", 1) != failure_id("run-1", 2)
    assert failure_id() != failure_id()
    assert len(failure_id()) == len(failure_id("run-1")) == 12


def test_a_final_failure_says_why_it_is_final_in_both_texts() -> None:
    failure = Failure.of(ToolError("closed"), "it failed", 1)

    final = failure.because("gave up after 2 attempts")

    assert final.named == f"gave up after 2 attempts: {failure.named}"
    assert final.cause == f"gave up after 2 attempts: {failure.cause}"
    assert failure.because("") is failure


def test_texts_are_bounded_and_keep_the_id() -> None:
    failure = Failure.of(ToolError("x" * 10_000), "it failed", 1)

    for text in (failure.text, failure.cause):
        assert len(text) < FAILURE_TEXT_MAX_CHARS + 50
        assert text.endswith(f"… (failure id {failure.id})")


def test_an_error_that_cannot_describe_itself_is_named_by_its_type() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert cause_of(Mute()) == "Mute: (its text cannot be read)"
    assert cause_of(TimeoutError()) == "TimeoutError"


def test_a_long_chain_of_causes_is_cut() -> None:
    error = RuntimeError("0")
    for number in range(1, 10):
        error = raised(RuntimeError(str(number)), error)  # type: ignore[assignment]

    assert cause_of(error).count(" <- ") == CAUSES_MAX - 1


def test_any_handler_gets_a_masked_traceback(caplog: pytest.LogCaptureFixture) -> None:
    error = raised(RuntimeError("password=" + "hunter2"))
    assert "hunter2" in "".join(traceback.format_exception(error))

    with caplog.at_level(logging.WARNING):
        log_failure(log, logging.WARNING, "it failed", error, {"failure_id": "f1"}, with_traceback=True)
        log_failure(log, logging.INFO, "not logged", error, {}, with_traceback=True)

    (record,) = caplog.records
    assert "Traceback" in caplog.text
    assert "hunter2" not in caplog.text + str(vars(record))
    assert vars(record)["failure_id"] == "f1"
