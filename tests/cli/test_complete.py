from contextlib import asynccontextmanager

import click
import pytest
import trio

from llmkube.base.errors import UserError
from llmkube.cli import options, target_cluster
from llmkube.cli.main import ALIASES, COMMANDS, cli
from llmkube.programs.options import complete_paths


def offered(function, incomplete="", **params):
    ctx = click.Context(cli)
    ctx.params.update(params)
    return function(ctx, None, incomplete)


@pytest.fixture
def live(run, monkeypatch):
    """A cluster with the demo's objects, and a completion deadline that a busy machine can meet."""
    monkeypatch.setattr(options, "DEADLINE_SECONDS", 60.0)
    assert run("list").exit_code == 0  # which replaces open_cluster


def test_names_are_live(live):
    """Completion offers the current services, Models and namespaces that match the typed text."""
    assert offered(options.services) == ["demo"]
    assert offered(options.services, "x") == []
    assert offered(options.services, namespace="other") == []
    assert offered(options.targets, "model/") == ["model/demo"]
    assert offered(options.targets, "d") == ["demo"]
    assert offered(options.models, "de") == ["demo"]
    assert "default" in offered(options.namespaces)


@pytest.mark.parametrize("failure", ["error", "silence"])
def test_failures_offer_nothing(monkeypatch, capsys, failure):
    """Completion prints nothing and does not wait when the cluster fails or hangs."""

    @asynccontextmanager
    async def open_cluster(where):
        if failure == "error":
            raise UserError("no cluster")
        await trio.sleep_forever()
        yield

    monkeypatch.setattr(target_cluster, "open_cluster", open_cluster)
    monkeypatch.setattr(options, "DEADLINE_SECONDS", 0.05)
    assert offered(options.services) == []
    assert capsys.readouterr() == ("", "")


def test_contexts_come_from_the_files(tmp_path, monkeypatch):
    """Contexts of all KUBECONFIG files are offered once; broken and missing files are skipped."""
    (tmp_path / "a").write_text("contexts: [{name: one}, {name: two}]\n")
    (tmp_path / "b").write_text("contexts: [{name: two}, {name: three}, 7]\n")
    (tmp_path / "c").write_text("{: [")
    (tmp_path / "d").write_text("contexts: 7\n")
    monkeypatch.setenv("KUBECONFIG", ":".join(str(tmp_path / name) for name in "abcde"))
    assert offered(options.contexts) == ["one", "two", "three"]
    assert offered(options.contexts, "tw") == ["two"]
    assert offered(options.contexts, kubeconfig=tmp_path / "b") == ["two", "three"]


def test_commands_are_completed_without_importing_them():
    names = [item.value for item in cli.shell_complete(click.Context(cli), "")]
    assert names == [*COMMANDS, *ALIASES]
    assert [item.value for item in cli.shell_complete(click.Context(cli), "po")] == ["port-forward"]
    assert "--version" in [item.value for item in cli.shell_complete(click.Context(cli), "--")]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_script(run, shell):
    done = run("completion", shell)
    assert done.exit_code == 0
    assert "_LLMKUBE_COMPLETE" in done.output
    assert run("completion", "tcsh").exit_code == 2


def test_files_are_completed_by_the_shell(live):
    """Path arguments complete files next to catalog names; URLs complete nothing."""
    assert [(each.value, each.type) for each in offered(complete_paths, "mod")] == [("mod", "file")]
    assert offered(complete_paths, "https://x") == []
    kinds = {each.type: each.value for each in offered(options.files, "llama-3.1")}
    assert kinds == {"plain": "llama-3.1-8b", "file": "llama-3.1"}
    assert [each.type for each in offered(options.files, "./m")] == ["file"]
    assert offered(options.catalog_or_services, "d")[0] == "demo"
    assert "deepseek-r1-7b" in offered(options.catalog_or_services, "d")


@pytest.mark.parametrize(
    ("command", "option"),
    [("deploy", "--source"), ("up", "-f"), ("up", "--llama-server"), ("convert", "-f"), ("agent", "--model-store")],
)
def test_options_that_take_a_path_complete_files(live, command, option):
    found = cli.get_command(click.Context(cli), command)
    ctx = click.Context(found)
    param = next(each for each in found.params if option in each.opts)
    assert [each.type for each in param.shell_complete(ctx, "mo")] in (["file"], ["dir"])
