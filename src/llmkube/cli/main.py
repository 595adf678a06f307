"""The `llmkube` command. A subcommand is imported when it is called, so that `--version` and `--help` are fast."""

import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

import click

from llmkube import __version__
from llmkube.cli.lazy_group import Entry, LazyGroup

_TERMINATED = 128 + 15
_INTERRUPTED = 128 + 2  # the exit code that a shell reports for a program terminated by SIGINT

_VERSION_LINE = f"llmkube {__version__}"


def _command(target: str, summary: str) -> Entry:
    return Entry(f"cli.commands.{target}", summary)


SUBJECTS: Mapping[str, Mapping[str, Entry]] = {
    "Serve models": {
        "run": _command("services.run:run", "Talk to a model; deploy it first if necessary."),
        "deploy": _command("services.deploy:deploy", "Serve a model under a name, or change how it is served."),
        "pull": _command("services.pull:pull", "Create a Model and fetch its file."),
        "catalog": _command("models.catalog:catalog", "Show the models that can be deployed by name."),
        "scale": _command("services.objects:scale", "Set the number of replicas; 0 stops the service."),
        "stop": _command("services.objects:stop", "Unload a model until the next request."),
        "restart": _command("services.objects:restart", "Restart the engine of a service."),
        "cp": _command("services.deploy:copy", "Serve the same model with the same settings under a new name."),
        "delete": _command("services.objects:delete", "Delete InferenceServices (or other objects)."),
        "apply": _command("services.any_kind:apply", "Create or change the objects in files, of any kind."),
    },
    "Show state": {
        "list": _command("services.listing:list_objects", "List Models and InferenceServices."),
        "status": _command("services.objects:status", "Describe an InferenceService (or Model)."),
        "get": _command("services.any_kind:get", "Show objects of any kind, as `kubectl get` does."),
        "ps": _command("services.ps:ps", "List running engines with their memory and host."),
        "top": _command("services.top:top", "Show tokens per second, requests and memory, live."),
        "queue": _command("services.ps:queue", "List services that wait for a GPU or for memory."),
        "logs": _command("services.logs:logs", "Print the logs of an engine."),
    },
    "Use models": {
        "chat": _command("inference.chat:chat", "Chat with a served model."),
        "page": _command("programs.background.up_commands:page", "Open the page of `llmkube up` in a browser."),
        "launch": _command("inference.launch:launch", "Start an agent or editor that uses a served model."),
        "port-forward": _command("inference.port_forward:port_forward", "Forward a local port to a service's engine."),
        "benchmark": _command("benchmark.command:benchmark", "Measure a model's speed under load."),
    },
    "Model files": {
        "inspect": _command("models.inspect:inspect_model", "Show the metadata of a GGUF file, local or remote."),
        "fit": _command("models.fit:fit", "Show how much memory a model needs, and whether it fits."),
        "plan": _command("models.plan_file:plan", "Plan which models a set of hosts would hold."),
        "cache": _command("models.cache:cache", "List, inspect, prune and preload model files on this machine."),
    },
    "Long-running programs": {
        "up": _command("programs.up:up", "Serve models on this machine, with an embedded Kubernetes API."),
        "agent": _command("programs.agent:agent", "Serve a cluster's models on this host."),
        "controller": _command("programs.controller:controller", "Serve a cluster's models in its pods."),
        "router": _command("router.command:router", "Run a ModelRouter alone, or explain how it routes a request."),
        "gateway": _command(
            "programs.gateway:gateway", "Serve a cluster's InferenceServices at one address, with keys."
        ),
        "apiserver": _command("programs.apiserver:apiserver", "Run the embedded API server alone."),
    },
    "Programs that run in pods": {
        "fetch": Entry("programs.fetch_job.fetch:fetch_weights", "Fetch a model into a folder, as a Model's Job does."),
        "key-proxy": Entry(
            "programs.engine_pod:key_proxy", "Require API keys from the clients of an engine, in its pod."
        ),
        "reach": Entry("programs.fetch_job.reach:reach", "Check an address from a pod, for `doctor --from-cluster`."),
        "drain": Entry("programs.engine_pod:drain", "Answer a pod's preStop hooks once its engine has no requests."),
    },
    "Manage access and cost": {
        "cost": _command("router.cost:cost", "Show tokens, joules and dollars by team, model or host."),
        "keys": _command("router.keys:keys", "Issue, list and revoke keys for clients."),
    },
    "Tools": {
        "doctor": _command("doctor.command:doctor", "Diagnose this host and suggest fixes."),
        "verify": _command("verify.command:verify", "Try what is promised of a Mac or a GPU."),
        "convert": _command(
            "tools.migrate:convert_manifests",
            "Convert files of llama-swap, llama.cpp, Ollama or the first API to objects.",
        ),
        "migrate": _command(
            "tools.migrate:migrate", "Check what changes for objects that the Go implementation serves."
        ),
        "crds": _command("tools.crds:crds", "Print the CustomResourceDefinitions as YAML."),
        "rbac": _command("tools.rbac:rbac", "Print the roles that a program needs in a cluster."),
        "completion": _command("tools.man:completion", "Print a shell script that completes commands."),
        "man": _command("tools.man:man", "Write a manual page for each command."),
        "version": Entry("cli.main:version", "Print the version."),
    },
}
"""The commands by subject, in the order of the overview."""

ALIASES: Mapping[str, str] = {"ls": "list", "show": "status", "rm": "delete", "serve": "up"}
"""Names that users of other programs type, with the command's own."""

OTHER_WORDS: Mapping[str, str] = {
    "ask": "run",
    "copy": "cp",
    "create": "deploy",
    "describe": "status",
    "download": "pull",
    "info": "status",
    "kill": "stop",
    "load": "run",
    "models": "list",
    "remove": "delete",
    "search": "catalog list",
    "start": "up start",
    "unload": "stop",
}
"""Words for which no similar name is meant, and the command to suggest."""

COMMANDS: Mapping[str, Entry] = {name: entry for group in SUBJECTS.values() for name, entry in group.items()}


class Overview(LazyGroup):
    """All commands by subject; handles Ctrl-C and a closed pipe for all of them."""

    def invoke(self, ctx: click.Context) -> Any:
        """Import and run a command; exit silently with 130 after Ctrl-C, and by SIGPIPE after a closed pipe."""
        interrupted = False
        try:
            result = self._invoke_command(ctx)
        except* KeyboardInterrupt:  # a nursery raises it within a group
            interrupted = True
        except* BrokenPipeError:  # the reader has exited (`| head`)
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it by default
            os.kill(os.getpid(), signal.SIGPIPE)
        if interrupted:
            if sys.stderr.isatty():
                click.echo(err=True)  # so that the shell's prompt does not follow the terminal's "^C"
            sys.exit(_INTERRUPTED)
        return result

    def _invoke_command(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as exc:
            from llmkube.programs.failures import MistypedError  # noqa: PLC0415 - only for usage errors

            raise MistypedError(exc.format_message(), exc.ctx) from exc

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the overview by subject, without importing a command."""
        for subject, group in SUBJECTS.items():
            with formatter.section(subject):
                formatter.write_dl([(name, entry.summary) for name, entry in group.items()])
        with formatter.section("Other names"):
            formatter.write_dl(list(self.alias_summaries.items()))


@click.command(
    cls=Overview,
    package="llmkube",
    entries=COMMANDS,
    aliases=ALIASES,
    other_words=OTHER_WORDS,
    context_settings={"help_option_names": ["-h", "--help"]},
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
    """As process 1 of a container, exit on SIGTERM until the command installs its own handler, if it has one.

    The kernel does not deliver signals to process 1 that it does not handle: a pod that is deleted while a command is
    being imported would use up its whole grace period.
    """
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(_TERMINATED))


def agent_main() -> None:
    """Run the `llmkube-metal-agent` program, the name of `llmkube agent` in the guides; never returns."""
    # Imported here so that `llmkube --version` does not load it.
    from llmkube.cli.commands.programs.agent import agent  # noqa: PLC0415 - see the line above

    agent(prog_name="llmkube-metal-agent")
