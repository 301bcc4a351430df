"""A message inside a run."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

from pydantic import BaseModel, ConfigDict, Field

from magent2.models.envelope import UtcTime

CONTENT_MAX_CHARS = 1_000_000
NAME_MAX_CHARS = 1_000  # of an id, a source, a target
TEMPLATE_STORED_MAX_CHARS = 100_000  # what a message can carry; what can be rendered is far shorter


def _new_id() -> str:
    return str(uuid.uuid4())


def _now() -> datetime:
    return datetime.now(UTC)


class BusMessage(BaseModel):
    """What one agent, or a person, tells another: a value that never changes. Without a target it is for everybody."""

    model_config = ConfigDict(frozen=True)

    id: str = Field(default_factory=_new_id, min_length=1, max_length=NAME_MAX_CHARS)
    content: str = Field(max_length=CONTENT_MAX_CHARS)
    source: str = Field(max_length=NAME_MAX_CHARS)
    target: str | None = Field(default=None, max_length=NAME_MAX_CHARS)
    template: str | None = Field(default=None, max_length=TEMPLATE_STORED_MAX_CHARS)
    timestamp: UtcTime = Field(default_factory=_now)

    def render(self) -> str:
        """The content as its template shows it. A template that asks for more than that is `TemplateRefused`."""
        if self.template is None:
            return self.content
        from magent2.context.templates import render  # Jinja2 is slow to come in, and few messages need it

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
