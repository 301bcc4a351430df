"""`/`: the page, or, where it was not built, a plain one that shows what there is. No script or style is inline."""

from __future__ import annotations

import gzip
import re
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Annotated

from fastapi import APIRouter, Header
from starlette.responses import Response

from magent2.gateway.problems import Problem
from magent2.gateway.services import Services

INDEX = "index.html"
FOLDER = "page"
# What a model wrote can become neither script nor markup here, whatever the page does with it.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
    " worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
    " require-trusted-types-for 'script'; trusted-types magent2"
)
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
HASHED = re.compile(r"-[\w-]{8}\.\w+$")  # a name that says what is in the file
PACKED_MIN_BYTES = 1000


@dataclass(frozen=True)
class PageFile:
    """A file of the page, read when it is first asked for."""

    place: Traversable

    @cached_property
    def content(self) -> bytes:
        return self.place.read_bytes()

    @cached_property
    def packed(self) -> bytes:
        return gzip.compress(self.content, mtime=0)

    @property
    def type(self) -> str:
        suffix = f".{self.place.name.rpartition('.')[2]}"
        return f"{TYPES.get(suffix, 'application/octet-stream')}; charset=utf-8"

    @property
    def keeping(self) -> str:
        """How long a browser may keep it."""
        if self.place.name == INDEX:
            return "no-store"
        return "public, max-age=31536000, immutable" if HASHED.search(self.place.name) else "no-cache"

    def answer(self, accepted: str) -> Response:
        headers = {"content-security-policy": POLICY, "cache-control": self.keeping, "vary": "accept-encoding"}
        if "gzip" not in accepted or len(self.content) < PACKED_MIN_BYTES:
            return Response(self.content, headers=headers, media_type=self.type)
        return Response(self.packed, headers=headers | {"content-encoding": "gzip"}, media_type=self.type)


def router(_: Services, built: Traversable | None = None) -> APIRouter:
    routes = APIRouter(include_in_schema=False)
    plain = files("magent2.gateway") / "page"
    whole = files("magent2") / "web" if built is None else built
    index, parts = _files(whole, plain)

    @routes.get("/")
    async def page(accept_encoding: Annotated[str, Header()] = "") -> Response:
        return index.answer(accept_encoding)

    @routes.get("/page/{name}")
    async def asset(name: str, accept_encoding: Annotated[str, Header()] = "") -> Response:
        if name not in parts:
            raise Problem(404, "not_found", "the page has no such file")
        return parts[name].answer(accept_encoding)

    return routes


def _files(whole: Traversable, plain: Traversable) -> tuple[PageFile, dict[str, PageFile]]:
    """The page that there is, and what it loads."""
    parts = {place.name: PageFile(place) for place in plain.iterdir() if place.name != INDEX}
    if not (whole / INDEX).is_file():
        return PageFile(plain / INDEX), parts
    return PageFile(whole / INDEX), parts | {place.name: PageFile(place) for place in (whole / FOLDER).iterdir()}
