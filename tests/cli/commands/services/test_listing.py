import json
from functools import partial

import pytest
import trio
import trio.testing
import yaml
from click.testing import CliRunner

from cli.cli_objects import condition, model, service
from cli.memory_cluster import NOW, open_demo, write_status
from llmkube.cli.commands.services.listing import _Page
from llmkube.cli.main import cli
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key


def test_both_kinds_are_listed(run):
    """`list` shows the Models and the InferenceServices of the context's namespace."""
    ready = partial(write_status, phase="Ready", readyReplicas=1, desiredReplicas=1, endpoint="http://x")
    done = run("list", prepare=ready)
    assert done.exit_code == 0, done.output
    models, services = done.output.split("\n\n")
    assert models.splitlines()[0].split() == ["NAME", "PHASE", "SIZE", "ACCELERATOR", "ARCHITECTURE", "AGE"]
    assert services.splitlines()[1].split()[:4] == ["demo", "demo", "Ready", "1/1"]


def test_namespaces_are_respected(run):
    """-n selects a namespace; -A selects all and adds a column."""
    assert run("list", "-n", "other").output == "No Models and no InferenceServices in other.\n"
    assert run("list", "mdl", "-n", "other").output == "No Models in other.\n"
    assert run("list", "-A").output.splitlines()[1].startswith("default    demo")


@pytest.mark.parametrize("word", ["mdl", "models", "Model"])
def test_one_kind_can_be_listed(run, word):
    """A short or long name selects the kind; an unknown one is a usage error with the list."""
    shown = run("list", word).output
    assert "ACCELERATOR" in shown
    assert "READY" not in shown
    assert "ACCELERATOR" not in run("list", "isvc").output
    wrong = run("list", "pods")
    assert (wrong.exit_code, '"pods" is not a kind; kinds are' in wrong.output) == (2, True)


def test_wide_adds_columns(run):
    """`-o wide` appends columns to the plain table."""
    plain, wide = (run("list", "isvc", *args).output.splitlines()[0].split() for args in ((), ("-o", "wide")))
    assert wide[: len(plain)] == plain
    assert wide[len(plain) :] == ["ENDPOINT", "RUNTIME", "CONTEXT", "SLOTS", "PRIORITY", "NAMES", "MESSAGE"]
    assert "builtin://demo" in run("list", "mdl", "-o", "wide").output


def test_lists_can_be_data(run):
    """`-o json` and `-o yaml` print a List, `-o name` a line per object and nothing for none."""
    listed = json.loads(run("list", "-o", "json").output)
    assert [each["kind"] for each in listed["items"]] == ["Model", "InferenceService"]
    assert yaml.safe_load(run("list", "-o", "yaml").output) == listed
    assert run("list", "-o", "name", "isvc").output == "inferenceservice.inference.llmkube.dev/demo\n"
    assert run("list", "-o", "name", "-n", "other").output == ""
    assert CliRunner().invoke(cli, ["list", "-o", "xml"]).exit_code == 2


READY = service("chat", condition("Available", True, "InferenceReady"), phase="Ready")


def objects(models=(), services=()):
    return {Model: models, InferenceService: services}


def test_a_watched_table_appends_what_changed():
    """A pipe gets the table, then each changed row; a change of kind repeats the headings."""
    log = _Page((Model, InferenceService), "default", "").log()
    first = log.updates(objects([model()], [service(phase="Creating")]), NOW)
    assert [line.split()[0] for line in first if line] == ["NAME", "chat", "NAME", "chat"]
    assert log.updates(objects([model()], [service(phase="Creating")]), NOW) == []
    (line,) = log.updates(objects([model()], [READY]), NOW)
    assert line.split()[:3] == ["chat", "chat", "Ready"]
    assert [line.split()[:2] for line in log.updates(objects([], [READY]), NOW)] == [
        [],
        ["NAME", "PHASE"],
        ["chat", "Deleted"],
    ]


def test_watched_data_is_appended_per_object():
    """Each new version of an object is printed as a document of its own."""
    log = _Page((InferenceService,), "default", "name").log()
    assert log.updates(objects(services=[service()]), NOW) == ["inferenceservice.inference.llmkube.dev/chat"]
    assert log.updates(objects(services=[service()]), NOW) == []


async def test_a_watch_sees_every_change(autojump_clock):
    """The watch prints a new phase and the deletion of the object."""
    async with open_demo() as (client, caches):
        page = _Page((InferenceService,), None, "")
        log = page.log()
        assert len(log.updates(page.cached(caches), NOW)) == 2
        await write_status(client, phase="Creating")
        await trio.testing.wait_all_tasks_blocked()
        (line,) = log.updates(page.cached(caches), NOW)
        assert line.split()[:4] == ["default", "demo", "demo", "Creating"]
        await client.delete(InferenceService, Key("default", "demo"))
        await trio.testing.wait_all_tasks_blocked()
        (line,) = log.updates(page.cached(caches), NOW)
        assert line.split()[3] == "Deleted"
