"""The program `magent2`: the table of its commands, and how their errors are reported.

A command's module is imported when it runs or shows its help, so that light commands start quickly.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

import click

from magent2 import __version__
from magent2.cli.output import print_note
from magent2.errors import InvalidInput, Magent2Error, NotFound, RosterError, UnknownEntity

FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130
SHELLS = ("bash", "zsh", "fish")
COMPLETION_VARIABLE = "_MAGENT2_COMPLETE"

# Section → command → the place of its code, and its line in the list of commands.
SECTIONS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "Run": {
        "init": ("magent2.cli.agents:init", "Write an agents file (magent2.toml) and a tools file (tools.py)."),
        "serve": ("magent2.cli.serve:serve", "Run the gateway and a team of agents, in one or several processes."),
        "gateway": ("magent2.cli.serve:gateway", "Run the gateway without agents."),
        "worker": ("magent2.cli.serve:worker", "Run agents without a gateway."),
        "demo": ("magent2.cli.demo:demo", "Show a short conversation with the demo model."),
        "doctor": ("magent2.cli.doctor:doctor", "Check your setup and tell you what to fix."),
    },
    "Talk to agents": {
        "chat": ("magent2.cli.chat:chat", "Chat with an agent."),
        "send": ("magent2.cli.runs:send", "Send a message to an agent."),
        "python": ("magent2.cli.runs:python", "Run a Python file with an agent's tools."),
        "regenerate": ("magent2.cli.runs:regenerate", "Answer the last message of a conversation again."),
        "edit": (
            "magent2.cli.runs:edit",
            "Replace the last message of a conversation by another text, and answer that.",
        ),
        "steer": ("magent2.cli.runs:steer", "Send a message to agents while they are running."),
        "stop": ("magent2.cli.runs:stop", "Stop the run of a conversation."),
        "usage": ("magent2.cli.usage:usage", "Show what model calls have used and cost."),
        "budgets": ("magent2.cli.usage:budgets", "Show and set the limits of usage."),
        "approvals": ("magent2.cli.runs:approvals", "List the tool calls that need approval."),
        "approve": ("magent2.cli.runs:approve", "Approve a tool call."),
        "reject": ("magent2.cli.runs:reject", "Reject a tool call."),
    },
    "Conversations": {
        "conversations": (
            "magent2.cli.conversations:conversations",
            "List, show, export and delete conversations.",
        ),
        "tail": ("magent2.cli.conversations:tail", "Follow the events of a conversation."),
        "schedules": (
            "magent2.cli.schedules:schedules",
            "Send messages at a time, after a duration, or by a cron expression.",
        ),
        "replay": ("magent2.cli.conversations:replay", "Replay a recorded conversation."),
    },
    "Agents, users and connectors": {
        "agents": ("magent2.cli.agents:agents", "List agents, set their roles and check an agents file."),
        "users": ("magent2.cli.directory:users", "Manage the users that agents act for."),
        "friends": ("magent2.cli.directory:friends", "Manage which users may write to each other."),
        "swarms": ("magent2.cli.directory:swarms", "Manage agents that users can write to by a nametag."),
        "channels": ("magent2.cli.directory:channels", "Manage channels, in which agents of several users talk."),
        "connectors": ("magent2.cli.delivery:connectors", "Manage connectors, which deliver messages to users."),
        "outbox": ("magent2.cli.delivery:outbox", "Manage messages that go out through connectors."),
        "webhooks": ("magent2.cli.webhooks:webhooks", "Manage webhooks, which are told of the ends of runs."),
        "dead": ("magent2.cli.delivery:dead", "Manage dead letters: messages that no agent could answer."),
    },
    "Access and administration": {
        "token": ("magent2.cli.access:token", "Show or replace the token of the gateway."),
        "keys": ("magent2.cli.access:keys", "Create, list and revoke the API keys of a gateway."),
        "erase": ("magent2.cli.access:erase", "Erase a user: API keys, conversations and directory entries."),
        "backup": ("magent2.cli.transfer:backup", "Back up the log to a file."),
        "export": ("magent2.cli.transfer:export", "Export the log to a file that every kind of bus can import."),
        "import": ("magent2.cli.transfer:import_", "Import an exported log into an empty bus."),
        "sweep": ("magent2.cli.transfer:sweep", "Remove what the retention policy no longer keeps."),
        "bench": ("magent2.cli.bench:bench", "Measure a running server under load."),
        "completion": ("magent2.cli.main:completion", "Print the completion script of a shell."),
    },
}
COMMANDS = {name: entry for section in SECTIONS.values() for name, entry in section.items()}


class LazyGroup(click.Group):
    """A group that imports a command when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            # click's own error can suggest only commands that are imported.
            from difflib import get_close_matches

            close = get_close_matches(name, COMMANDS, n=1)
            ctx.fail(f"No such command '{name}'." + (f" Did you mean '{close[0]}'?" if close else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # One width for the names of all sections, so that the descriptions stand in one column.
        width = max(map(len, COMMANDS))
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), sentence) for name, (_, sentence) in commands.items()])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="To begin, run 'magent2 demo', or 'magent2 serve' and in another terminal 'magent2 chat'.",
)
@click.version_option(__version__, prog_name="magent2")
def cli() -> None:
    """Run a team of LLM agents as a service and talk to it."""


@click.command(
    epilog="bash and zsh: add 'eval \"$(magent2 completion bash)\"' to ~/.bashrc, or the same with zsh to ~/.zshrc."
    " fish: magent2 completion fish > ~/.config/fish/completions/magent2.fish"
)
@click.argument("shell", metavar="SHELL", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    SHELL is bash, zsh or fish.
    """
    from click.shell_completion import get_completion_class

    completion_class = get_completion_class(shell)
    if completion_class is None:
        raise click.ClickException(f"click has no completion for {shell}; use one of {', '.join(SHELLS)}")
    script = completion_class(context.find_root().command, {}, "magent2", COMPLETION_VARIABLE)
    click.echo(script.source_template % script.source_vars())


def main() -> None:
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str], command: click.Command = cli, program: str = "magent2") -> int:
    """Run a command and return its exit code. Every expected error becomes one line on stderr, others a traceback.

    `program` is what the user typed to start it, for its help.
    """
    settings = {} if command is cli else dict(cli.context_settings)
    try:
        outcome = command.main(list(arguments), prog_name=program, standalone_mode=False, **settings)
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001  a bug is reported as Python does it, but for control characters
        return _report_error(error, arguments[0] if arguments else "")
    return outcome if isinstance(outcome, int) else 0


def _report_error(error: Exception, command: str) -> int:
    """Print an error and return the exit code: one line if it was expected, a traceback if it is a bug."""
    if isinstance(error, click.ClickException):
        return _report_click_error(error)
    if isinstance(error, Magent2Error):
        return _report(text_of_error(error, command), exit_code_of(error))
    if isinstance(error, OSError):
        if error.errno != errno.EPIPE:
            where = "" if error.filename is None else f"{error.filename}: "
            return _report(f"{where}{error.strerror or error}; check path and permissions", FAILED)
        # The reader of our output, such as `head`, has gone. Python flushes stdout once more at exit, which would
        # fail again with a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    from traceback import format_exception

    print_note("".join(format_exception(error)).rstrip())  # its message may contain text of a guest
    return FAILED


def exit_code_of(error: Magent2Error) -> int:
    return BAD_INPUT if isinstance(error, InvalidInput) else FAILED


def text_of_error(error: Magent2Error, command: str) -> str:
    """The text of an error. Where only the command line knows the next step, that is added."""
    text = str(error)
    if isinstance(error, NotFound) and error.code in ("unknown_session", "unknown_conversation"):
        return f"{text.partition(';')[0]}; 'magent2 conversations ls' lists those that exist"
    if isinstance(error, UnknownEntity) and ";" not in text:
        return f"{text}; 'magent2 {command} ls' lists those that exist"
    if isinstance(error, RosterError) and Path(error.where).is_file():
        return f"{text}; fix the file, then check it with 'magent2 agents check {error.where}'"
    if isinstance(error, RosterError) and error.where.endswith(".toml"):
        return f"{text}; 'magent2 init' writes an example"
    return text


def _report_click_error(error: click.ClickException) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):  # a group without a command: its message is the help
        error.show()
        return BAD_INPUT
    if isinstance(error, click.UsageError):
        hint = "" if error.ctx is None else f" (see '{error.ctx.command_path} --help')"
        return _report(error.format_message() + hint, BAD_INPUT)
    return _report(error.format_message(), error.exit_code)


def _report(text: str, code: int) -> int:
    print_note(f"magent2: {' '.join(text.split())}")
    return code
