"""`console`: messages as lines on the standard output of the process that relays them. It knows nothing again."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TextIO

from magent2.connectors.interface import Outgoing, Receipt
from magent2.directory.connectors import Capabilities
from magent2.errors import NotTaken

CAPABILITIES = Capabilities(text=True, files=True, reply_to=True, takes_key=False)


class ConsoleConnector:
    """`out` is for tests; else it is whatever the standard output is when something is said."""

    capabilities = CAPABILITIES

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out

    async def send(self, message: Outgoing, files: Mapping[str, bytes]) -> Receipt:
        try:
            for line in self._lines(message):
                print(line, file=self._out or sys.stdout, flush=True)
        except (OSError, ValueError) as error:  # nobody reads it any more
            raise NotTaken(f"the console cannot be written to: {error}") from error
        return Receipt()

    def _lines(self, message: Outgoing) -> list[str]:
        to = f" → {message.target}" if message.target else ""
        text = " ".join(message.text.split())
        lines = [f"[{printable(message.agent)}{printable(to)}] {printable(text)}"]
        lines += [f"  + {printable(file.name)} ({file.bytes} bytes)" for file in message.attachments]
        return lines

    async def aclose(self) -> None:
        return None


def printable(text: str) -> str:
    """Without what a terminal would take for a command."""
    return "".join(char if char.isprintable() else "�" for char in text)
