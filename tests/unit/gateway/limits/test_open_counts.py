"""Counts of connections and streams over several gateways. The rows are those of separate processes in production."""

from __future__ import annotations

from pathlib import Path

import pytest

from magent2.bus.memory import MemoryBus
from magent2.gateway.access.auth import Access, Identity
from magent2.gateway.limits import GatewayLimits
from magent2.gateway.limits.open_counts import CountsFile, LimitShare, OpenCounts
from magent2.gateway.problems import Problem
from magent2.gateway.streaming.open_streams import OpenStreams
from magent2.gateway.streaming.sse import RECORD_FORMAT, StreamRequest
from magent2.models.principal import Principal
from magent2.telemetry import Metrics

GATEWAYS = 3


@pytest.fixture
def file(tmp_path: Path) -> CountsFile:
    return CountsFile.create(tmp_path / "counts", GATEWAYS)


def test_each_process_sees_what_all_of_them_have_open(file: CountsFile, tmp_path: Path) -> None:
    one, two = file.share(0).connections, CountsFile(tmp_path / "counts", GATEWAYS).share(1).connections
    for key in ("10.0.0.1", "10.0.0.1", "10.0.0.2", None):
        one.add(key)
    two.add("10.0.0.1")
    two.remove("10.0.0.1")
    two.add("10.0.0.1")

    assert [(counts.total, counts.of("10.0.0.1"), counts.of("10.0.0.2")) for counts in (one, two)] == [(5, 3, 1)] * 2
    assert (one.own, two.own) == (4, 1)


def test_connections_and_streams_are_counted_apart(file: CountsFile) -> None:
    share = file.share(2)
    share.connections.add("ann")

    assert (share.streams.total, share.streams.of("ann")) == (0, 0)


def test_the_counts_of_a_process_that_ended_are_cleared_and_no_others(file: CountsFile) -> None:
    shares = [file.share(row) for row in range(GATEWAYS)]
    for share in shares:
        share.connections.add("10.0.0.1")
        share.streams.add("ann")

    file.clear(1)

    assert (shares[0].connections.total, shares[0].connections.of("10.0.0.1")) == (2, 2)
    assert (shares[2].streams.total, shares[2].streams.of("ann")) == (2, 2)


def test_many_keys_with_few_open_do_not_raise_the_count_of_another(file: CountsFile) -> None:
    counts = file.share(0).connections
    for number in range(4096):
        counts.add(f"10.1.{number // 256}.{number % 256}")

    # A cell has 0.06 of them on average, and the emptier of two cells counts.
    assert counts.of("other") <= 3
    assert counts.total == 4096


def test_a_key_is_counted_in_one_process_without_a_file() -> None:
    counts = OpenCounts()
    counts.add("a")
    counts.add(None)
    counts.remove("a")

    assert (counts.total, counts.of("a"), counts.own) == (1, 0, 1)


def streams_of(share: LimitShare, bus: MemoryBus) -> OpenStreams:
    limits = GatewayLimits(streams_max=3, streams_per_principal_max=2)
    return OpenStreams(bus, limits, Access(), Metrics(), share)


async def test_limits_of_streams_hold_over_all_gateways(file: CountsFile) -> None:
    bus = MemoryBus()
    one, two = (streams_of(file.share(row), bus) for row in (0, 1))
    ann, bob = (Identity(Principal(f"user:{name}")) for name in ("ann", "bob"))
    request = StreamRequest("c1", frame_format=RECORD_FORMAT)
    first = one.enter(request, ann)
    two.enter(request, ann)

    with pytest.raises(Problem) as too_many_of_ann:
        two.enter(request, ann)
    two.enter(request, bob)
    with pytest.raises(Problem) as too_many:
        one.enter(request, bob)
    one.leave(first)
    two.enter(request, ann)

    assert (too_many_of_ann.value.status, too_many.value.status) == (429, 503)
    assert (one.open, two.open) == (0, 3)
    bus.close()
