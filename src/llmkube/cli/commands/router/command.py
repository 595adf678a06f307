"""`llmkube router`: a router alone, and what belongs to one without a cluster."""

from typing import Any

import click

from llmkube.cli.commands.router.explain import explain_request
from llmkube.programs.config.router_config import RouterConfig
from llmkube.programs.config.tables import load
from llmkube.programs.options import HELP, guarded, settings_options


@click.group("router", context_settings=HELP, invoke_without_command=True)
@click.option("-f", "--filename", metavar="FILE", help="A ModelRouter, or a compiled config.")
@settings_options(RouterConfig)
@click.pass_context
@guarded
def router(ctx: click.Context, /, filename: str | None, **flags: Any) -> None:
    """Run a router alone, or see which way a request takes through it.

    One OpenAI-compatible address in front of local engines and external providers, by the rules of a ModelRouter. What
    it names as an InferenceService is found by --service, its keys by --keys-dir.
    """
    if ctx.invoked_subcommand is not None:
        return
    if filename is None:
        raise click.UsageError("give the file to run by: -f FILE", ctx)
    from llmkube.cli.commands.router.serve import serve_router  # noqa: PLC0415 - explain needs none of it

    serve_router(filename, load("router", RouterConfig, flags))


router.add_command(explain_request)
