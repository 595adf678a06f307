"""A group of commands that is a table: the code of a command is loaded when it is called."""

import gc
import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem


class Entry(NamedTuple):  # not attrs, as everywhere else: its import costs more than all of `llmkube --version`
    """Where a command lives, below its group's package, and what the overview says about it."""

    target: str
    summary: str


class LazyGroup(click.Group):
    """A group that knows its commands by name and imports one only to run it."""

    def __init__(self, *args: Any, package: str, entries: Mapping[str, Entry], **kwargs: Any) -> None:
        """Make the group; `entries` are its commands below a package, in the order of the overview."""
        super().__init__(*args, **kwargs)
        self.package, self.entries = package, entries

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the overview."""
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command, or None if there is none of that name."""
        entry = self.entries.get(cmd_name)
        if entry is None:
            return None
        module, _, name = entry.target.partition(":")
        gc_enabled = gc.isenabled()
        gc.disable()  # what an import makes stays: to look through it again and again is a seventh of the start
        try:
            command = getattr(importlib.import_module(f"{self.package}.{module}"), name)
        finally:
            if gc_enabled:
                gc.enable()
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that is named, or say which one may have been meant."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as exc:
            import difflib  # noqa: PLC0415 - a mistake alone pays for it

            like = difflib.get_close_matches(args[0], self.entries, n=3, cutoff=0.6)
            if not like:
                raise
            hint = f"did you mean {' or '.join(like)}?"
            raise click.UsageError(f"there is no command {args[0]}; {hint}", ctx) from exc

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Offer the names from the table, without importing anything."""
        offered = [
            CompletionItem(name, help=entry.summary)
            for name, entry in self.entries.items()
            if name.startswith(incomplete)
        ]
        return offered or click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the overview from the table, without importing anything."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in self.entries.items()])
