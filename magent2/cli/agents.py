"""The commands `init` and `agents`: the agents file, the agents that are served, and their roles."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import click

from magent2.cli.options import (
    CommandFailed,
    GatewayOptions,
    bus_option,
    gateway_options,
    json_option,
    run_on_bus,
)
from magent2.cli.output import print_data, print_json, print_note, print_table
from magent2.terminal import clean_line

if TYPE_CHECKING:
    from magent2.roster.spec import Roster
    from magent2.runner.context_limits import ContextLimit

STARTER_FILES = {"magent2.toml": "magent2.toml", "tools.py": "tools.py.txt"}  # file to write → its template
IMPORT_MAX_S = 30.0
IMPORT_ATTRIBUTE = """
import sys
from pathlib import Path
from magent2.import_path import import_attribute
import_attribute(sys.argv[2], Path.cwd())
"""
IMPORT_AGENTS = """
import sys
from pathlib import Path
from magent2.runner.team.sdk_agents import import_agents
import_agents(sys.argv[2], Path.cwd())
"""
IMPORT_TOOL = """
import sys
from pathlib import Path
from magent2.tools.registry import load_tool
load_tool(sys.argv[1], sys.argv[2], Path.cwd())
"""
IMPORT_GUARDRAIL = """
import sys
from pathlib import Path
from magent2.import_path import import_attribute
found = import_attribute(sys.argv[2], Path.cwd())
if not callable(found) and not hasattr(found, "guardrail_function"):
    raise TypeError(f"is a {type(found).__name__}, not a function")
"""


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=".")
@click.option("--force", is_flag=True, help="Overwrite existing files.")
def init(folder: Path, force: bool) -> None:
    """Write an agents file (magent2.toml) and a tools file (tools.py).

    FOLDER is where to write them. Default: the current folder.
    """
    for path in write_starter_files(folder, force=force):
        print_data(str(path))
    file = folder / "magent2.toml"
    print_note(f"next: 'magent2 agents check {file}', then 'magent2 serve --config {file}'")


def write_starter_files(folder: Path, *, force: bool = False) -> list[Path]:
    """Write both files. Without `force` neither is written when one of them exists."""
    paths = [folder / name for name in STARTER_FILES]
    existing = [str(path) for path in paths if path.exists()]
    if existing and not force:
        verb = "exists" if len(existing) == 1 else "exist"
        raise CommandFailed(f"{' and '.join(existing)} already {verb}; use --force to overwrite")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in paths:
            with path.open("w" if force else "x") as file:
                file.write(starter_text(path.name))
    except OSError as error:
        raise CommandFailed(f"cannot write {error.filename}: {error.strerror}; choose another folder") from error
    return paths


def starter_text(name: str) -> str:
    return (files("magent2.roster") / "starter" / STARTER_FILES[name]).read_text()


@click.group()
def agents() -> None:
    """List agents, set their roles and check an agents file."""


@agents.command("ls")
@json_option
@gateway_options
def list_(as_json: bool, gateway: GatewayOptions) -> None:
    """List agents, the workers that serve them and the messages that wait for them."""
    with gateway.connect() as client:
        found = client.agents()
    if as_json:
        print_json(found)
        return
    rows = [
        (
            agent.name,
            "alive" if agent.alive else "no worker",
            len(agent.workers),
            agent.pending,
            " ".join(f"{name}:{count}" for name, count in agent.lanes if count) or "-",
        )
        for agent in found
    ]
    print_table(("AGENT", "STATE", "WORKERS", "PENDING", "LANES"), rows)


@agents.command(epilog="Example: magent2 agents place digger --role sub --parent research")
@click.argument("agent")
@click.option(
    "--role", type=click.Choice(["foreground", "background", "sub"]), required=True, help="Role of the agent."
)
@click.option("--parent", metavar="AGENT", help="For role 'sub': agent that its messages go to by default.")
@bus_option
@json_option
def place(agent: str, role: str, parent: str | None, bus: str | None, as_json: bool) -> None:
    """Set the role of an agent for the messaging tools.

    This command opens the bus itself and needs no gateway.
    """
    from magent2.directory.agents import set_agent_role

    placed = run_on_bus(bus, set_agent_role, agent, role, parent)
    if as_json:
        print_json({"name": placed.name, "role": placed.role, "parent": placed.parent})
    else:
        print_note(f"{placed.name} has the role {placed.role}" + (f" of {placed.parent}" if placed.parent else ""))


@agents.command()
@click.argument("agent")
@bus_option
def retire(agent: str, bus: str | None) -> None:
    """Remove the role of an agent, so that messaging tools no longer send to it.

    'magent2 agents place' sets a role again. This command opens the bus itself and needs no gateway.
    """
    from magent2.directory.agents import remove_agent

    run_on_bus(bus, remove_agent, agent)
    print_note(f"messaging tools no longer send to {agent}")


@dataclass(frozen=True, slots=True)
class AgentsFileReport:
    """The errors of an agents file, and its roster if it could be read."""

    file: str
    faults: tuple[str, ...]
    roster: Roster | None = None


@agents.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--no-import", is_flag=True, help="Do not import the modules of tools, guardrails and SDK agents.")
@click.option("--connect", is_flag=True, help="Start or connect to the MCP servers of the file.")
@json_option
def check(file: Path, no_import: bool, connect: bool, as_json: bool) -> int:
    """Check an agents file and list every error.

    The exit code is 1 when there is an error. The modules of tools, guardrails and SDK agents are imported, each in a
    process of its own. Models are not called; a missing key or package is an error.
    """
    report = check_file(file, import_tools=not no_import, connect=connect)
    if as_json:
        names = list(report.roster.agent_names()) if report.roster else []
        contexts = list(read_context_limits(report.roster).values()) if report.roster and not report.faults else []
        shown = {"ok": not report.faults, "file": report.file, "faults": report.faults, "agents": names}
        print_json({**shown, "contexts": contexts})
    else:
        _print_report(report)
    return 1 if report.faults else 0


def check_file(
    path: Path, *, import_tools: bool = True, connect: bool = False, environ: Mapping[str, str] | None = None
) -> AgentsFileReport:
    """Read an agents file as a server does. `${NAME}` in it is taken from the environment."""
    from magent2.errors import RosterError
    from magent2.roster.agents_file import load_agents_file
    from magent2.runner.select import describe_agents
    from magent2.tools.default_tools import known_tools

    variables = os.environ if environ is None else environ
    try:
        roster = load_agents_file(path, known_tools(), variables).roster
        faults = _import_faults(roster, path.absolute().parent) if import_tools else ()
        if import_tools and not faults:
            # Every module can be imported, so it does no harm here, where what their code says is checked.
            roster = load_agents_file(path, known_tools(), variables, describe_agents).roster
    except RosterError as error:
        return AgentsFileReport(str(path), error.faults)
    faults += _model_faults(roster, variables)
    if connect and roster.mcp:
        faults += tuple(
            f"mcp.{name}: {found}" for name, found in probe_mcp(roster).items() if not isinstance(found, int)
        )
    return AgentsFileReport(str(path), faults, roster)


def _import_faults(roster: Roster, folder: Path) -> tuple[str, ...]:
    """Import the tools and the guardrails of a roster; the errors, each with what could not be imported."""
    found = [(f"tools.{name}", IMPORT_TOOL, name, place) for name, place in roster.tools.items()]
    agents = {agent.name: agent for part in roster.scenarios.values() for agent in part.agents.values()}.values()
    for agent in agents:
        for key in ("input_guardrails", "output_guardrails"):
            paths: tuple[str, ...] = getattr(agent, key)
            found += [(f"agent {agent.name!r}: {key}", IMPORT_GUARDRAIL, key, place) for place in paths]
        if agent.agent is not None:
            found.append((f"agent {agent.name!r}: agent", IMPORT_AGENTS, "agent", agent.agent))
        if isinstance(agent.output_schema, str):
            what = f"agent {agent.name!r}: output_schema"
            found.append((what, IMPORT_ATTRIBUTE, "output_schema", agent.output_schema))
    errors = [(what, place, _import_error(code, name, place, folder)) for what, code, name, place in found]
    return tuple(f"{what}: {place!r}: {error}" for what, place, error in errors if error is not None)


def _model_faults(roster: Roster, environ: Mapping[str, str]) -> tuple[str, ...]:
    """What the models of a roster lack. A team that names no provider runs without a key, on the demo model."""
    from magent2.runner.config import RunnerConfig
    from magent2.runner.providers.catalogue import check_models
    from magent2.runner.select import can_call_models, catalogue_of

    config = RunnerConfig.read(environ)
    if not can_call_models(config, roster):
        return ()
    return tuple(check_models(catalogue_of(config, roster), roster, config.model))


def read_context_limits(roster: Roster, environ: Mapping[str, str] | None = None) -> dict[str, ContextLimit]:
    """The `context_max` of each agent as a worker with this environment has it, by agent."""
    from magent2.runner.config import RunnerConfig
    from magent2.runner.context_limits import context_limits
    from magent2.runner.select import catalogue_of

    config = RunnerConfig.read(os.environ if environ is None else environ)
    return {limit.agent: limit for limit in context_limits(roster, config, catalogue_of(config, roster))}


def context_text(limit: ContextLimit) -> str:
    """A limit and where it comes from, in words."""
    return f"{limit.context_max or 'not known'} ({limit.source})"


def probe_mcp(roster: Roster) -> Mapping[str, object]:
    """Connect to the MCP servers of a roster: the number of tools of each, or the error."""
    import asyncio
    import logging

    from magent2.tools import mcp

    logger = logging.getLogger(mcp.__name__)
    logger.disabled = True  # the caller prints the same errors
    try:
        return asyncio.run(mcp.probe_servers(roster.mcp))
    finally:
        logger.disabled = False


def _import_error(code: str, name: str, place: str, folder: Path) -> str | None:
    """Run code that imports something of the team in a process of its own, which a broken module may end or block.

    Return the error, if there is one.
    """
    try:
        done = subprocess.run(  # noqa: S603  the owner of the file asks for it
            [sys.executable, "-c", code, name, place],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=IMPORT_MAX_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"the import takes more than {IMPORT_MAX_S:g} s"
    if done.returncode == 0:
        return None
    return next(reversed(done.stderr.strip().splitlines()), f"the import ended with exit code {done.returncode}")


def _print_report(report: AgentsFileReport) -> None:
    for fault in report.faults:
        print_data(clean_line(fault))
    if report.faults:
        count = len(report.faults)
        print_note(f"{report.file}: {count} {'error' if count == 1 else 'errors'}")
    elif report.roster is not None:
        contexts = read_context_limits(report.roster)
        rows = [
            (
                scenario.id,
                agent.name,
                {scenario.root: "root", scenario.supervisor: "supervisor"}.get(agent.name, "-"),
                " ".join(agent.model_names) or "default",
                " ".join(agent.tools) or "-",
                context_text(contexts[agent.name]),
            )
            for scenario in report.roster.scenarios.values()
            for agent in scenario.agents.values()
        ]
        print_table(("SCENARIO", "AGENT", "PART", "MODELS", "TOOLS", "CONTEXT_MAX"), rows)
        print_note(f"{report.file}: no errors")
