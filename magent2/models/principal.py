"""The principal: the authenticated caller on whose behalf a request acts."""

from __future__ import annotations

from dataclasses import dataclass

ADMIN_SCOPE = "admin"


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller.

    `name` owns the conversations that the caller starts and signs the messages that they send. An `admin` may act for
    every principal.
    """

    name: str
    admin: bool = False

    @property
    def bound(self) -> str | None:
        """The name that delivery restricts messages to. `None` for an admin, who may write to every conversation."""
        return None if self.admin else self.name

    def owns(self, owner: str | None) -> bool:
        """Whether the principal may see a conversation of this owner. Without an owner, only an admin may."""
        return self.admin or (bool(owner) and owner == self.name)


ADMIN = Principal("user:local", admin=True)
