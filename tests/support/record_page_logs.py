"""Records logs of conversations for the tests of the page: `python -m tests.support.record_page_logs web/tests/logs`.

Run it after every change of what the session API shows, and look at the difference.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import httpx2

from magent2.bus.memory import MemoryBus
from tests.support.api import answer_to, api, create, events, say, team_at_work, until_served
from tests.support.gated_model import GatedModel, gated_team
from tests.support.waiting import DEADLINE_S, LOOK_AGAIN_S

Scene: TypeAlias = Callable[[httpx2.AsyncClient, GatedModel], Awaitable[None]]


async def until_there(client: httpx2.AsyncClient, sought: Callable[[dict[str, Any]], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not any(map(sought, await events(client))):
            await asyncio.sleep(LOOK_AGAIN_S)


async def tool(client: httpx2.AsyncClient, _: GatedModel) -> None:
    await answer_to(client, "weather in Oslo", client_message_id="k1")


async def handoff(client: httpx2.AsyncClient, _: GatedModel) -> None:
    await answer_to(client, "talk to sales")
    await answer_to(client, "search for a lamp")
    await client.post("/api/sdk/session/set_active_agent", json={"session_id": "s1", "agent_name": "support"})


async def tool_that_fails(client: httpx2.AsyncClient, _: GatedModel) -> None:
    await answer_to(client, 'use weather {"town": "Oslo"}')


async def by_hand(client: httpx2.AsyncClient, _: GatedModel) -> None:
    await client.post("/api/tools/execute", json={"session_id": "s1", "tool": "weather", "args": {"city": "Oslo"}})


async def stopped(client: httpx2.AsyncClient, model: GatedModel) -> None:
    """Stopped in the middle of an answer, then tried again."""
    await say(client, "held: one two three four five six", wait=False)
    await until_there(client, lambda event: event["type"] == "token")
    await client.post("/api/sdk/session/s1/stop", json={"mode": "now"})
    await until_there(client, lambda event: event["data"].get("status") == "stopped")
    model.gate.set()
    question = next(event["message_id"] for event in await events(client) if event["role"] == "user")
    await client.post("/api/sdk/session/s1/retry", json={"message_id": question})
    await until_there(client, lambda event: event["data"].get("status") == "finished")


async def steered(client: httpx2.AsyncClient, model: GatedModel) -> None:
    """Told something before its second turn, and something after its last."""
    await say(client, "gated: weather in Oslo", wait=False)
    await until_there(client, lambda event: event["data"].get("status") == "started")
    await client.post("/api/sdk/session/s1/steer", json={"text": "in Celsius", "client_message_id": "k2"})
    model.gate.set()
    await until_there(client, lambda event: event["data"].get("status") == "finished")
    await client.post("/api/sdk/session/s1/steer", json={"text": "and in Bergen?"})
    await until_there(
        client, lambda event: (event["text"] or "").startswith("and in Bergen?") and event["role"] == "assistant"
    )


def python(code: str) -> str:
    return f"use run_python {json.dumps({'code': code})}"


SENDING = (
    'chat_send("agent:sales", "one", "for-sales")\nchat_send("agent:support", "two", "for-support")\nprint("told")'
)


async def block(client: httpx2.AsyncClient, _: GatedModel) -> None:
    await answer_to(client, python(SENDING))


async def block_that_fails(client: httpx2.AsyncClient, _: GatedModel) -> None:
    await answer_to(client, python(f"{SENDING}\n1 // 0"))


async def failed(client: httpx2.AsyncClient, _: GatedModel) -> None:
    await say(client, "fail: this")


SCENES: dict[str, Scene] = {
    "tool": tool,
    "handoff": handoff,
    "tool_that_fails": tool_that_fails,
    "by_hand": by_hand,
    "stopped": stopped,
    "steered": steered,
    "block": block,
    "block_that_fails": block_that_fails,
    "failed": failed,
}


async def record(scene: Scene) -> list[object]:
    bus, model = MemoryBus(), GatedModel()
    async with team_at_work(bus, runner=gated_team(model)), api(bus) as client:
        await until_served(client)
        await create(client, agent_name="general")
        await scene(client, model)
        found = await events(client)
    await bus.aclose()
    return list(found)


async def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, scene in SCENES.items():
        lines = [json.dumps(event, ensure_ascii=False) for event in await record(scene)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
