"""A demo run that takes its time, so that there is something to steer and to stop: one city after another."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from html import unescape
from typing import Any

from magent2.runner.demo_script import Line, Say, Step, Use, report, text_of

TOOL = "weather"

_ASKED = re.compile(r"compare the weather in (?P<cities>\S.*)", re.IGNORECASE)
_BETWEEN = re.compile(r",\s*(?:and\s+)?|\s+and\s+", re.IGNORECASE)
_STEER = re.compile(r"<bus-message [^>]*>\n(?P<text>.*)\n</bus-message>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Tour:
    """Where to go, where it has been, what was told there, and what was said meanwhile."""

    cities: tuple[str, ...]
    visited: tuple[str, ...]
    told: tuple[str, ...]
    steers: tuple[str, ...]

    @property
    def left_out(self) -> list[str]:
        said = "\n".join(self.steers).casefold()
        return [city for city in self.cities if city not in self.visited and city.casefold() in said]

    @property
    def next(self) -> str | None:
        done = {*self.visited, *self.left_out}
        return next((city for city in self.cities if city not in done), None)


def tour_line(items: Sequence[Mapping[str, Any]], tools: Collection[str]) -> Line | None:
    """The next line of a tour, where one is under way."""
    tour = _tour(items) if TOOL in tools else None
    if tour is None:
        return None
    if tour.next is not None:
        return Step(f"Looking at {tour.next}. Write to me meanwhile, or stop me.", Use(TOOL, {"city": tour.next}))
    return Say("\n\n".join([*map(report, tour.told), *_remarks(tour)]))


def _remarks(tour: Tour) -> list[str]:
    if tour.left_out:
        return [f"Left out, as you said meanwhile: {', '.join(tour.left_out)}."]
    return [f"You said meanwhile: {steer}" for steer in tour.steers]


def _tour(items: Sequence[Mapping[str, Any]]) -> Tour | None:
    """What has happened since a tour was asked for, if that was the last that a person asked for."""
    visited: list[str] = []
    told: list[str] = []
    steers: list[str] = []
    for item in reversed(items):
        if item.get("type") == "function_call_output":
            told.insert(0, text_of(item.get("output")))
        elif item.get("type") == "function_call" and item.get("name") == TOOL:
            visited.insert(0, _city_of(str(item.get("arguments"))))
        elif item.get("role") == "user":
            text = text_of(item.get("content")).strip()
            steer = _STEER.fullmatch(text)
            if steer is None:
                cities = _cities(text)
                return Tour(cities, tuple(visited), tuple(told), tuple(steers)) if cities else None
            steers.insert(0, unescape(steer["text"]))
    return None


def _city_of(arguments: str) -> str:
    try:
        return str(json.loads(arguments)["city"])
    except (ValueError, KeyError, TypeError):  # another model's call, in a conversation that it began
        return ""


def _cities(text: str) -> tuple[str, ...]:
    asked = _ASKED.fullmatch(text.rstrip("?!."))
    named = _BETWEEN.split(asked["cities"]) if asked else []
    return tuple(dict.fromkeys(city.strip() for city in named if city.strip()))
