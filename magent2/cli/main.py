"""`magent2`: the commands, and what becomes of their errors.

A command's module is imported when it is run or asked for help, so that light commands start quickly.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module

import click

from magent2 import __version__
from magent2.errors import InvalidInput, Magent2Error

FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130

# Name → where the command is, and the sentence that the list of commands shows.
COMMANDS: Mapping[str, tuple[str, str]] = {
    "init": ("magent2.cli.init:init", "Write a file of agents, magent2.toml, and a file of tools, tools.py."),
    "serve": ("magent2.cli.serve:serve", "Run the gateway and a team of agents in one process."),
    "gateway": ("magent2.cli.serve:gateway", "Run the gateway alone."),
    "worker": ("magent2.cli.worker:worker", "Answer the mail of agents."),
    "demo": ("magent2.cli.demo:demo", "Show a short conversation with the demo model."),
    "send": ("magent2.cli.send:send", "Send a message to an agent."),
    "python": ("magent2.cli.python:python", "Run a file of Python with an agent's tools."),
    "chat": ("magent2.cli.chat:chat", "Talk to an agent."),
    "tail": ("magent2.cli.tail:tail", "Show the events of a conversation as they come."),
    "replay": ("magent2.cli.tail:replay", "Play a recorded conversation again."),
    "steer": ("magent2.cli.steer:steer", "Say something to an agent at work."),
    "approvals": ("magent2.cli.approvals:approvals", "List the calls that wait for a person."),
    "approve": ("magent2.cli.approvals:approve", "Let a call be made that waits for approval."),
    "reject": ("magent2.cli.approvals:reject", "Refuse a call that waits for approval."),
    "stop": ("magent2.cli.send:stop", "Stop the run of a conversation."),
    "conversations": ("magent2.cli.conversations:conversations", "List, show, export and delete conversations."),
    "agents": ("magent2.cli.agents:agents", "See which agents there are, and check a file of them."),
    "dead": ("magent2.cli.dead:dead", "Look after messages that nobody could answer."),
    "users": ("magent2.cli.people:users", "People with a nametag, whom agents work for."),
    "friends": ("magent2.cli.people:friends", "Who may write to whom: both must have agreed."),
    "swarms": ("magent2.cli.people:swarms", "Agents that others can write to by a nametag."),
    "channels": ("magent2.cli.channels:channels", "Where agents of several users talk."),
    "connectors": ("magent2.cli.outside:connectors", "Places where users are reached."),
    "outbox": ("magent2.cli.outside:outbox", "Messages to places outside, and what became of them."),
    "erase": ("magent2.cli.erase:erase", "Erase a user: keys, conversations, and what the directory knows of them."),
    "backup": ("magent2.cli.transfer:backup", "Copy the log to a file to go back to."),
    "export": ("magent2.cli.transfer:export", "Write the log to a file that any engine can import."),
    "import": ("magent2.cli.transfer:import_", "Load an export into an empty log."),
    "doctor": ("magent2.cli.doctor:doctor", "Check the set-up and say what to mend."),
    "keys": ("magent2.cli.keys:keys", "Make, list and revoke the API keys of a gateway."),
    "token": ("magent2.cli.token:token", "Show or replace the gateway's token."),
    "bench": ("magent2.cli.bench:bench", "Measure a running server."),
    "completion": ("magent2.cli.completion:completion", "Print the completion script for a shell."),
}


class Commands(click.Group):
    """A group that finds its commands when they are needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, sentence) for name, (_, sentence) in COMMANDS.items()])


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Begin with 'magent2 demo', or with 'magent2 serve' and 'magent2 chat' in another terminal.",
)
@click.version_option(__version__, prog_name="magent2")
def cli() -> None:
    """Run a team of LLM agents as a service, and talk to it."""


def main() -> None:
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run a command; the exit code. Whatever can be expected to go wrong is one line on stderr."""
    try:
        outcome = cli.main(list(arguments), prog_name="magent2", standalone_mode=False)
    except click.ClickException as error:
        return complain(_told(error), BAD_INPUT if isinstance(error, click.UsageError) else error.exit_code)
    except Magent2Error as error:
        return complain(str(error), BAD_INPUT if isinstance(error, InvalidInput) else FAILED)
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except OSError as error:
        if error.errno != errno.EPIPE:
            raise
        _silence_stdout()
        return FAILED
    return outcome if isinstance(outcome, int) else 0


def complain(text: str, code: int) -> int:
    click.echo(f"magent2: {' '.join(text.split())}", err=True)
    return code


def _told(error: click.ClickException) -> str:
    context = error.ctx if isinstance(error, click.UsageError) else None
    hint = f" ('{context.command_path} --help' shows how)" if context is not None else ""
    return error.format_message() + hint


def _silence_stdout() -> None:
    """Whoever read the output has left; nothing more can be said there, not even at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
