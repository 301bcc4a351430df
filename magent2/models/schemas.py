"""JSON Schemas of the contract. `python -m magent2.models.schemas docs/schemas` writes one file per model."""

from __future__ import annotations

import sys
from pathlib import Path

import orjson
from pydantic import BaseModel

from magent2.models.envelope import BaseStreamEvent, MessageEnvelope, OutputEvent, TokenEvent, ToolStepEvent
from magent2.models.events import (
    ApprovalEvent,
    BlockEvent,
    BudgetEvent,
    ClientCallEvent,
    CompactedEvent,
    EndEvent,
    ErrorEvent,
    GapEvent,
    HandoffEvent,
    McpServerEvent,
    MessageEvent,
    ReceiptEvent,
    RunEvent,
    RunFields,
    SessionEvent,
    SubagentEvent,
    SupersededEvent,
    UserMessageEvent,
)

V1: tuple[type[BaseModel], ...] = (MessageEnvelope, BaseStreamEvent, TokenEvent, ToolStepEvent, OutputEvent)
V1_1: tuple[type[BaseModel], ...] = (
    RunFields,
    UserMessageEvent,
    SessionEvent,
    RunEvent,
    MessageEvent,
    ReceiptEvent,
    HandoffEvent,
    BlockEvent,
    ApprovalEvent,
    ClientCallEvent,
    SubagentEvent,
    SupersededEvent,
    CompactedEvent,
    McpServerEvent,
    BudgetEvent,
    ErrorEvent,
    GapEvent,
    EndEvent,
)
CONTRACT = V1 + V1_1


def schema_files() -> dict[str, str]:
    """Return the text of each schema file, by file name."""
    options = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE
    return {
        f"{model.__name__}.json": orjson.dumps(model.model_json_schema(), option=options).decode() for model in CONTRACT
    }


def write_schemas(folder: Path) -> None:
    """Write all schema files to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in schema_files().items():
        (folder / name).write_text(text)


if __name__ == "__main__":
    write_schemas(Path(sys.argv[1]))
