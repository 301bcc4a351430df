"""Record the SDK's events as JSON: `python -m tests.support.record_sdk_events tests/fixtures/sdk_events`.

Run it after every change of the SDK version and review the diff: the event mapping must handle it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from agents import Agent, RunConfig, Runner, StreamEvent, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call
from pydantic import BaseModel

SDK = "openai-agents"


@function_tool
def work(n: int) -> str:
    """Do a piece of work."""
    if n > 8:
        raise ValueError("too much work")
    return f"did {n}"


def text_only() -> Agent[Any]:
    return Agent(name="Dev", model=ScriptedModel([[assistant_message("Hello there.")]]))


def tools() -> Agent[Any]:
    """Text and two calls in one turn, one of which fails; then the answer."""
    first = [
        assistant_message("Let me see."),
        function_call("work", {"n": 1}, call_id="c1"),
        function_call("work", {"n": 9}, call_id="c2"),
    ]
    return Agent(name="Dev", model=ScriptedModel([first, [assistant_message("All done.")]]), tools=[work])


def handoff() -> Agent[Any]:
    ops = Agent(name="Ops", model=ScriptedModel([[assistant_message("Ops here.")]]))
    turn = [function_call("transfer_to_ops", {}, call_id="h1")]
    return Agent(name="Dev", model=ScriptedModel([turn]), handoffs=[ops])


SCENES: dict[str, Callable[[], Agent[Any]]] = {"text_only": text_only, "tools": tools, "handoff": handoff}


async def stream(agent: Agent[Any]) -> list[StreamEvent]:
    """All events of one run. The agents must outlive them: the SDK keeps weak references."""
    result = Runner.run_streamed(agent, "go", run_config=RunConfig(tracing_disabled=True))
    return [event async for event in result.stream_events()]


def as_dict(event: StreamEvent) -> dict[str, Any]:
    if event.type == "raw_response_event":
        return {"type": event.type, "data": plain(event.data)}
    if event.type == "run_item_stream_event":
        names = ("raw_item", "output", "source_agent", "target_agent")
        item = {name: plain(getattr(event.item, name)) for name in names if hasattr(event.item, name)}
        return {"type": event.type, "name": event.name, "item": {"type": event.item.type, **item}}
    return {"type": event.type, "new_agent": plain(event.new_agent)}


def plain(value: object) -> object:
    if isinstance(value, Agent):
        return {"name": value.name}
    return value.model_dump(mode="json", exclude_none=True) if isinstance(value, BaseModel) else value


async def record(scene: str) -> dict[str, Any]:
    agent = SCENES[scene]()
    events = [as_dict(event) for event in await stream(agent)]
    return {"sdk": f"{SDK} {version(SDK)}", "scene": scene, "events": json.loads(json.dumps(events))}


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for scene in SCENES:
        recorded = asyncio.run(record(scene))
        (folder / f"{scene}.json").write_text(json.dumps(recorded, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
