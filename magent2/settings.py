"""The one reader of the environment. Read once at start, handed over from there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from magent2.errors import SettingsError

PAYLOAD_MAX_BYTES = 1 << 20
PAYLOAD_CAP_MIN_BYTES, PAYLOAD_CAP_MAX_BYTES = 1 << 10, 64 << 20


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment says. `bus_url` may carry a password and does not print."""

    bus_url: str | None
    data_dir: Path
    payload_max_bytes: int = PAYLOAD_MAX_BYTES

    @classmethod
    def read(cls, environ: Mapping[str, str] | None = None) -> Settings:
        variables = os.environ if environ is None else environ
        folder = variables.get("MAGENT2_DATA_DIR", "").strip()
        return cls(
            bus_url=_first(variables, "MAGENT2_BUS_URL", "REDIS_URL"),
            data_dir=Path(folder).expanduser() if folder else default_data_dir(),
            payload_max_bytes=_payload_cap(variables.get("MAGENT2_PAYLOAD_MAX_BYTES", "").strip()),
        )

    def __repr__(self) -> str:
        shown = "set" if self.bus_url else "not set"
        return (
            f"Settings(bus_url=<{shown}>, data_dir={str(self.data_dir)!r}, payload_max_bytes={self.payload_max_bytes})"
        )


def default_data_dir() -> Path:
    from platformdirs import user_data_path  # only the embedded default needs it

    return user_data_path("magent2", appauthor=False)


def _first(variables: Mapping[str, str], *names: str) -> str | None:
    return next((value for name in names if (value := variables.get(name, "").strip())), None)


def _payload_cap(text: str) -> int:
    if not text:
        return PAYLOAD_MAX_BYTES
    if not text.isdecimal() or not PAYLOAD_CAP_MIN_BYTES <= int(text) <= PAYLOAD_CAP_MAX_BYTES:
        raise SettingsError(
            f"MAGENT2_PAYLOAD_MAX_BYTES must be a number of bytes from {PAYLOAD_CAP_MIN_BYTES}"
            f" to {PAYLOAD_CAP_MAX_BYTES}, not {text[:40]!r}"
        )
    return int(text)
