"""`/`: the web page, or a plain status page if it was not built. Neither has inline scripts or styles."""

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

INDEX = "index.html"
FOLDER = "page"
# Text of a model can never become script or markup, even if the page has a bug.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:;"
    " worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
    " require-trusted-types-for 'script'; trusted-types magent2"
)
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
HASHED = re.compile(r"-[\w-]{8}\.\w+$")  # a name with a hash of the content
COMPRESSED_MIN_BYTES = 1000


@dataclass(frozen=True)
class PageFile:
    """A file of the page, read at the first request."""

    source: Traversable

    @cached_property
    def content(self) -> bytes:
        return self.source.read_bytes()

    @cached_property
    def compressed(self) -> bytes:
        return gzip.compress(self.content, mtime=0)

    @property
    def type(self) -> str:
        suffix = f".{self.source.name.rpartition('.')[2]}"
        return f"{TYPES.get(suffix, 'application/octet-stream')}; charset=utf-8"

    @property
    def cache_control(self) -> str:
        if self.source.name == INDEX:
            return "no-store"
        return "public, max-age=31536000, immutable" if HASHED.search(self.source.name) else "no-cache"

    def answer(self, accepted: str) -> Response:
        headers = {"content-security-policy": POLICY, "cache-control": self.cache_control, "vary": "accept-encoding"}
        if "gzip" not in accepted or len(self.content) < COMPRESSED_MIN_BYTES:
            return Response(self.content, headers=headers, media_type=self.type)
        return Response(self.compressed, headers=headers | {"content-encoding": "gzip"}, media_type=self.type)


HOW_TO_GET_IT = "in a clone, run 'make web', or install the wheel that 'make dist' builds; then start the gateway again"


def page_is_built() -> bool:
    """Return whether the package contains the page. A package that was built without 'make web' does not."""
    return (files("magent2") / "web" / INDEX).is_file()


def page_router(built: Traversable | None = None) -> APIRouter:
    """Return the routes of the page. `built` is its folder, by default that of the package."""
    routes = APIRouter(include_in_schema=False)
    plain = files("magent2.gateway") / "page"
    page_folder = files("magent2") / "web" if built is None else built
    index, parts = _files(page_folder, plain)

    @routes.get("/")
    @routes.head("/")
    async def page(accept_encoding: Annotated[str, Header()] = "") -> Response:
        return index.answer(accept_encoding)

    @routes.get("/page/{name}")
    @routes.head("/page/{name}")
    async def asset(name: str, accept_encoding: Annotated[str, Header()] = "") -> Response:
        if name not in parts:
            raise Problem(404, "not_found", "the page has no such file")
        return parts[name].answer(accept_encoding)

    return routes


def _files(page_folder: Traversable, plain: Traversable) -> tuple[PageFile, dict[str, PageFile]]:
    """Return the index of the page and the files that it loads, by name."""
    parts = {file.name: PageFile(file) for file in plain.iterdir() if file.name != INDEX}
    if not (page_folder / INDEX).is_file():
        return PageFile(plain / INDEX), parts
    return PageFile(page_folder / INDEX), parts | {
        file.name: PageFile(file) for file in (page_folder / FOLDER).iterdir()
    }
