"""A click group that imports a command when it is called."""

import gc
import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem


class Entry(NamedTuple):  # not attrs, as everywhere else: its import costs more than all of `llmkube --version`
    """A command of a group: `module:name` below the group's package, and its line in the overview."""

    target: str
    summary: str


class LazyGroup(click.Group):
    """A group that imports a command only to run it."""

    def __init__(
        self,
        *args: Any,
        package: str,
        entries: Mapping[str, Entry],
        aliases: Mapping[str, str] | None = None,
        other_words: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        """Create the group.

        Args:
            *args: Arguments of `click.Group`.
            package: Package of the commands.
            entries: The commands below it, in the order of the overview.
            aliases: Other names of commands.
            other_words: Words for which commands are suggested.
            **kwargs: Keyword arguments of `click.Group`.
        """
        super().__init__(*args, **kwargs)
        self.package, self.entries = package, entries
        self.aliases, self.other_words = aliases or {}, other_words or {}

    @property
    def alias_summaries(self) -> dict[str, str]:
        """The line of each alias in the overview."""
        return {alias: f"The same as `{name}`." for alias, name in self.aliases.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the overview."""
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command, or None if there is none of that name."""
        entry = self.entries.get(self.aliases.get(cmd_name, cmd_name))
        if entry is None:
            return None
        module, _, name = entry.target.partition(":")
        thresholds = gc.get_threshold()
        # Imported objects live on: scanning them often takes a seventh of the start-up time, never takes 7 MB of `up`.
        gc.set_threshold(20_000)
        try:
            command = getattr(importlib.import_module(f"{self.package}.{module}"), name)
        finally:
            gc.set_threshold(*thresholds)
        import linecache  # noqa: PLC0415 - only commands that import attrs fill it

        linecache.clearcache()  # attrs leaves the source of each generated method there: 3 MB of `up`
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the named command, or suggest similar names."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as exc:
            import difflib  # noqa: PLC0415 - needed only after a typing error

            word = self.other_words.get(args[0])
            like = [word] if word else difflib.get_close_matches(args[0], (*self.entries, *self.aliases), 3, 0.6)
            if not like:
                raise
            hint = f"did you mean {' or '.join(like)}?"
            raise click.UsageError(f"unknown command {args[0]}; {hint}", ctx) from exc

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the matching names, without importing a command."""
        summaries = {name: entry.summary for name, entry in self.entries.items()} | self.alias_summaries
        offered = [CompletionItem(name, help=text) for name, text in summaries.items() if name.startswith(incomplete)]
        return offered or click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the overview, without importing a command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in self.entries.items()])
