"""Commands to a run under way: control mail, and what it means for the run. Pure.

`stop` ends the run; `stop_after_turn` does once the turn under way is recorded, if another would follow.
`disconnected` and `connected` say whether whoever asked is still there; what follows from that the envelope chose in
its metadata: `on_disconnect` is `detach` (go on, the default), `cancel` (stop at once), or `grace` (stop after
`grace_s` seconds unless the reader comes back).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

log = logging.getLogger(__name__)

STOP, STOP_AFTER_TURN = "stop", "stop_after_turn"
DISCONNECTED, CONNECTED = "disconnected", "connected"
STOPS = (STOP, STOP_AFTER_TURN)
COMMANDS = (STOP, STOP_AFTER_TURN, DISCONNECTED, CONNECTED)

GRACE_S, GRACE_MAX_S = 30.0, 86_400.0


@dataclass(frozen=True, slots=True)
class Halt:
    """The run is to stop: now, in some seconds unless another command comes first, or before its next turn."""

    reason: str
    in_s: float = 0.0
    after_turn: bool = False

    @property
    def is_now(self) -> bool:
        return not self.in_s and not self.after_turn

    @property
    def is_final(self) -> bool:
        """No other command takes it back."""
        return self.is_now or self.after_turn


@dataclass(frozen=True, slots=True)
class Policy:
    """What a disconnect does to a run."""

    kind: Literal["detach", "cancel", "grace"] = "detach"
    grace_s: float = GRACE_S


def policy_of(metadata: Mapping[str, Any]) -> Policy:
    """The policy that mail asks for. What nobody knows is `detach`: work that was asked for is not thrown away."""
    kind = metadata.get("on_disconnect", "detach")
    if kind == "cancel":
        return Policy("cancel")
    if kind == "grace":
        return Policy("grace", _grace_s(metadata.get("grace_s")))
    if kind != "detach":
        log.warning("unknown disconnect policy, taken as detach", extra={"policy": str(kind)[:80]})
    return Policy()


def _grace_s(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= GRACE_MAX_S:
        return GRACE_S
    return float(value)


def after_command(command: str, sender: str, policy: Policy, halt: Halt | None = None) -> Halt | None:
    """What holds for the run after this command, when `halt` held before it. A stop is not taken back."""
    if halt is not None and halt.is_now:
        return halt
    if command == STOP:
        return Halt(f"stopped by {sender}")
    if halt is not None and halt.after_turn:
        return halt
    if command == STOP_AFTER_TURN:
        return Halt(f"stopped by {sender} after its turn", after_turn=True)
    return _after_reader(command, policy, halt)


def _after_reader(command: str, policy: Policy, halt: Halt | None) -> Halt | None:
    """What follows from whoever asked being gone, or back."""
    if command == CONNECTED:
        return None
    if command == DISCONNECTED and policy.kind == "cancel":
        return Halt("its reader has disconnected")
    if command == DISCONNECTED and policy.kind == "grace":
        return Halt(f"its reader was gone for {policy.grace_s:g} s", policy.grace_s)
    return halt
