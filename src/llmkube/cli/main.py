"""The `llmkube` command: a list of names; the code of a command is loaded when it is called.

`llmkube --version` and `--help` answer at once because nothing else is imported for them.
"""

import gc
import importlib
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem

from llmkube import __version__

_INTERRUPTED = 128 + 2  # what a shell shows for a program that SIGINT ended

_VERSION_LINE = f"llmkube {__version__}"


class Entry(NamedTuple):  # not attrs, as everywhere else: its import costs more than all of `--version`
    """Where a command lives, below `llmkube.cli`, and what the overview says about it."""

    target: str
    summary: str


COMMANDS: Mapping[str, Entry] = {
    "up": Entry("commands.programs.up:up", "Serve models on this machine, with a Kubernetes API of its own."),
    "agent": Entry("commands.programs.agent:agent", "Serve a cluster's models on this host."),
    "controller": Entry(
        "commands.programs.controller:controller", "Keep the status of Models and InferenceServices true."
    ),
    "apiserver": Entry("commands.programs.apiserver:apiserver", "Run the embedded API server alone."),
    "deploy": Entry("commands.services.deploy:deploy", "Serve a model under a name, or change how it is served."),
    "list": Entry("commands.services.listing:list_objects", "Show Models and InferenceServices."),
    "status": Entry(
        "commands.services.objects:status", "Explain one InferenceService (or Model) and what it waits for."
    ),
    "chat": Entry("commands.inference.chat:chat", "Talk to a served model."),
    "logs": Entry("commands.services.logs:logs", "Print what an engine writes."),
    "port-forward": Entry("commands.inference.port_forward:port_forward", "Reach an engine by a port of this machine."),
    "scale": Entry("commands.services.objects:scale", "Set how many processes serve; 0 stops."),
    "delete": Entry("commands.services.objects:delete", "Delete InferenceServices (or Models)."),
    "inspect": Entry(
        "commands.models.inspect:inspect_model", "Show what a GGUF file says of itself, here or elsewhere."
    ),
    "fit": Entry("commands.models.fit:fit", "Show what a model needs in memory, and whether that fits."),
    "fetch": Entry("job.fetch:fetch_weights", "Fetch a model into a folder, as a Model's Job does."),
    "key-proxy": Entry(
        "commands.programs.key_proxy:key_proxy", "Ask the clients of an engine for their keys, in its pod."
    ),
    "cache": Entry("commands.models.cache:cache", "List, inspect, prune and preload model files on this machine."),
    "convert": Entry(
        "commands.tools.convert:convert_manifests", "Print manifests of the first API as today's objects."
    ),
    "migrate": Entry(
        "commands.tools.migrate:migrate", "Say what changes for objects that the Go implementation serves now."
    ),
    "crds": Entry("commands.tools.crds:crds", "Print the CustomResourceDefinitions as YAML."),
    "rbac": Entry("commands.tools.rbac:rbac", "Print the roles that a program needs in a cluster."),
    "completion": Entry("commands.tools.completion:completion", "Print the script that completes commands in a shell."),
    "version": Entry("main:version", "Print the version."),
}


class LazyGroup(click.Group):
    """A group that knows its commands by name and imports one only to run it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the overview."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command, or None if there is none of that name."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module, _, name = entry.target.partition(":")
        collects = gc.isenabled()
        gc.disable()  # what an import makes stays: to look through it again and again is a seventh of the start
        try:
            command = getattr(importlib.import_module(f"llmkube.cli.{module}"), name)
        finally:
            if collects:
                gc.enable()
        assert isinstance(command, click.Command)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Offer the names from the table, without importing anything."""
        offered = [
            CompletionItem(name, help=entry.summary) for name, entry in COMMANDS.items() if name.startswith(incomplete)
        ]
        return offered or click.Command.shell_complete(self, ctx, incomplete)

    def invoke(self, ctx: click.Context) -> Any:
        """Import and run a command; Ctrl-C, at any moment, ends it with 130, a closed pipe with SIGPIPE: in silence."""
        interrupted = False
        try:
            result = super().invoke(ctx)
        except* KeyboardInterrupt:  # a nursery raises it within a group
            interrupted = True
        except* BrokenPipeError:  # the reader has gone (`| head`); nothing that is left to print has anywhere to go
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it
            os.kill(os.getpid(), signal.SIGPIPE)
        if interrupted:
            if sys.stderr.isatty():
                click.echo(err=True)  # the shell's prompt does not go behind the terminal's "^C"
            sys.exit(_INTERRUPTED)
        return result

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the overview from the table, without importing anything."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in COMMANDS.items()])


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "--version", "-V", message=_VERSION_LINE)
def cli() -> None:
    """Kubernetes for local LLMs."""


@click.command("version")
def version() -> None:
    """Print the version."""
    click.echo(_VERSION_LINE)


def main() -> None:
    """Run the `llmkube` program; never returns."""
    cli(prog_name="llmkube")


def agent_main() -> None:
    """Run the `llmkube-metal-agent` program, which is `llmkube agent` under the name in the guides; never returns."""
    # Imported here so that `llmkube --version` does not pay for it.
    from llmkube.cli.commands.programs.agent import agent  # noqa: PLC0415 - see the line above

    agent(prog_name="llmkube-metal-agent")
