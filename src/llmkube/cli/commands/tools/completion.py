"""`llmkube completion`: a script for the shell; it calls the program back for names that exist now."""

import click
from click.shell_completion import get_completion_class

from llmkube.programs.options import HELP

_PROGRAM = "llmkube"
_VARIABLE = "_LLMKUBE_COMPLETE"
_SHELLS = ("bash", "zsh", "fish")


@click.command("completion", context_settings=HELP)
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that completes commands, flags and the names of live objects.

    \b
      bash   source <(llmkube completion bash)                   in ~/.bashrc; bash 4.4 or later
      zsh    source <(llmkube completion zsh)                    in ~/.zshrc, after compinit
      fish   llmkube completion fish > ~/.config/fish/completions/llmkube.fish
    """  # noqa: D301 - click reads the character, and leaves the lines after it alone
    found = get_completion_class(shell)
    assert found is not None, "click knows all three"
    click.echo(found(ctx.find_root().command, {}, _PROGRAM, _VARIABLE).source())
