"""The `llmkube` command: a list of names; the code of a command is loaded when it is called.

`llmkube --version` and `--help` answer at once because nothing else is imported for them.
"""

import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

import click

from llmkube import __version__
from llmkube.cli.lazy_group import Entry, LazyGroup

_TERMINATED = 128 + 15
_INTERRUPTED = 128 + 2  # what a shell shows for a program that SIGINT ended

_VERSION_LINE = f"llmkube {__version__}"


SUBJECTS: Mapping[str, Mapping[str, Entry]] = {
    "Serve models": {
        "run": Entry("cli.commands.services.run:run", "Deploy a model if it is needed, and talk to it."),
        "deploy": Entry(
            "cli.commands.services.deploy:deploy", "Serve a model under a name, or change how it is served."
        ),
        "pull": Entry("cli.commands.services.pull:pull", "Create a Model and fetch its file."),
        "catalog": Entry("cli.commands.models.catalog:catalog", "Show the models that can be deployed by name."),
        "scale": Entry("cli.commands.services.objects:scale", "Set how many processes serve; 0 stops."),
        "restart": Entry("cli.commands.services.objects:restart", "Start the engine of a service anew."),
        "delete": Entry("cli.commands.services.objects:delete", "Delete InferenceServices (or Models)."),
    },
    "See what they do": {
        "list": Entry("cli.commands.services.listing:list_objects", "Show Models and InferenceServices."),
        "status": Entry(
            "cli.commands.services.objects:status", "Explain one InferenceService (or Model) and what it waits for."
        ),
        "ps": Entry("cli.commands.services.ps:ps", "Show what runs, with its memory, and where."),
        "top": Entry("cli.commands.services.top:top", "Show tokens per second, requests and memory, live."),
        "queue": Entry("cli.commands.services.ps:queue", "Show what waits for a GPU or for memory."),
        "logs": Entry("cli.commands.services.logs:logs", "Print what an engine writes."),
    },
    "Use them": {
        "chat": Entry("cli.commands.inference.chat:chat", "Talk to a served model."),
        "port-forward": Entry(
            "cli.commands.inference.port_forward:port_forward", "Reach an engine by a port of this machine."
        ),
    },
    "Model files": {
        "inspect": Entry(
            "cli.commands.models.inspect:inspect_model", "Show what a GGUF file says of itself, here or elsewhere."
        ),
        "fit": Entry("cli.commands.models.fit:fit", "Show what a model needs in memory, and whether that fits."),
        "cache": Entry(
            "cli.commands.models.cache:cache", "List, inspect, prune and preload model files on this machine."
        ),
    },
    "Programs that stay": {
        "up": Entry("cli.commands.programs.up:up", "Serve models on this machine, with a Kubernetes API of its own."),
        "agent": Entry("cli.commands.programs.agent:agent", "Serve a cluster's models on this host."),
        "controller": Entry(
            "cli.commands.programs.controller:controller", "Keep the status of Models and InferenceServices true."
        ),
        "router": Entry(
            "cli.commands.router.command:router",
            "Run a ModelRouter by itself, or see which way a request takes through it.",
        ),
        "apiserver": Entry("cli.commands.programs.apiserver:apiserver", "Run the embedded API server alone."),
    },
    "Programs of the cluster's pods": {
        "fetch": Entry("programs.fetch_job.fetch:fetch_weights", "Fetch a model into a folder, as a Model's Job does."),
        "key-proxy": Entry("programs.engine_pod:key_proxy", "Ask the clients of an engine for their keys, in its pod."),
        "reach": Entry(
            "programs.fetch_job.reach:reach", "Say whether an address answers from a pod, for `doctor --from-cluster`."
        ),
        "drain": Entry("programs.engine_pod:drain", "Tell a pod that has to end when its engine has no request left."),
    },
    "Tools": {
        "doctor": Entry("cli.commands.doctor.command:doctor", "Say what is well here, what is not, and what mends it."),
        "convert": Entry(
            "cli.commands.tools.migrate:convert_manifests", "Print manifests of the first API as today's objects."
        ),
        "migrate": Entry(
            "cli.commands.tools.migrate:migrate", "Say what changes for objects that the Go implementation serves now."
        ),
        "crds": Entry("cli.commands.tools.crds:crds", "Print the CustomResourceDefinitions as YAML."),
        "rbac": Entry("cli.commands.tools.rbac:rbac", "Print the roles that a program needs in a cluster."),
        "completion": Entry(
            "cli.commands.tools.man:completion", "Print the script that completes commands in a shell."
        ),
        "man": Entry("cli.commands.tools.man:man", "Write a manual page for each command."),
        "version": Entry("cli.main:version", "Print the version."),
    },
}
"""The commands by subject, in the order of the overview."""

COMMANDS: Mapping[str, Entry] = {name: entry for group in SUBJECTS.values() for name, entry in group.items()}


class Overview(LazyGroup):
    """All commands by subject; how each of them ends where something else ends it."""

    def invoke(self, ctx: click.Context) -> Any:
        """Import and run a command; Ctrl-C, at any moment, ends it with 130, a closed pipe with SIGPIPE: in silence."""
        interrupted = False
        try:
            result = self._invoke_command(ctx)
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

    def _invoke_command(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as exc:
            from llmkube.programs.failures import MistypedError  # noqa: PLC0415 - a mistake alone pays for it

            raise MistypedError(exc.format_message(), exc.ctx) from exc

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the overview from the table, without importing anything."""
        for subject, group in SUBJECTS.items():
            with formatter.section(subject):
                formatter.write_dl([(name, entry.summary) for name, entry in group.items()])


@click.command(
    cls=Overview, package="llmkube", entries=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, "--version", "-V", message=_VERSION_LINE)
def cli() -> None:
    """Kubernetes for local LLMs."""


@click.command("version", context_settings={"help_option_names": ["-h", "--help"]})
def version() -> None:
    """Print the version."""
    click.echo(_VERSION_LINE)


def main() -> None:
    """Run the `llmkube` program; never returns."""
    exit_on_sigterm_in_container()
    cli(prog_name="llmkube")


def exit_on_sigterm_in_container() -> None:
    """Have a TERM end this process before the command has its own way with it, and where it has none.

    As process 1 of a container it would else get none: the kernel drops what the first process does not handle, and a
    pod that is deleted while a command is imported would stay for the whole of its grace.
    """
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(_TERMINATED))


def agent_main() -> None:
    """Run the `llmkube-metal-agent` program, which is `llmkube agent` under the name in the guides; never returns."""
    # Imported here so that `llmkube --version` does not pay for it.
    from llmkube.cli.commands.programs.agent import agent  # noqa: PLC0415 - see the line above

    agent(prog_name="llmkube-metal-agent")
