"""The script of the model: what it answers to a request, decided from the request alone.

The user's message carries a tag: `[bench conversation=c1 turns=10 tokens=200]`. As long as fewer than `turns` results
of the tool follow that message, the model calls the tool. Then it answers with `tokens` words.
So every framework gets the same answers, in whichever order and however often it asks.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from statistics import quantiles
from typing import Any

TOOL_NAME = "note"
_TAG = re.compile(r"\[bench conversation=([\w-]+) turns=(\d+) tokens=(\d+)\]")


class NotScripted(ValueError):
    """A request without the tag of the benchmark."""


@dataclass(frozen=True, slots=True)
class Task:
    """What a client asks for."""

    conversation: str
    turns: int
    tokens: int

    def message(self) -> str:
        tag = f"[bench conversation={self.conversation} turns={self.turns} tokens={self.tokens}]"
        return f"Make a note {self.turns} times, then answer. {tag}"

    def answer(self) -> str:
        return "".join(words(self.tokens))


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model says: it calls the tool, or it answers."""

    task: Task
    step: int  # results of the tool that the request has

    @property
    def calls_tool(self) -> bool:
        return self.step < self.task.turns

    @property
    def call_id(self) -> str:
        return f"call_{self.task.conversation}_{self.step}"

    @property
    def arguments(self) -> str:
        return json.dumps({"conversation": self.task.conversation, "step": self.step})


def words(tokens: int) -> list[str]:
    return [f"w{n} " for n in range(tokens)]


def reply_to(request: dict[str, Any]) -> Reply:
    """Decide about a body of `/v1/responses` or `/v1/chat/completions`."""
    items = request.get("input", request.get("messages", []))
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    task, results = None, 0
    for item in items:
        if item.get("role") == "user":
            found = _TAG.search(_text_of(item))
            if found is not None:
                task, results = Task(found[1], int(found[2]), int(found[3])), 0
        elif item.get("role") == "tool" or item.get("type") == "function_call_output":
            results += 1
    if task is None:
        raise NotScripted("no message of the user has a tag [bench conversation=… turns=… tokens=…]")
    return Reply(task, results)


def _text_of(item: dict[str, Any]) -> str:
    content = item.get("content")
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", "")) for part in content or [])


@dataclass(slots=True)
class Account:
    """The calls of one conversation, counted outside of the framework that makes them."""

    models: Counter[int] = field(default_factory=Counter)  # by step
    tools: Counter[int] = field(default_factory=Counter)
    answered_s: float | None = None  # when the last response was sent
    gaps_ms: list[float] = field(default_factory=list)

    def model_called(self, step: int, now_s: float) -> None:
        self.models[step] += 1
        if step and self.answered_s is not None:
            self.gaps_ms.append((now_s - self.answered_s) * 1e3)
        self.answered_s = None


@dataclass(slots=True)
class Ledger:
    """All conversations. Sums are over the conversations whose name has a prefix."""

    accounts: dict[str, Account] = field(default_factory=dict)

    def account(self, conversation: str) -> Account:
        return self.accounts.setdefault(conversation, Account())

    def tools_of(self, prefix: str) -> int:
        return sum(account.tools.total() for account in self._chosen(prefix))

    def sums(self, prefix: str) -> dict[str, float]:
        """Calls, repeated calls, and the time between a response and the next request of the same run."""
        chosen = self._chosen(prefix)
        gaps = [gap for account in chosen for gap in account.gaps_ms]
        cuts = quantiles(gaps, n=100, method="inclusive") if len(gaps) > 1 else [0.0] * 99
        return {
            "conversations": len(chosen),
            "model_calls": sum(account.models.total() for account in chosen),
            "model_calls_twice": sum(_repeats(account.models) for account in chosen),
            "tool_calls": sum(account.tools.total() for account in chosen),
            "tool_calls_twice": sum(_repeats(account.tools) for account in chosen),
            "turn_p50_ms": cuts[49],
            "turn_p95_ms": cuts[94],
        }

    def _chosen(self, prefix: str) -> list[Account]:
        return [account for name, account in self.accounts.items() if name.startswith(prefix)]


def _repeats(calls: Counter[int]) -> int:
    return calls.total() - len(calls)
