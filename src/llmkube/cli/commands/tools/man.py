"""`llmkube man`: write a manual page for each command, made from its `--help`; `make dist` packages them.

`llmkube completion`: print the shell's completion script, which runs the program to complete names of objects.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from llmkube import __version__
from llmkube.programs.options import HELP, command

_PROGRAM = "llmkube"
_VARIABLE = "_LLMKUBE_COMPLETE"
_SHELLS = ("bash", "zsh", "fish")


@command("man")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.pass_context
def man(context: click.Context, /, *, folder: Path) -> None:
    """Write a manual page for each command into FOLDER; show one with `man -l FOLDER/llmkube-deploy.1`."""
    folder.mkdir(parents=True, exist_ok=True)
    written = 0
    for name, text in pages(context.find_root().command, "llmkube"):
        (folder / f"{name}.1").write_text(text, encoding="utf-8")
        written += 1
    click.echo(f"{written} pages written to {folder}")


def pages(command: click.Command, path: str, parent: click.Context | None = None) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of the page of a command, and of each of its subcommands."""
    context = click.Context(command, info_name=path.rpartition(" ")[2], parent=parent)
    group = command if isinstance(command, click.Group) else click.Group()
    names = group.list_commands(context)
    below = [(f"{path} {name}", found) for name in names if (found := group.get_command(context, name))]
    yield path.replace(" ", "-"), page(command, context, path, below)
    for name, each in below:
        yield from pages(each, name, context)


def page(command: click.Command, context: click.Context, path: str, below: list[tuple[str, click.Command]]) -> str:
    """Return a page in man(7) macros."""
    title = path.replace(" ", "-")
    help_text = (command.help or command.short_help or "").split("\f")[0].strip()
    first, _, rest = help_text.partition("\n")
    lines = [
        f'.TH "{title.upper()}" "1" "" "llmkube {__version__}" "LLMKube"',
        ".SH NAME",
        f"{_text(title)} \\- {_text(first.rstrip('.'))}",
        ".SH SYNOPSIS",
        f".B {_text(path)}",
        _text(" ".join(command.collect_usage_pieces(context))),
        ".SH DESCRIPTION",
        *_paragraphs(f"{first}\n{rest}"),
    ]
    records = [record for param in command.get_params(context) if (record := param.get_help_record(context))]
    if records:
        lines.append(".SH OPTIONS")
        for flags, text in records:
            lines += [".TP", f".B {_text(flags)}", _text(text)]
    if below:
        lines.append(".SH COMMANDS")
        for name, each in below:
            lines += [".TP", f".BR {_text(name.replace(' ', '-'))} (1)", _text(each.get_short_help_str(200))]
    lines += [".SH EXIT STATUS", "0 done, 1 failed, 2 wrong usage, 3 not found, 4 timed out, 130 Ctrl\\-C."]
    return "\n".join(lines) + "\n"


def _paragraphs(text: str) -> Iterator[str]:
    for number, paragraph in enumerate(re.split(r"\n\s*\n", text.strip())):
        if number:
            yield ".PP"
        verbatim = paragraph.lstrip().startswith("\b")
        if verbatim:
            yield from (".nf", *(_text(line.strip()) for line in paragraph.split("\n")[1:]), ".fi")
        else:
            yield _text(" ".join(paragraph.split()))


def _text(text: str) -> str:
    """Escape a text for roff."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("\b", "")
    return f"\\&{escaped}" if escaped[:1] in {".", "'"} else escaped


@click.command("completion", context_settings=HELP)
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a shell script that completes commands, flags and names of objects.

    \b
      bash   source <(llmkube completion bash)                   in ~/.bashrc; bash 4.4 or later
      zsh    source <(llmkube completion zsh)                    in ~/.zshrc, after compinit
      fish   llmkube completion fish > ~/.config/fish/completions/llmkube.fish
    """  # noqa: D301 - after this character, click does not rewrap the lines
    found = get_completion_class(shell)
    assert found is not None, "click knows all three"
    click.echo(found(ctx.find_root().command, {}, _PROGRAM, _VARIABLE).source())
