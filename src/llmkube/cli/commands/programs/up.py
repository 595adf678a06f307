"""`llmkube up`: check all flags and files, then run `one_machine`."""

import contextlib
import importlib
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import click
import trio
from rich.text import Text

from llmkube.base.errors import UserError
from llmkube.base.log import RecentLog, configure_logging
from llmkube.cli.commands.programs.up_session import next_steps, prepare_session
from llmkube.cli.commands.tools.files import demo_manifests, demo_model, load_manifests
from llmkube.cli.lazy_group import Entry, LazyGroup
from llmkube.cli.options import manifests_option
from llmkube.cli.view import output
from llmkube.cli.view.page_facts import page_facts
from llmkube.cli.view.progress_line import open_console
from llmkube.programs.config import UpConfig, load
from llmkube.programs.failures import CommandError
from llmkube.programs.host_name import check_own_address
from llmkube.programs.host_settings import accelerators_of, detect_devices, find_llama_server
from llmkube.programs.lan_gateway import listen_settings
from llmkube.programs.one_machine import UpPlan, run_up
from llmkube.programs.options import HELP, NumberRange, guarded, settings_options
from llmkube.programs.page.machine import Commands
from llmkube.programs.program import raise_descriptor_limit, use_one_heap
from llmkube.programs.router_host.router_paths import ROUTERS, SETTING
from llmkube.programs.state_dir import hold_state_dir, loading_note, temporary_state_dir
from llmkube.programs.state_location import ADDRESSES_FILE, ENGINES_LOCK, SERVER_LOCK
from llmkube.supervisor.network import own_addresses

COMMANDS: Mapping[str, Entry] = {
    "start": Entry("background.up_commands:start", "Run `llmkube up` in the background."),
    "stop": Entry("background.up_commands:stop", "Stop `llmkube up` and its engines."),
    "status": Entry("background.up_commands:up_status", "Show whether `llmkube up` is running, and its addresses."),
    "logs": Entry("background.up_commands:up_logs", "Print the log of `llmkube up` in the background."),
    "install": Entry("background.up_commands:install", "Run `llmkube up` at every login, with launchd or systemd."),
    "uninstall": Entry("background.up_commands:uninstall", "Stop `llmkube up` and do not run it at login."),
}
"""Subcommands; `llmkube up` itself imports none of them."""


@click.group(
    "up", cls=LazyGroup, package=__package__, entries=COMMANDS, context_settings=HELP, invoke_without_command=True
)
@click.option("--demo", is_flag=True, help="Serve the built-in model; implies --ephemeral and free ports.")
@click.option("--ask", "question", metavar="TEXT", help="Send the first service a prompt, print its answer and exit.")
@click.option("--timeout", type=NumberRange(min=0), default=300.0, help="Seconds to wait for --ask. Default: 300.")
@manifests_option("files", "Manifests to apply: a file, a folder, or - for standard input.")
@click.option("--ephemeral", is_flag=True, help="Store everything in a temporary folder, removed on exit.")
@settings_options(UpConfig)
@click.pass_context
@guarded
def up(
    context: click.Context,
    /,
    *,
    demo: bool,
    question: str | None,
    timeout: float,
    files: tuple[str, ...],
    ephemeral: bool,
    **flags: Any,
) -> None:
    """Serve models on this machine, with an embedded Kubernetes API.

    Runs until Ctrl-C. `llmkube up start` runs it in the background, `llmkube up install` at every login.
    """
    if context.invoked_subcommand is not None:
        return
    if demo:
        ports = ("api_port", "gateway_port", "probe_port")
        flags |= {name: "0" for name in ports if flags[name] is None}
    config = load("up", UpConfig, flags)
    if question is not None and config.gateway_serves == ROUTERS:
        raise UserError(f"it asks a service, which {SETTING} {ROUTERS} refuses; omit one of the two", field="--ask")
    if config.host_ip is not None:
        check_own_address(config.host_ip)
    listen = listen_settings(config, own_addresses)
    manifests = (*(demo_manifests() if demo else ()), *load_manifests(files, sys.stdin.read))
    llama_server = find_llama_server(config.llama_server)
    recent = RecentLog()
    configure_logging(config.log_level, style="console", recent=recent)
    devices = detect_devices(config, llama_server)
    raise_descriptor_limit()
    use_one_heap()
    with contextlib.ExitStack() as stack:
        if demo or ephemeral:
            state_dir = stack.enter_context(temporary_state_dir())
        else:
            state_dir = stack.enter_context(hold_state_dir(config.state_dir, ENGINES_LOCK, SERVER_LOCK))
            if note := loading_note(state_dir, config.activation):
                click.echo(output.wrapped(note, err=True), err=True)
        (state_dir / ADDRESSES_FILE).unlink(missing_ok=True)  # of an earlier run
        console = open_console(stderr=True)
        prepare = partial(
            prepare_session,
            console=console,
            accelerators=accelerators_of(config, devices),
            question=question,
            timeout_seconds=timeout,
        )

        def print_progress(line: str) -> None:
            with contextlib.suppress(OSError):  # the terminal is closed
                console.print(Text(output.printable(line)), soft_wrap=True)

        plan = UpPlan(config, manifests, llama_server, state_dir, listen, devices)
        answered = trio.run(run_up, plan, prepare, print_progress, output.echo, page_commands(config, recent))
    if question is not None and not answered:
        raise CommandError("stopped before the model answered")
    if demo and question is not None:
        output.echo(f"\n{next_steps(*demo_model(), question)}")


def page_commands(config: UpConfig, recent: RecentLog) -> Commands:
    """Return the commands that the page carries out; `up_page` is imported when one of them is used."""

    def used(name: str, *more: Any) -> Callable[..., Any]:
        page = f"{__package__}.up_page"
        return lambda *args: getattr(importlib.import_module(page), name)(*args, *more)

    return Commands(page_facts, used("list_models"), used("fit", config), used("deploy_model"), recent)
