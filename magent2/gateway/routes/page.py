"""`/`: a plain page that shows what there is. No script or style of it is inline."""

from __future__ import annotations

from importlib.resources import files

from fastapi import APIRouter
from starlette.responses import Response

from magent2.gateway.house import House
from magent2.gateway.problems import Problem

SECURITY = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cache-control": "no-cache",
}
TYPES = {"index.html": "text/html", "page.js": "text/javascript", "page.css": "text/css"}


def router(_: House) -> APIRouter:
    routes = APIRouter(include_in_schema=False)
    folder = files("magent2.gateway") / "page"
    contents = {name: (folder / name).read_bytes() for name in TYPES}

    def answer(name: str) -> Response:
        return Response(contents[name], headers=SECURITY, media_type=f"{TYPES[name]}; charset=utf-8")

    @routes.get("/")
    async def page() -> Response:
        return answer("index.html")

    @routes.get("/page/{name}")
    async def asset(name: str) -> Response:
        if name not in contents:
            raise Problem(404, "not_found", "the page has no such file")
        return answer(name)

    return routes
