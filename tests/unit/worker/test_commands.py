"""Commands to a run, and what a disconnect does."""

from __future__ import annotations

from typing import Any

import pytest

from magent2.worker.cancellation import (
    CONNECTED,
    DISCONNECTED,
    GRACE_S,
    STOP,
    STOP_AFTER_TURN,
    DisconnectPolicy,
    StopCommand,
    after_command,
    policy_of,
)

ANN = "user:ann"
DETACH, CANCEL, GRACE = DisconnectPolicy(), DisconnectPolicy("cancel"), DisconnectPolicy("grace", 5.0)


@pytest.mark.parametrize("policy", [DETACH, CANCEL, GRACE])
def test_stop_stops_whatever_the_policy(policy: DisconnectPolicy) -> None:
    assert after_command(STOP, ANN, policy) == StopCommand("stopped by user:ann")


def test_a_disconnect_alone_stops_nothing() -> None:
    assert after_command(DISCONNECTED, ANN, DETACH) is None


def test_cancel_stops_at_once() -> None:
    stop_request = after_command(DISCONNECTED, ANN, CANCEL)

    assert stop_request is not None
    assert stop_request.in_s == 0


def test_grace_stops_after_a_while() -> None:
    stop_request = after_command(DISCONNECTED, ANN, GRACE)

    assert stop_request is not None
    assert stop_request.in_s == 5.0


def test_a_reader_that_comes_back_ends_the_grace() -> None:
    stop_request = after_command(DISCONNECTED, ANN, GRACE)

    assert after_command(CONNECTED, ANN, GRACE, stop_request) is None


@pytest.mark.parametrize("command", [CONNECTED, DISCONNECTED, STOP])
def test_a_stop_is_not_taken_back(command: str) -> None:
    stop_request = StopCommand("stopped by user:bob")

    assert after_command(command, ANN, GRACE, stop_request) is stop_request


def test_a_stop_after_the_turn_gives_way_to_a_stop_only() -> None:
    stop_request = after_command(STOP_AFTER_TURN, ANN, GRACE)

    assert stop_request == StopCommand("stopped by user:ann after its turn", after_turn=True)
    assert after_command(STOP, ANN, GRACE, stop_request) == StopCommand("stopped by user:ann")
    for command in (CONNECTED, DISCONNECTED, STOP_AFTER_TURN):
        assert after_command(command, "user:bob", GRACE, stop_request) is stop_request


def test_a_stop_after_the_turn_counts_more_than_a_grace() -> None:
    stop_request = after_command(STOP_AFTER_TURN, ANN, GRACE, after_command(DISCONNECTED, ANN, GRACE))

    assert stop_request is not None
    assert stop_request.after_turn


def test_an_unknown_command_changes_nothing() -> None:
    stop_request = after_command(DISCONNECTED, ANN, GRACE)

    assert after_command("dance", ANN, GRACE, stop_request) == stop_request
    assert after_command("dance", ANN, GRACE) is None


@pytest.mark.parametrize(
    ("metadata", "policy"),
    [
        ({}, DisconnectPolicy()),
        ({"on_disconnect": "detach"}, DisconnectPolicy()),
        ({"on_disconnect": "cancel"}, DisconnectPolicy("cancel")),
        ({"on_disconnect": "grace"}, DisconnectPolicy("grace", GRACE_S)),
        ({"on_disconnect": "grace", "grace_s": 2}, DisconnectPolicy("grace", 2.0)),
        ({"on_disconnect": "grace", "grace_s": -1}, DisconnectPolicy("grace", GRACE_S)),
        ({"on_disconnect": "grace", "grace_s": "long"}, DisconnectPolicy("grace", GRACE_S)),
        ({"on_disconnect": "explode"}, DisconnectPolicy()),
        ({"on_disconnect": ["cancel"]}, DisconnectPolicy()),
    ],
)
def test_the_envelope_chooses_the_policy(metadata: dict[str, Any], policy: DisconnectPolicy) -> None:
    assert policy_of(metadata) == policy
