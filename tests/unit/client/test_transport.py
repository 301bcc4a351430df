from __future__ import annotations

import pytest

from magent2.client.transport import Backoff, may_repeat
from magent2.errors import GatewayBusy, GatewayUnreachable

LOST = GatewayUnreachable("gone", sent=True)


def test_pauses_grow_and_end() -> None:
    backoff = Backoff(10.0)
    pauses = [backoff.pause_s(LOST, now) for now in (0.0, 1.0, 2.0)]

    assert pauses[0] < pauses[1] < pauses[2]
    assert backoff.pause_s(LOST, 9.9) <= 0.1 + 1e-9
    with pytest.raises(GatewayUnreachable):
        backoff.pause_s(LOST, 10.0)


def test_a_success_begins_anew() -> None:
    backoff = Backoff(10.0)
    backoff.pause_s(LOST, 0.0)
    backoff.reset()

    assert backoff.pause_s(LOST, 100.0) < 0.2


def test_a_busy_gateway_is_left_alone_as_long_as_it_asks() -> None:
    assert Backoff(60.0).pause_s(GatewayBusy(503, "busy", "busy", {"retry_after_s": 5}), 0.0) >= 4.0


def test_what_may_have_happened_is_repeated_only_where_that_does_no_harm() -> None:
    assert may_repeat(LOST, repeatable=True)
    assert not may_repeat(LOST, repeatable=False)
    assert may_repeat(GatewayUnreachable("refused"), repeatable=False)
