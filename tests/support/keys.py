"""Users with API keys, for gateways that require them."""

from __future__ import annotations

from dataclasses import dataclass

from magent2.bus.interface import Engine
from magent2.bus.log import Log
from magent2.directory.keys import create_key, revoke_key
from magent2.gateway.access.auth import Access

TOKEN = "0123456789abcdefghij"
ACCESS = Access.by_token(TOKEN, loopback=False)
ADMIN = {"authorization": f"Bearer {TOKEN}"}


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """A user with an API key."""

    id: str
    text: str
    bus: Engine

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.text}"}

    async def revoke(self) -> None:
        await revoke_key(Log(self.bus), self.id)


async def create_key_holder(bus: Engine, *scopes: str) -> KeyHolder:
    made = await create_key(Log(bus), scopes)
    return KeyHolder(made.key.id, made.text, bus)
