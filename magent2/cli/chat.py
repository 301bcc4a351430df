"""`chat`: talk to an agent, at a terminal or through a pipe."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import TYPE_CHECKING, Protocol

import click

from magent2.cli.options import Door, default_agent, gateway_options
from magent2.cli.printing import note

if TYPE_CHECKING:
    from magent2.client import Client, ConversationEvent, SentMessage

PATIENCE_S = 30.0
HELP = "/stop stops the run, /new begins another conversation, /quit leaves; Ctrl-C stops a run, then leaves"


class Display(Protocol):
    """Shows the events of a run."""

    def show(self, event: ConversationEvent) -> None: ...

    def close(self) -> None: ...


@click.command(epilog="While the agent speaks, Ctrl-C stops it; a second one leaves. /help lists the commands.")
@click.argument("agent", required=False)
@click.option("-c", "--continue", "latest", is_flag=True, help="Go on with the latest conversation.")
@click.option("-r", "--resume", "conversation_id", metavar="ID", help="Go on with this conversation.")
@gateway_options
def chat(agent: str | None, latest: bool, conversation_id: str | None, door: Door) -> None:
    """Talk to an agent.

    AGENT is 'general' unless AGENT_NAME or an argument says otherwise.
    """
    if latest and conversation_id is not None:
        raise click.UsageError("-c and -r name two conversations; use one of them")
    with door.open() as quick:
        chosen = _latest(quick) if latest else conversation_id
        if chosen is not None:
            quick.conversation(chosen)
        else:
            quick.agents()
    with door.open(PATIENCE_S) as client:
        Chat(client, agent, chosen).run()


def _latest(client: Client) -> str:
    page = client.conversations(limit=1)
    if not page.conversations:
        raise click.UsageError("there is no conversation to go on with; leave out -c")
    return page.conversations[0].conversation_id


class Leave(Exception):
    """The person wants to go."""


class Chat:
    """One conversation after another, until the person leaves."""

    def __init__(self, client: Client, agent: str | None, conversation_id: str | None) -> None:
        self._client = client
        self._agent = agent
        self._conversation_id = conversation_id
        self._at_terminal = sys.stdin.isatty() and sys.stdout.isatty()

    def run(self) -> None:
        where = f" in {self._conversation_id}" if self._conversation_id else ""
        note(f"talking to {self._agent or default_agent()}{where}; /help lists the commands")
        if self._at_terminal:
            import readline  # noqa: F401  gives the prompt its line editing
        try:
            while True:
                self._take(self._read())
        except (Leave, EOFError, KeyboardInterrupt):
            if self._conversation_id is not None:
                note(f"\n'magent2 chat -r {self._conversation_id}' goes on from here")

    def _read(self) -> str:
        if self._at_terminal:
            return input("> ")
        line = sys.stdin.readline()
        if not line:
            raise Leave
        return line

    def _take(self, line: str) -> None:
        text = line.strip()
        if text.startswith("/"):
            self._command(text)
        elif text:
            self._say(text)

    def _command(self, text: str) -> None:
        if text == "/quit":
            raise Leave
        if text == "/new":
            self._conversation_id = None
            note("a new conversation begins with the next message")
        elif text == "/stop":
            self._stop()
        else:
            note(HELP if text == "/help" else f"there is no {text.split(maxsplit=1)[0]}; {HELP}")

    def _say(self, text: str) -> None:
        from magent2.errors import Magent2Error

        try:
            sent = self._client.send(self._recipient(), text, conversation_id=self._conversation_id)
            self._conversation_id = sent.conversation_id
            if sent.notice:
                note(f"note: {sent.notice}")
            self._listen(sent)
        except Magent2Error as error:  # the conversation goes on
            note(f"magent2: {error}")

    def _recipient(self) -> str:
        """An agent that was named; in a conversation under way whoever is active there."""
        if self._agent is None and self._conversation_id is not None:
            return f"chat:{self._conversation_id}"
        return self._agent or default_agent()

    def _listen(self, sent: SentMessage) -> None:
        """Show the answer. The first Ctrl-C stops the run, and its end is waited for; the second leaves."""
        seen = sent.seq
        stopping = False
        while True:
            display = self._display()
            try:
                with closing(self._client.replies(sent)) as events:
                    for event in events:
                        if event.seq > seen:
                            display.show(event)
                            seen = event.seq
                return
            except KeyboardInterrupt:
                if stopping:
                    raise
                stopping = True
            finally:
                display.close()
            self._stop()

    def _stop(self) -> None:
        from magent2.errors import Magent2Error

        if self._conversation_id is None:
            note("nothing runs")
            return
        try:
            note(f"told {self._client.stop(self._conversation_id).agent} to stop")
        except Magent2Error as error:
            note(f"magent2: {error}")

    def _display(self) -> Display:
        if self._at_terminal:
            from magent2.cli.markdown import MarkdownScreen

            return MarkdownScreen()
        from magent2.cli.screen import Screen

        return Screen()
