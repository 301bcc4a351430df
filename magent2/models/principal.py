"""Who acts: a person with a key, or whoever runs the place."""

from __future__ import annotations

from dataclasses import dataclass

ADMIN_SCOPE = "admin"


@dataclass(frozen=True, slots=True)
class Principal:
    """`name` is what conversations belong to and what mail is signed with; `admin` may act for everybody."""

    name: str
    admin: bool = False

    @property
    def bound(self) -> str | None:
        """The name that delivery holds mail to; `None` for whoever may write anywhere."""
        return None if self.admin else self.name

    def owns(self, owner: str | None) -> bool:
        """Whether a conversation of this owner is theirs to see. One without an owner is the admin's."""
        return self.admin or (bool(owner) and owner == self.name)


ADMIN = Principal("user:local", admin=True)
