"""Record event logs for the unit tests of the page: `python -m tests.support.record_page_logs web/tests/logs`.

Run it after every change to the events of the session API, and review the diff.
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
from tests.support.api.sessions import answer_to, api, create, events, say, team_at_work, until_served
from tests.support.gated_model import GatedModel, befriend, gated_team
from tests.support.waiting import DEADLINE_S, LOOK_AGAIN_S

Scene: TypeAlias = Callable[[httpx2.AsyncClient, GatedModel], Awaitable[None]]


async def until_there(
    client: httpx2.AsyncClient, sought: Callable[[dict[str, Any]], bool], session_id: str = "s1"
) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not any(map(sought, await events(client, session_id))):
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
    """A run that is stopped during its answer and then retried."""
    await say(client, "held: one two three four five six", wait=False)
    await until_there(client, lambda event: event["type"] == "token")
    await client.post("/api/sdk/session/s1/stop", json={"mode": "now"})
    await until_there(client, lambda event: event["data"].get("status") == "stopped")
    model.gate.set()
    question = next(event["message_id"] for event in await events(client) if event["role"] == "user")
    await client.post("/api/sdk/session/s1/retry", json={"message_id": question})
    await until_there(client, lambda event: event["data"].get("status") == "finished")


async def steered(client: httpx2.AsyncClient, model: GatedModel) -> None:
    """A run that gets one steering message before its second turn, and one after its last."""
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


PARTING = 'friend_send("@bob", "one")\nfriend_send("@cat", "two")\npart()\nprint("told")'


async def block_in_part(client: httpx2.AsyncClient, _: GatedModel) -> None:
    """A block with two messages, of which one is no longer allowed when the block ends."""
    await answer_to(client, python(PARTING))


async def failed(client: httpx2.AsyncClient, _: GatedModel) -> None:
    await say(client, "fail: this")


async def decide(client: httpx2.AsyncClient, decision: str, **fields: str) -> None:
    call = (await client.get("/api/sdk/session/s1/approvals")).json()["approvals"][-1]["call_id"]
    answer = await client.post(f"/api/sdk/session/s1/approvals/{call}", json={"decision": decision, **fields})
    assert answer.status_code == 200, answer.text


async def asked(client: httpx2.AsyncClient, order: str) -> None:
    await say(client, f"refund order {order}", wait=False)
    await until_there(client, lambda event: event["type"] == "approval" and event["data"]["args"] == {"order": order})


async def approvals(client: httpx2.AsyncClient, _: GatedModel) -> None:
    """One approved call, one rejected call, and one whose run is stopped before a decision."""
    await asked(client, "7")
    await decide(client, "approve")
    await until_there(client, lambda event: event["data"].get("status") == "finished")
    await asked(client, "8")
    await decide(client, "reject", reason="too dear")
    await until_there(client, lambda event: "too dear" in (event["text"] or ""))
    await asked(client, "9")
    await client.post("/api/sdk/session/s1/stop", json={"mode": "now"})
    await until_there(client, lambda event: event["data"].get("status") == "stopped")


async def subagent(client: httpx2.AsyncClient, _: GatedModel) -> None:
    """A subagent is started and makes a call that needs approval."""
    await answer_to(client, f"use start_agent {json.dumps({'agent': 'support', 'task': 'refund order 7'})}")
    child = await child_of(client)
    await until_there(client, lambda event: event["type"] == "approval", child)


async def child_of(client: httpx2.AsyncClient, session_id: str = "s1") -> str:
    found = [event["data"]["subagent_id"] for event in await events(client, session_id) if event["type"] == "subagent"]
    return str(found[-1])


SCENES: dict[str, Scene] = {
    "tool": tool,
    "handoff": handoff,
    "tool_that_fails": tool_that_fails,
    "by_hand": by_hand,
    "stopped": stopped,
    "steered": steered,
    "block": block,
    "block_that_fails": block_that_fails,
    "block_in_part": block_in_part,
    "failed": failed,
    "approvals": approvals,
    "subagent": subagent,
}


async def record(name: str) -> dict[str, list[dict[str, Any]]]:
    """Play a scene and return its events, and those of the subagent if it started one."""
    bus, model = MemoryBus(), GatedModel()
    await asyncio.to_thread(befriend, bus)
    async with team_at_work(bus, runner=gated_team(model, bus)), api(bus) as client:
        await until_served(client)
        await create(client, agent_name="general")
        await SCENES[name](client, model)
        found = {name: await events(client)}
        if any(event["type"] == "subagent" for event in found[name]):
            found[f"{name}_child"] = await events(client, await child_of(client))
    await bus.aclose()
    return found


async def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for scene in SCENES:
        for name, found in (await record(scene)).items():
            lines = [json.dumps(event, ensure_ascii=False) for event in found]
            (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
