"""`completion`: the script that makes a shell complete commands and options."""

from __future__ import annotations

import click

from magent2.cli.options import Failure
from magent2.cli.printing import say

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_MAGENT2_COMPLETE"


@click.command(
    epilog="Put 'eval \"$(magent2 completion bash)\"' into ~/.bashrc (zsh: ~/.zshrc);"
    " fish: magent2 completion fish > ~/.config/fish/completions/magent2.fish"
)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script for a shell."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    if kind is None:
        raise Failure(f"there is no completion for {shell}")
    maker = kind(context.find_root().command, {}, "magent2", VARIABLE)
    say(maker.source_template % maker.source_vars())
