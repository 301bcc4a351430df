"""The command `doctor`: checks the setup and prints what to fix."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click

from magent2.cli.options import GatewayOptions, bus_option, gateway_options, json_option, printable_bus_url
from magent2.cli.output import print_data, print_json
from magent2.errors import GatewayUnreachable, Magent2Error, Unauthorized
from magent2.settings import Settings

PYTHON_MIN = (3, 11)
PACKAGES = ("magent2-runtime", "openai-agents", "fastapi", "uvicorn", "redis", "pydantic")


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. `what` names the part of the setup."""

    status: Literal["ok", "warn", "fail"]
    what: str
    text: str


Check = Callable[[], Iterable[Finding]]


@click.command()
@bus_option
@json_option
@gateway_options
def doctor(bus: str | None, as_json: bool, gateway: GatewayOptions) -> int:
    """Check your setup and tell you what to fix.

    The exit code is 1 when a check fails. A warning may be what you intend.
    """
    settings = Settings.read()
    checks: tuple[Check, ...] = (
        check_python,
        check_packages,
        lambda: check_folder(settings.data_dir),
        lambda: check_token_file(settings.data_dir),
        lambda: check_bus(bus, settings),
        lambda: check_gateway(gateway),
        check_key,
    )
    findings = [finding for check in checks for finding in check()]
    failed = any(finding.status == "fail" for finding in findings)
    if as_json:
        print_json({"ok": not failed, "findings": findings})
    else:
        for finding in findings:
            print_data(f"{finding.status:<4}  {finding.what:<8}  {finding.text}")
    return 1 if failed else 0


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
            yield Finding("fail", "package", f"{name} is not installed; reinstall magent2-runtime")


def check_folder(folder: Path) -> Iterator[Finding]:
    """Check that the data folder can be written; while it does not exist, the nearest folder above it."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        fix = "make it writable, or set MAGENT2_DATA_DIR to another folder"
        yield Finding("fail", "data", f"cannot write to {existing} ({error.strerror}); {fix}")
        return
    yield Finding("ok", "data", str(folder) if existing == folder else f"{folder} will be created at the first start")


def check_token_file(folder: Path) -> Iterator[Finding]:
    from magent2.token import TokenFile

    file = TokenFile.within(folder)
    try:
        token = file.read()
    except Magent2Error as error:
        yield Finding("fail", "token", f"{error}; create a new one with 'magent2 token rotate'")
        return
    if token is None:
        yield Finding("ok", "token", "none yet; the first start of a gateway creates one")
    elif os.name == "posix" and (mode := file.path.stat().st_mode & 0o777) & 0o077:
        fix = f"run 'chmod 600 {file.path}', then 'magent2 token rotate'"
        yield Finding("fail", "token", f"other users can read {file.path} (mode {mode:o}); {fix}")
    else:
        yield Finding("ok", "token", f"{file.path}, readable by its owner only")


def check_bus(url: str | None, settings: Settings) -> Iterator[Finding]:
    from magent2.bus.connect import connect
    from magent2.bus.operations import Info

    shown = printable_bus_url(url)
    if shown.startswith("sqlite:///") and not Path(shown.removeprefix("sqlite:///")).exists():
        yield Finding("ok", "bus", f"{shown} will be created at the first start")
        return
    try:
        bus = connect(url, settings)
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


def check_gateway(gateway: GatewayOptions) -> Iterator[Finding]:
    try:
        with gateway.connect(0.0) as client:
            client.ready()
            agents = client.agents()
    except GatewayUnreachable as error:
        yield Finding("warn", "gateway", str(error))
    except Unauthorized as error:
        yield Finding("fail", "gateway", f"{error}; set --token or MAGENT2_TOKEN to the token of the gateway")
    except Magent2Error as error:
        yield Finding("fail", "gateway", str(error))
    else:
        yield Finding("ok", "gateway", client.address.url)
        alive = [agent.name for agent in agents if agent.alive]
        yield (
            Finding("ok", "agents", ", ".join(alive))
            if alive
            else Finding("warn", "agents", "no worker serves an agent; start one with 'magent2 worker'")
        )


def check_key() -> Iterator[Finding]:
    if os.environ.get("OPENAI_API_KEY", "").strip():
        yield Finding("ok", "key", "OPENAI_API_KEY is set")
    else:
        yield Finding(
            "warn", "key", "OPENAI_API_KEY is not set; 'magent2 serve' uses the demo model, 'magent2 worker' echoes"
        )
