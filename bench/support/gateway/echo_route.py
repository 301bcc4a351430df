"""The baseline: a FastAPI route that parses a model and returns it. Run as a process."""

from __future__ import annotations

import argparse
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from bench.support.report import run
from magent2.gateway.limits import GatewayLimits
from magent2.gateway.limits.protocol import ConnectionTable, protocol_with_limits
from magent2.gateway.proxy import ProxySettings
from magent2.gateway.server import BACKLOG, listen
from magent2.telemetry import Metrics


class Message(BaseModel):
    """The fields of an envelope."""

    id: str
    conversation_id: str
    sender: str
    recipient: str
    type: str = "message"
    content: str | None = None
    metadata: dict[str, Any] = {}
    created_at: str


app = FastAPI()


@app.get("/health")
async def health() -> dict[str, str]:
    return {"status": "ok"}


@app.post("/echo")
async def echo(message: Message) -> Message:
    return message


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.support.gateway.echo_route", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    listener = listen("127.0.0.1", parser.parse_args().port)
    config = uvicorn.Config(  # as the gateway has it
        app,
        http=protocol_with_limits(ConnectionTable(GatewayLimits(), ProxySettings(), Metrics())),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
    )
    run(uvicorn.Server(config).serve([listener]))


if __name__ == "__main__":
    main()
