"""One table of a TOML file, read key by key. What is wrong is collected with its place, never raised."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from magent2.roster.spec import nearest

SHOWN_MAX_CHARS = 60

KINDS: Mapping[type, str] = {str: "a text", list: "a list", dict: "a table"}


class Table:
    """A table and its place in the file. Each read marks a key as known; `close` refuses the others by name."""

    def __init__(self, values: Mapping[str, Any], place: str, faults: list[str]) -> None:
        self.place = place
        self._values = values
        self._faults = faults
        self._known: list[str] = []

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def fault(self, key: str, words: str) -> None:
        where = ", ".join(part for part in (self.place, key) if part)
        self._faults.append(f"{where}: {words}" if where else words)

    def text(self, key: str, default: str = "") -> str:
        value = self._take(key, str, default)
        return value if isinstance(value, str) else default

    def word(self, key: str) -> str | None:
        """A text that, when it is there, says something."""
        value = self.text(key).strip()
        if key in self and isinstance(self._values[key], str) and not value:
            self.fault(key, "is empty; leave it out, or say something")
        return value or None

    def required(self, key: str) -> str | None:
        if key not in self:
            self.know(key)
            self.fault(key, "is missing")
            return None
        return self.text(key) if self.word(key) else None

    def number(self, key: str) -> int | float | None:
        self._known.append(key)
        value = self._values.get(key)
        if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
            return value
        self.fault(key, f"must be a number, not {shown(value)}")
        return None

    def words(self, key: str) -> tuple[str, ...]:
        """A list of texts, each once."""
        values = self._take(key, list, [])
        good: list[str] = []
        for value in values:
            if not isinstance(value, str) or not value.strip():
                self.fault(key, f"has {shown(value)}, which is no name")
            elif value in good:
                self.fault(key, f"has {value[:SHOWN_MAX_CHARS]!r} twice")
            else:
                good.append(value)
        return tuple(good)

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts that may repeat, such as the words of a command."""
        values = self._take(key, list, [])
        for value in values:
            if not isinstance(value, str):
                self.fault(key, f"has {shown(value)}, which is no text")
        return tuple(value for value in values if isinstance(value, str))

    def mapping(self, key: str) -> dict[str, Any]:
        return dict(self._take(key, dict, {}))

    def numbers(self, key: str) -> dict[str, float]:
        return self._each(key, (int, float), "a number")

    def strings(self, key: str) -> dict[str, str]:
        return self._each(key, (str,), "a text")

    def table(self, key: str) -> Table:
        return Table(self.mapping(key), self._inside(key), self._faults)

    def tables(self, key: str) -> Iterator[Table]:
        """The tables of `[[key]]`, each with its number as its place."""
        for number, value in enumerate(self._take(key, list, []), start=1):
            if isinstance(value, dict):
                yield Table(value, self._inside(f"{key} {number}"), self._faults)
            else:
                self.fault(key, f"has {shown(value)} where a table is wanted: write [[{key}]]")

    def named(self, key: str) -> Iterator[tuple[str, Table]]:
        """The tables of `[key.NAME]`, by their names."""
        for name, value in self.mapping(key).items():
            if isinstance(value, dict):
                yield name, Table(value, self._inside(f"{key}.{name[:SHOWN_MAX_CHARS]}"), self._faults)
            else:
                self.fault(f"{key}.{name[:SHOWN_MAX_CHARS]}", f"must be a table, not {shown(value)}")

    def know(self, key: str) -> None:
        """A key that may be there, though nobody asked for it."""
        self._known.append(key)

    def close(self) -> None:
        """Refuse whatever was not asked for."""
        for key in self._values:
            if key not in self._known:
                near = nearest(key, self._known)
                hint = f"did you mean {near!r}?" if near else f"known are: {', '.join(self._known)}"
                self.fault("", f"unknown key {key[:SHOWN_MAX_CHARS]!r}; {hint}")

    def _inside(self, key: str) -> str:
        return f"{self.place}, {key}" if self.place else key

    def _each(self, key: str, kinds: tuple[type, ...], what: str) -> dict[str, Any]:
        good: dict[str, Any] = {}
        for name, value in self.mapping(key).items():
            if isinstance(value, bool) or not isinstance(value, kinds):
                self.fault(f"{key}.{name[:SHOWN_MAX_CHARS]}", f"must be {what}, not {shown(value)}")
            else:
                good[name] = value
        return good

    def _take(self, key: str, kind: type, default: Any) -> Any:
        self._known.append(key)
        value = self._values.get(key, default)
        if isinstance(value, kind):
            return value
        self.fault(key, f"must be {KINDS[kind]}, not {shown(value)}")
        return default


def shown(value: object) -> str:
    """A value in a message: short."""
    text = repr(value)
    return text if len(text) <= SHOWN_MAX_CHARS else text[: SHOWN_MAX_CHARS - 1] + "…"
