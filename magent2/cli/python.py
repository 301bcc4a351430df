"""`python`: a block that a person wrote, with an agent's tools."""

from __future__ import annotations

from pathlib import Path

import click

from magent2.cli.options import Door, gateway_options, json_option
from magent2.cli.printing import note, safe, say, say_json

TOOL = "run_python"
FILE_MAX_BYTES = 64 << 10  # what a sandbox takes


@click.command(epilog="Example: magent2 python report.py --agent general")
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path))
@click.option("--agent", required=True, help="Whose tools the code has as functions; run_python must be among them.")
@click.option("-c", "--conversation", "conversation_id", metavar="ID", help="Which conversation; else a new one.")
@click.option("--timeout", "timeout_s", type=click.FloatRange(min=0.0), metavar="SECONDS", help="How long to wait.")
@json_option
@gateway_options
@click.pass_context
def python(
    context: click.Context,
    file: Path,
    agent: str,
    conversation_id: str | None,
    timeout_s: float | None,
    as_json: bool,
    door: Door,
) -> None:
    """Run a file of Python with an agent's tools.

    They are its functions. Messages that it sends leave if it ends well; else none does, and the exit code is 1. FILE
    '-' is read from stdin.
    """
    code = _read(file)
    with door.open() as client:
        session = client.create_session(conversation_id, agent)
        if not as_json:
            note(f"conversation {session}")
        done = client.run_tool(session, TOOL, {"code": code}, timeout_s=timeout_s)
    if as_json:
        say_json(done)
    else:
        say(safe(done.result))
    if done.error is not None:
        context.exit(1)


def _read(file: Path) -> str:
    try:
        with click.open_file(str(file), "rb") as opened:
            data = opened.read(FILE_MAX_BYTES + 1)
    except OSError as error:
        raise click.UsageError(f"{file} cannot be read: {error.strerror}") from None
    if len(data) > FILE_MAX_BYTES:
        raise click.UsageError(f"{file} has more than {FILE_MAX_BYTES} bytes")
    try:
        return bytes(data).decode()
    except UnicodeDecodeError:
        raise click.UsageError(f"{file} is not UTF-8 text") from None
