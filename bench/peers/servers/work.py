"""What all contestants share: where the model is, and the tool.

The programs in this folder run in environments of their own, so they import nothing of the project.
"""

from __future__ import annotations

import asyncio
import json
import os

MODEL = "scripted"
MODEL_PORT = int(os.environ["BENCH_MODEL_PORT"])
INSTRUCTIONS = "Call note as often as the user asks, then answer."


async def note(conversation: str, step: int) -> str:
    """Make a note."""
    body = json.dumps({"conversation": conversation, "step": step}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", MODEL_PORT)
    try:
        writer.write(b"POST /tool HTTP/1.1\r\nhost: bench\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200 "):
            raise RuntimeError(f"the counter answered {head.decode()}")
    finally:
        writer.close()
    return f"noted {step}"
