"""`doctor`: what is right with the set-up, what is not, and what to do about it."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click

from magent2.cli.options import Door, bus_option, gateway_options, json_option
from magent2.cli.printing import say, say_json
from magent2.errors import GatewayUnreachable, Magent2Error, Unauthorized
from magent2.settings import Settings

PYTHON_MIN = (3, 11)
PACKAGES = ("magent2-runtime", "openai-agents", "fastapi", "uvicorn", "redis", "pydantic")


@dataclass(frozen=True, slots=True)
class Finding:
    status: Literal["ok", "warn", "fail"]
    what: str
    text: str


Check = Callable[[], Iterable[Finding]]


@click.command()
@bus_option
@json_option
@gateway_options
def doctor(bus: str | None, as_json: bool, door: Door) -> int:
    """Check the set-up and say what to mend.

    Exit code 1 when something must be mended; warnings are for you to judge.
    """
    settings = Settings.read()
    checks: tuple[Check, ...] = (
        check_python,
        check_packages,
        lambda: check_folder(settings.data_dir),
        lambda: check_token_file(settings.data_dir),
        lambda: check_bus(bus, settings),
        lambda: check_gateway(door),
        check_key,
    )
    findings = [finding for check in checks for finding in check()]
    if as_json:
        say_json({"ok": not _failed(findings), "findings": findings})
    else:
        for finding in findings:
            say(f"{finding.status:<4}  {finding.what:<8}  {finding.text}")
    return 1 if _failed(findings) else 0


def _failed(findings: Iterable[Finding]) -> bool:
    return any(finding.status == "fail" for finding in findings)


def check_python() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] >= PYTHON_MIN:
        yield Finding("ok", "python", version)
    else:
        yield Finding("fail", "python", f"{version} is too old; install {'.'.join(map(str, PYTHON_MIN))} or newer")


def check_packages() -> Iterator[Finding]:
    from importlib.metadata import PackageNotFoundError, version

    for name in PACKAGES:
        try:
            yield Finding("ok", "package", f"{name} {version(name)}")
        except PackageNotFoundError:
            yield Finding("fail", "package", f"{name} is not installed; install magent2 again")


def check_folder(folder: Path) -> Iterator[Finding]:
    """The data folder, or the nearest one above it that exists, can be written."""
    there = next(place for place in (folder, *folder.parents) if place.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        yield Finding(
            "fail", "data", f"{there} cannot be written ({error.strerror}); mend it, or set MAGENT2_DATA_DIR to another"
        )
        return
    yield Finding("ok", "data", str(folder) if there == folder else f"{folder} will be made at the first start")


def check_token_file(folder: Path) -> Iterator[Finding]:
    from magent2.token import TokenFile

    file = TokenFile.within(folder)
    try:
        token = file.read()
    except Magent2Error as error:
        yield Finding("fail", "token", f"{error}; 'magent2 token rotate' makes a new one")
        return
    if token is None:
        yield Finding("ok", "token", "none yet; the first start of a gateway makes one")
    elif os.name == "posix" and (mode := file.path.stat().st_mode & 0o777) & 0o077:
        yield Finding(
            "fail", "token", f"{file.path} can be read by others ({mode:o}); chmod 600, then 'magent2 token rotate'"
        )
    else:
        yield Finding("ok", "token", f"{file.path}, for its owner only")


def check_bus(url: str | None, settings: Settings) -> Iterator[Finding]:
    from magent2.bus.connect import connect, default_url, hide_password
    from magent2.bus.operations import Info

    where = url or default_url(settings)
    shown = hide_password(where)
    if where.startswith("sqlite:///") and not Path(where.removeprefix("sqlite:///")).exists():
        yield Finding("ok", "bus", f"{shown} will be made at the first start")
        return
    try:
        bus = connect(where, settings)
        try:
            info = bus.call(Info())
        finally:
            bus.close()
    except Magent2Error as error:
        yield Finding("fail", "bus", f"{shown}: {error}")
        return
    yield Finding("ok", "bus", f"{shown} ({info.engine}, schema {info.schema}, log {info.log_id})")
    for warning in info.warnings:
        yield Finding("warn", "bus", warning)


def check_gateway(door: Door) -> Iterator[Finding]:
    try:
        with door.open(0.0) as client:
            client.ready()
            agents = client.agents()
    except GatewayUnreachable as error:
        yield Finding("warn", "gateway", str(error))
    except Unauthorized as error:
        yield Finding("fail", "gateway", f"{error}; give --token, or MAGENT2_TOKEN, as the gateway has it")
    except Magent2Error as error:
        yield Finding("fail", "gateway", str(error))
    else:
        yield Finding("ok", "gateway", client.address.url)
        alive = [agent.name for agent in agents if agent.alive]
        yield (
            Finding("ok", "agents", ", ".join(alive))
            if alive
            else Finding("warn", "agents", "nobody serves an agent; 'magent2 worker' does")
        )


def check_key() -> Iterator[Finding]:
    if os.environ.get("OPENAI_API_KEY", "").strip():
        yield Finding("ok", "key", "OPENAI_API_KEY is set")
    else:
        yield Finding("warn", "key", "OPENAI_API_KEY is not set: 'serve' uses the demo model, 'worker' echoes")
