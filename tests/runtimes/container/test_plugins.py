import functools
import subprocess
import sys

import httpx
import pytest
import trio
import yaml
from click.testing import CliRunner

from free_ports import free_port
from llmkube.apiserver.schema.structural import Schema
from llmkube.apiserver.schema.validation import validate
from llmkube.cli.main import cli
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.definitions import all_crds, crds_yaml
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.runtimes.container.container_plan import MountPaths
from llmkube.runtimes.container.plugins import extend_crds, find_installed
from llmkube.runtimes.plan import Placeholder, PlanError
from llmkube.runtimes.registry import container_plan_for, runtime_named
from plugin_packages import EXAMPLE, example_installed, imported_from, write_package

MODEL = decode(Model, {"metadata": {"name": "parrot"}, "spec": {"source": "https://example.com/parrot.gguf"}})


def plan(**spec):
    body = {"metadata": {"name": "echo"}, "spec": {"modelRef": "parrot", "runtime": "echo", **spec}}
    return container_plan_for(decode(InferenceService, body), MODEL)


def test_an_uninstalled_runtime_is_refused_with_the_installed_ones():
    """Without the package, its name is no runtime, and the message lists the runtimes."""
    with pytest.raises(PlanError, match=r'"echo" does not run in pods; use one of .*llamacpp, .*vllm') as refused:
        plan()
    assert refused.value.field == "spec.runtime"


def test_the_example_plans_its_own_manifest(tmp_path):
    """All fields of examples/runtime-plugin are honoured, its own options included."""
    objects = {body["kind"]: body for body in yaml.safe_load_all((EXAMPLE / "service.yaml").read_text())}
    service, model = decode(InferenceService, objects["InferenceService"]), decode(Model, objects["Model"])
    with example_installed(tmp_path):
        made = container_plan_for(service, model)
    assert " ".join(made.render_words(made.args, MountPaths(model="/m.gguf"))) == (
        "--model /m.gguf --host :: --port 9000 --prefix you said --shout --longest 4096"
    )
    assert (made.not_honoured, made.needs_model_init, made.container_name) == ((), True, "echo")


def test_the_guides_own_runtime_plans(monkeypatch):
    """The first code of docs/guides/adding-a-runtime.md is a complete runtime, as it stands."""
    code = (
        (EXAMPLE.parents[1] / "docs" / "guides" / "adding-a-runtime.md")
        .read_text()
        .split("```python\n")[1]
        .split("```")[0]
    )
    names = {}
    exec(code, names)  # as the guide recommends
    monkeypatch.setattr("llmkube.runtimes.container.plugins.load", lambda _: names["RUNTIME"])
    assert plan(contextSize=512).args == (
        "--model",
        Placeholder.MODEL,
        "--host",
        "::",
        "--port",
        "9000",
        "--longest",
        "512",
    )


def test_invalid_options_of_a_plugin_are_refused_by_name(tmp_path):
    """A value of the wrong type is refused with the plug-in's own field."""
    with example_installed(tmp_path), pytest.raises(PlanError, match="expected") as refused:
        plan(echoConfig={"repeat": "often"})
    assert refused.value.field == "spec.echoConfig"


@pytest.mark.e2e
async def test_the_example_serves(tmp_path):
    """The planned command, run with its slots filled, answers its own probe and a chat."""
    port = free_port()
    (tmp_path / "site").mkdir()
    (weights := tmp_path / "parrot.gguf").write_bytes(b"GGUF")
    with example_installed(tmp_path / "site"):
        made = plan(containerPort=port, bindAddress="127.0.0.1", echoConfig={"prefix": "you said", "shout": True})
    places = MountPaths(model=str(weights))
    command = [sys.executable, *made.render_words(made.command, places)[1:], *made.render_words(made.args, places)]
    run = functools.partial(
        trio.run_process, command, stdout=subprocess.PIPE, check=False, env={"PYTHONPATH": str(EXAMPLE / "src")}
    )
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            process = await nursery.start(run)
            assert await process.stdout.receive_some() == f"listening on {port}\n".encode()
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60) as http:
                probe = made.probes.readiness.manifest()["httpGet"]["path"]
                assert (await http.get(probe)).status_code == 200
                answer = await http.post(made.endpoint_path, json={"messages": [{"role": "user", "content": "hello"}]})
            assert answer.json()["choices"][0]["message"]["content"] == "YOU SAID HELLO"
            nursery.cancel_scope.cancel()


def test_the_crds_know_the_names_and_the_options_of_plugins(tmp_path):
    """With the package installed, the schema admits its name and checks its options; without, it does not."""

    def problems(crds, config):
        crd = next(each for each in crds if each["spec"]["names"]["kind"] == "InferenceService")
        schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        body = {"apiVersion": "inference.llmkube.dev/v1alpha1", "kind": "InferenceService", "metadata": {"name": "a"},
                "spec": {"modelRef": "m", "runtime": "echo", "echoConfig": config}}  # fmt: skip
        return [error.path for error in validate(body, None, Schema.parse(schema))]

    plain = all_crds()
    with example_installed(tmp_path):
        found = find_installed()
        extended = extend_crds(plain, found.runtimes)
    assert found.problems == ()
    assert "spec.runtime" in problems(plain, {})
    assert problems(extended, {"repeat": 2}) == []
    assert problems(extended, {"repeat": 11}) == ["spec.echoConfig.repeat"]


def test_without_plugins_the_crds_are_the_same_bytes():
    """The search for plug-ins changes nothing if there are none."""
    assert crds_yaml(extend_crds(all_crds(), find_installed().runtimes)) == crds_yaml()


SOUND = """
from llmkube.runtimes.container.container_plan import Probes
from llmkube.runtimes.container.builder import Runtime

def plan(draft):
    return draft.finish(container_name="x", image="x", port=draft.port(1), probes=Probes.tcp())

RUNTIME = Runtime(name="{name}", plan=plan)
NUMBER = 7
STRANGE = Runtime(name="{name}", plan=plan, reads=("onnx",))
ANOTHER = Runtime(name="somebody", plan=plan)
HALF = Runtime(name="{name}", plan=plan, config_key="xConfig")
TAKEN = Runtime(name="{name}", plan=plan, config=int, config_key="vllmConfig")
NO_FIELDS = Runtime(name="{name}", plan=plan, config=int, config_key="xConfig")
"""


@pytest.mark.parametrize(
    ("name", "target", "problem"),
    [
        ("odd", "no_such_module:RUNTIME", "cannot be loaded: ModuleNotFoundError"),
        ("odd", "odd_plugin:NOTHING", "cannot be loaded: AttributeError"),
        ("odd", "odd_plugin:NUMBER", "names a int, not a"),
        ("odd", "odd_plugin:STRANGE", "reads 'onnx'"),
        ("odd", "odd_plugin:ANOTHER", "its name is 'somebody'"),
        ("odd", "odd_plugin:HALF", "it needs both config and config_key"),
        ("odd", "odd_plugin:TAKEN", "the field spec.vllmConfig exists already"),
        ("odd", "odd_plugin:NO_FIELDS", "its config is not a class of fields"),
        ("vllm", "odd_plugin:RUNTIME", "is built in"),
    ],
)
def test_a_broken_plugin_is_named_and_disables_only_itself(tmp_path, name, target, problem):
    """Each error of one package is reported with its name and version, and the others still work."""
    (tmp_path / "odd_plugin.py").write_text(SOUND.format(name=name))
    (tmp_path / "fine_plugin.py").write_text(SOUND.format(name="fine"))
    write_package(tmp_path, "llmkube-odd", {name: target}, "2.1")
    write_package(tmp_path, "llmkube-fine", {"fine": "fine_plugin:RUNTIME"})
    with imported_from(tmp_path):
        found = find_installed()
        assert [runtime.name for runtime in found.runtimes] == ["fine"]
        assert len(found.problems) == 1
        assert f"runtime {name} of llmkube-odd 2.1" in found.problems[0] or "llmkube-odd 2.1" in found.problems[0]
        assert problem in found.problems[0]
        assert runtime_named("vllm").plan.__module__ == "llmkube.runtimes.container.vllm"
        if name == "odd":
            with pytest.raises(PlanError, match=r"llmkube-odd 2\.1"):
                runtime_named("odd")
        assert runtime_named("fine").name == "fine"


def test_two_packages_for_one_name_are_both_named(tmp_path):
    """The message names the two packages to choose between."""
    (tmp_path / "twice_plugin.py").write_text(SOUND.format(name="twice"))
    write_package(tmp_path, "first", {"twice": "twice_plugin:RUNTIME"})
    write_package(tmp_path, "second", {"twice": "twice_plugin:RUNTIME"})
    with imported_from(tmp_path), pytest.raises(PlanError, match=r"by first 1\.0 and second 1\.0"):
        runtime_named("twice")


def test_no_command_looks_for_plugins_unless_it_has_to():
    """Planning with a built-in runtime and `llmkube --version` never read the list of installed packages."""
    script = (
        "import importlib.metadata as m, sys\n"
        "m.entry_points = lambda **_: sys.exit('looked')\n"
        "from llmkube.runtimes.registry import runtime_named\n"
        "runtime_named('vllm')\n"
        "from llmkube.cli.main import main\n"
        "sys.argv = ['llmkube', '--version']\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("option", [[], ["--docs"]])
def test_make_manifests_includes_installed_plugins(tmp_path, option):
    """Definitions and reference alike have the plug-in's name and its options while it is installed."""
    plain = CliRunner().invoke(cli, ["crds", *option])
    with example_installed(tmp_path):
        extended = CliRunner().invoke(cli, ["crds", *option])
    assert (plain.exit_code, extended.exit_code) == (0, 0)
    assert "echoConfig" not in plain.stdout
    assert "echoConfig" in extended.stdout
