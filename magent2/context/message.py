"""The message type of the bus inside a run."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

from pydantic import BaseModel, ConfigDict, Field

from magent2.models.envelope import UtcTime

CONTENT_MAX_CHARS = 1_000_000
NAME_MAX_CHARS = 1_000  # of an id, a source, a target
TEMPLATE_STORED_MAX_CHARS = 100_000  # of a template in a message; `templates.py` renders only far shorter ones


def _new_id() -> str:
    return str(uuid.uuid4())


def _now() -> datetime:
    return datetime.now(UTC)


class BusMessage(BaseModel):
    """An immutable message from an agent or a user to an agent. Without a target it is a broadcast."""

    model_config = ConfigDict(frozen=True)

    id: str = Field(default_factory=_new_id, min_length=1, max_length=NAME_MAX_CHARS)
    content: str = Field(max_length=CONTENT_MAX_CHARS)
    source: str = Field(max_length=NAME_MAX_CHARS)
    target: str | None = Field(default=None, max_length=NAME_MAX_CHARS)
    template: str | None = Field(default=None, max_length=TEMPLATE_STORED_MAX_CHARS)
    timestamp: UtcTime = Field(default_factory=_now)

    def render(self) -> str:
        """Apply the template and return the text. Raises `TemplateRefused` for a template that is not allowed."""
        if self.template is None:
            return self.content
        from magent2.context.templates import render  # Jinja2 is slow to import, and few messages need it

        return render(
            self.template,
            {
                "id": self.id,
                "content": self.content,
                "source": self.source,
                "target": self.target,
                "timestamp": self.timestamp.isoformat(),
            },
        )
