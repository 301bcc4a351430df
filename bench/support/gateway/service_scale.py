"""Sizes of the measurements of the service, and the site under test."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

import orjson

from bench.support.gateway.load_client import Server
from bench.support.report import Connect, envelope


@dataclass(frozen=True, slots=True)
class ServiceScale:
    """How much is done per measurement."""

    rounds: int
    sends: int
    answered_sends: int  # with a worker that answers meanwhile
    connections: int  # that send at a time
    asks: int  # one after another, for the latency
    talks: int  # conversations that stream at a time
    words: int  # of each, so as many tokens
    idle: int  # clients of streams in which nothing happens
    idle_s: float
    resume_small: int
    resume_large: int
    resumes: int
    sdk_tokens: int  # of each run; `talks` runs at a time
    sdk_waves: int


FULL = ServiceScale(
    rounds=5,
    sends=2_000,
    answered_sends=1_000,
    connections=64,
    asks=200,
    talks=20,
    words=2_000,
    idle=2_000,
    idle_s=10.0,
    resume_small=1_000,
    resume_large=1_000_000,
    resumes=100,
    sdk_tokens=200,
    sdk_waves=3,
)
QUICK = ServiceScale(
    rounds=1,
    sends=100,
    answered_sends=40,
    connections=8,
    asks=10,
    talks=4,
    words=50,
    idle=20,
    idle_s=0.5,
    resume_small=1_000,
    resume_large=4_000,
    resumes=10,
    sdk_tokens=20,
    sdk_waves=1,
)


@dataclass(frozen=True, slots=True)
class Site:
    """A gateway with its worker and bus, and the echo server to compare with."""

    gateway: Server
    echo: Server
    connect: Connect


def new_names(count: int) -> tuple[str, ...]:
    """Names of new conversations."""
    stem = f"bench-{uuid.uuid4().hex[:12]}"
    return tuple(f"{stem}-{number}" for number in range(count))


def body(conversation: str, agent: str, text: str | None = None) -> bytes:
    """An envelope to an agent as JSON; without a text, two sentences."""
    asked: dict[str, Any] = envelope(conversation, f"agent:{agent}")
    return orjson.dumps(asked if text is None else {**asked, "content": text})
