"""The command `doctor`: checks the setup and prints what to fix."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from magent2.cli.options import (
    GATEWAYS_MAX,
    WORKERS_MAX,
    GatewayOptions,
    bus_exists,
    bus_option,
    config_option,
    gateway_options,
    json_option,
    printable_bus_url,
    sdk_agents_option,
)
from magent2.cli.output import print_data, print_json
from magent2.errors import GatewayUnreachable, Magent2Error, Unauthorized
from magent2.settings import Settings

if TYPE_CHECKING:
    from magent2.bus.interface import Engine

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
@config_option
@sdk_agents_option
@gateway_options
def doctor(
    bus: str | None, as_json: bool, config: Path | None, sdk_agents: tuple[str, ...], gateway: GatewayOptions
) -> int:
    """Check your setup and tell you what to fix.

    With an agents file, its MCP servers are started or connected to.

    The exit code is 1 when a check fails. A warning may be what you intend.
    """
    settings = Settings.read()
    checks: tuple[Check, ...] = (
        check_python,
        check_packages,
        lambda: check_variables(settings),
        lambda: check_folder(settings.data_dir),
        lambda: check_token_file(settings.data_dir),
        lambda: check_bus(bus, settings),
        lambda: check_modes(bus, settings.data_dir),
        lambda: check_processes(bus),
        lambda: check_gateway(gateway),
        lambda: check_models(config, sdk_agents),
        lambda: check_agents_file(config),
        lambda: check_sdk_agents(config, sdk_agents),
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


def check_variables(settings: Settings) -> Iterator[Finding]:
    """Check the variables with which no server starts: limits, retention and retry policies."""
    from magent2.roster.registry import EnvironmentOverride

    try:
        EnvironmentOverride.of(settings)
    except Magent2Error as error:
        yield Finding("fail", "settings", str(error))


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
    from magent2.bus.operations import WRITE_PROBE, Info

    shown = printable_bus_url(url)
    if not bus_exists(url):
        yield Finding("ok", "bus", f"{shown} will be created at the first start")
        return
    try:
        bus = connect(url, settings)
        try:
            info = bus.call(Info())
            bus.call(WRITE_PROBE)
            started = time.monotonic()
            bus.call(WRITE_PROBE)  # the first one may have opened a connection
            write_ms = 1000 * (time.monotonic() - started)
            findings = [*check_token_on_bus(bus, settings), *check_schedules(bus)]
        finally:
            bus.close()
    except Magent2Error as error:
        yield Finding("fail", "bus", f"{shown}: {error}")
        return
    facts = (
        info.engine,
        f"schema {info.schema}",
        f"log {info.log_id}",
        *info.details,
        f"a write took {write_ms:.1f} ms",
    )
    yield Finding("ok", "bus", f"{shown} ({', '.join(facts)})")
    for warning in info.warnings:
        yield Finding("warn", "bus", warning)
    yield from findings


def check_schedules(bus: Engine) -> Iterator[Finding]:
    """Check that no schedule is late: then no worker runs, or none gets to it."""
    from magent2.bus.log import run_sync
    from magent2.sessions.schedules.store import count_schedules

    counts = run_sync(bus, count_schedules, round(time.time() * 1000))
    if counts.late:
        fix = "start a worker ('magent2 serve' or 'magent2 worker'), or see its log"
        yield Finding("warn", "schedule", f"{counts.late} of {counts.active} active schedules are late; {fix}")
    elif counts.active or counts.paused:
        yield Finding("ok", "schedule", f"{counts.active} active, {counts.paused} paused, {counts.due} due, none late")


def check_modes(url: str | None, folder: Path) -> Iterator[Finding]:
    """Check that other users can use neither the data folder nor the log. Opening the log narrowed what it could."""
    from magent2.bus.sqlite import FILE_SUFFIXES
    from magent2.private_files import too_wide

    shown = printable_bus_url(url)
    name = shown.removeprefix("sqlite:///")
    files = [Path(name + suffix) for suffix in FILE_SUFFIXES] if name != shown else []
    for path in too_wide(*files):
        owner = path.stat().st_uid
        fix = f"run 'chmod go= {path}' as its owner (uid {owner})"
        yield Finding("fail", "modes", f"other users can use {path} (mode {path.stat().st_mode & 0o777:o}); {fix}")
    for path in too_wide(folder):
        fix = f"run 'chmod 700 {path}'; to share it with a group, run 'chmod g+s {path}'"
        yield Finding("warn", "modes", f"other users can enter {path} (mode {path.stat().st_mode & 0o777:o}); {fix}")


def check_processes(url: str | None) -> Iterator[Finding]:
    """Check the numbers of processes that the environment gives to `serve`."""
    limits = {"MAGENT2_GATEWAYS": GATEWAYS_MAX, "MAGENT2_WORKERS": WORKERS_MAX}
    given = {name: text for name in limits if (text := os.environ.get(name, "").strip())}
    for name, text in given.items():
        if not text.isdecimal() or not 1 <= int(text) <= limits[name]:
            yield Finding("fail", "serve", f"{name} must be a number from 1 to {limits[name]}, not {text[:40]!r}")
            return
    if given and printable_bus_url(url).strip().startswith("memory:"):
        fix = f"name a SQLite file, a Redis or a PostgreSQL server with --bus, or unset {' and '.join(given)}"
        yield Finding("fail", "serve", f"several processes cannot share memory://; {fix}")
    elif given:
        count = sum(int(given.get(name, "1")) for name in limits)
        yield Finding("ok", "serve", f"{count} processes and a supervisor on {os.cpu_count() or 1} cores")


def check_token_on_bus(bus: Engine, settings: Settings) -> Iterator[Finding]:
    """Check that the other gateways of the bus accept the token of this data folder."""
    from magent2.bus.log import run_sync
    from magent2.directory.keys import find_token
    from magent2.token import TokenFile

    if settings.token is not None:
        return  # such a token is not registered: every gateway has to be given it
    file = TokenFile.within(settings.data_dir)
    try:
        token = file.read()
    except Magent2Error:
        return  # reported by `check_token_file`
    if token is None:
        return
    key = run_sync(bus, find_token, token)
    if key is None:
        fix = "start a gateway with this data folder, run 'magent2 token rotate', or set MAGENT2_TOKEN to another token"
        yield Finding(
            "warn",
            "token",
            f"the bus does not know the token in {file.path}: gateways with another data folder refuse it; {fix}",
        )
    elif key.revoked_ms is not None:
        yield Finding(
            "warn",
            "token",
            f"the token in {file.path} is revoked on the bus (key {key.id}): gateways with"
            " another data folder refuse it; run 'magent2 token rotate'",
        )


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


def check_agents_file(config: Path | None) -> Iterator[Finding]:
    """Check the agents file that a server would use, and that its MCP servers can be used."""
    from magent2.cli.agents import check_file, probe_mcp

    if config is None:
        return
    report = check_file(config)
    for fault in report.faults:
        yield Finding("fail", "team", fault)
    if report.roster is None:
        return
    if not report.faults:
        yield Finding("ok", "team", f"{report.file}: {', '.join(report.roster.agent_names())}")
    for name, found in (probe_mcp(report.roster) if report.roster.mcp else {}).items():
        if isinstance(found, int):
            yield Finding("ok", "mcp", f"{name}: {found} {'tool' if found == 1 else 'tools'}")
        else:
            yield Finding("fail", "mcp", f"{name}: {found}")


def check_sdk_agents(config: Path | None, sdk_agents: Sequence[str]) -> Iterator[Finding]:
    """Check the SDK agents that a server would serve. Their modules are imported here, as it would."""
    from magent2.runner.select import roster_of_code
    from magent2.worker.team_choice import check_source

    try:
        paths = check_source(config, sdk_agents)
        if paths:
            names = roster_of_code(paths, Path.cwd()).agent_names()
            yield Finding("ok", "team", f"{', '.join(paths)}: {', '.join(names)}")
    except Magent2Error as error:
        yield Finding("fail", "team", str(error))


def check_models(config: Path | None, sdk_agents: Sequence[str] = ()) -> Iterator[Finding]:
    """Check the providers of the models that a server would use. Keys are named, never shown; no model is called.

    What is wrong with the models of an agents file is reported with its other faults.
    """
    from magent2.cli.agents import context_text, read_context_limits
    from magent2.errors import RosterError
    from magent2.runner.config import RunnerConfig
    from magent2.runner.select import can_call_models, catalogue_of
    from magent2.worker.team_choice import choose_agents

    try:
        roster = choose_agents((), None, config, sdk_agents=sdk_agents).registry.roster
        settings = RunnerConfig.read()
    except RosterError:
        return  # reported by `check_agents_file`
    except Magent2Error as error:
        if not sdk_agents:  # else reported by `check_sdk_agents`
            yield Finding("fail", "models", str(error))
        return
    if not can_call_models(settings, roster):
        yield Finding(
            "warn", "models", "OPENAI_API_KEY is not set; 'magent2 serve' uses the demo model, 'magent2 worker' echoes"
        )
        return
    for agent, targets in catalogue_of(settings, roster).team(roster, settings.model):
        for target in targets:
            if (fault := target.fault()) is None:
                yield Finding("ok", "models", f"{agent}: {target.describe()}")
            elif config is None:
                yield Finding("fail", "models", f"agent {agent!r}: {fault}")
    for limit in read_context_limits(roster).values():
        yield Finding("ok", "context", f"{limit.agent}: context_max {context_text(limit)}")
