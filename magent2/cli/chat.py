"""The command `chat`: a conversation with an agent, at a terminal or through a pipe."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from magent2.cli.event_display import (
    APPROVAL_ARGUMENTS_MAX_CHARS,
    EventDisplay,
    MarkdownDisplay,
    PlainDisplay,
    call_text,
)
from magent2.cli.options import GatewayOptions, default_agent, file_option, gateway_options
from magent2.cli.output import print_note

if TYPE_CHECKING:
    from magent2.client import Client, ConversationEvent, Decision, SentMessage

RETRY_FOR_S = 30.0  # a chat survives a restart of the gateway
HELP = (
    "/file PATH attaches a file to the next message, /stop stops the run, /new starts a new conversation, /quit exits;"
    " Ctrl-C stops the run, at the prompt it exits"
)


@click.command(epilog="Ctrl-C stops the agent while it writes; press it again to exit. /help lists the commands.")
@click.argument("agent", required=False)
@click.option("-c", "--continue", "latest", is_flag=True, help="Continue the latest conversation.")
@click.option("-r", "--resume", "conversation_id", metavar="ID", help="Continue this conversation.")
@file_option
@gateway_options
def chat(
    agent: str | None, latest: bool, conversation_id: str | None, files: tuple[Path, ...], gateway: GatewayOptions
) -> None:
    """Chat with an agent.

    AGENT is the name of the agent. Default: AGENT_NAME, else 'general'.
    """
    if latest and conversation_id is not None:
        raise click.UsageError("-c and -r both choose a conversation; use one of them")
    # This client gives up soon, so that a wrong URL, token or conversation is reported before the first prompt.
    with gateway.connect() as client:
        chosen = conversation_id
        if latest:
            page = client.conversations(limit=1)
            if not page.conversations:
                raise click.UsageError("there is no conversation to continue; leave out -c to start one")
            chosen = page.conversations[0].conversation_id
        if chosen is not None:
            client.conversation(chosen)
        else:
            client.agents()
    with gateway.connect(RETRY_FOR_S) as client:
        Chat(client, agent, chosen, files).run()


class QuitChat(Exception):
    """The user has ended the chat."""


class Chat:
    """Reads lines, sends them and shows the answers, until the user quits."""

    def __init__(
        self, client: Client, agent: str | None, conversation_id: str | None, files: Sequence[Path] = ()
    ) -> None:
        """`files` are attached to the first message."""
        self._client = client
        self._agent = agent
        self._conversation_id = conversation_id
        self._files = list(files)
        self._at_terminal = sys.stdin.isatty() and sys.stdout.isatty()

    def run(self) -> None:
        where = f" in {self._conversation_id}" if self._conversation_id else ""
        print_note(f"chatting with {self._agent or default_agent()}{where}; /help lists the commands")
        if self._at_terminal:
            import readline  # noqa: F401  gives `input` line editing and a history
        try:
            while True:
                self._handle(self._read_line().strip())
        except (QuitChat, EOFError, KeyboardInterrupt):
            if self._conversation_id is not None:
                print_note(f"\nto continue, run 'magent2 chat -r {self._conversation_id}'")

    def _read_line(self) -> str:
        if self._at_terminal:
            return input("> ")
        line = sys.stdin.readline()
        if not line:
            raise QuitChat
        return line

    def _handle(self, text: str) -> None:
        if not text:
            return
        if not text.startswith("/"):
            self._send(text)
        elif text.startswith("/file "):
            self._attach(Path(text.removeprefix("/file ").strip()).expanduser())
        elif text == "/quit":
            raise QuitChat
        elif text == "/new":
            self._conversation_id = None
            print_note("the next message starts a new conversation")
        elif text == "/stop":
            self._stop(only_if_running=True)
        else:
            print_note(HELP if text == "/help" else f"unknown command {text.split(maxsplit=1)[0]}; {HELP}")

    def _attach(self, path: Path) -> None:
        if not path.is_file():
            print_note(f"magent2: there is no file {path}")
            return
        self._files.append(path)
        print_note(f"{path.name} will be attached to the next message")

    def _send(self, text: str) -> None:
        from magent2.errors import Magent2Error

        recipient = self._agent or default_agent()
        if self._agent is None and self._conversation_id is not None:
            recipient = f"chat:{self._conversation_id}"  # the agent that is active there, also after a handoff
        try:
            sent = self._client.send(recipient, text, conversation_id=self._conversation_id, files=self._files)
            self._files.clear()
            self._conversation_id = sent.conversation_id
            if sent.notice:
                print_note(f"note: {sent.notice}")
            self._show_answer(sent)
        except Magent2Error as error:  # the chat goes on after a failed run
            print_note(f"magent2: {error}")

    def _show_answer(self, sent: SentMessage) -> None:
        """Show the answer. The first Ctrl-C stops the run and its end is shown; the second ends the chat."""
        shown_seq = sent.seq
        stopping = False
        while True:
            display: EventDisplay = MarkdownDisplay() if self._at_terminal else PlainDisplay()
            try:
                with closing(self._client.replies(sent)) as events:
                    for event in events:
                        if event.seq > shown_seq:  # after Ctrl-C the stream is read again from its beginning
                            display.show(event)
                            shown_seq = event.seq
                            self._ask_for_approval(event)
                return
            except KeyboardInterrupt:
                if stopping:
                    raise
                stopping = True
            finally:
                display.close()
            self._stop()

    def _ask_for_approval(self, event: ConversationEvent) -> None:
        """Ask for the decision on a tool call that waits. Through a pipe, the line that shows it names the commands."""
        from magent2.errors import Conflict, NotFound

        if not self._at_terminal or self._conversation_id is None:
            return
        if event.kind != "approval" or event.data.get("status") != "requested":
            return
        found = self._client.approvals(self._conversation_id)
        pending = (one for one in found if one.status == "pending" and one.call_id == event.data.get("tool_call_id"))
        if (call := next(pending, None)) is None:  # decided elsewhere
            return
        if call.args != event.data.get("args"):  # the event has them shortened
            print_note(call_text(call.tool, call.args, APPROVAL_ARGUMENTS_MAX_CHARS))
        try:
            answer = ""
            while answer not in ("y", "n"):
                answer = input("Approve? [y/n] ").strip().lower()
        except EOFError:
            print_note("not decided; the run waits")
            return
        decision: Decision = "approve" if answer == "y" else "reject"
        try:
            self._client.decide(self._conversation_id, call.call_id, decision)
        except (Conflict, NotFound) as error:  # decided elsewhere, or the run was stopped; its events say so
            print_note(f"magent2: {error}")

    def _stop(self, *, only_if_running: bool = False) -> None:
        from magent2.errors import Magent2Error

        if self._conversation_id is None:
            print_note("there is no run to stop")
            return
        try:
            if only_if_running and self._client.conversation(self._conversation_id).run_status != "running":
                print_note("there is no run to stop")
                return
            print_note(f"asked {self._client.stop(self._conversation_id).agent} to stop")
        except Magent2Error as error:
            print_note(f"magent2: {error}")
