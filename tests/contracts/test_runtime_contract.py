"""Every runtime that runs in pods keeps what `check_runtime` asks."""

import itertools

import pytest

from contracts.check_runtime import check_runtime
from llmkube.k8s.crd.pairing import RUNTIMES
from llmkube.runtimes.container import plugins
from llmkube.runtimes.container.builder import Runtime
from llmkube.runtimes.container.container_plan import Probes
from llmkube.runtimes.registry import BUILT_IN
from plugin_packages import example_installed


@pytest.mark.ci
@pytest.mark.parametrize("name", BUILT_IN)
def test_a_built_in_runtime_keeps_its_promises(name):
    """Each built-in runtime is pure, shows no secret, has one port, and hears or reports every field."""
    check_runtime(name, weights_format=RUNTIMES[name].reads[0])


def test_the_example_plugin_keeps_the_same_promises(tmp_path):
    """The worked example is held to what the built-in runtimes are held to, its own options included."""
    with example_installed(tmp_path):
        check_runtime("echo", source="https://models.example.com/m.gguf")


def broken(name):
    """Return a runtime that is right but for one thing."""
    calls = itertools.count()

    def plan(draft):
        port = 9000 if name == "deaf to its port" else draft.port(9000)
        draft.honour("spec.containerPort")
        draft.line.argv += ["--model", draft.weights()]
        draft.add_listener("--host", "--port", 9000 if name == "told another port" else port)
        if name != "shows keys":
            draft.refuse({})
        if name == "impure":
            draft.line.argv += ["--seed", str(next(calls))]
        if name == "counts replicas":
            draft.line.argv += ["--replicas", str(draft.spec.replicas)]
        if name == "says heard, hears nothing":
            draft.honour("spec.contextSize")
        if name == "hears, says nothing":
            draft.line.argv += ["--context", str(draft.spec.context_size)]
        if name == "crashes":
            _ = {"cuda": 1, "cpu": 1, "rocm": 1}[draft.model.spec.hardware.accelerator]
        if name == "drops words":
            draft.honour("spec.extraArgs")
        extra = name != "drops words"
        return draft.finish(container_name="x", port=port, probes=Probes.tcp(), extra_args=extra, metrics_port_name="")

    return Runtime(name="x", plan=plan)


@pytest.mark.parametrize(
    "name",
    [
        "deaf to its port",
        "told another port",
        "shows keys",
        "impure",
        "counts replicas",
        "says heard, hears nothing",
        "hears, says nothing",
        "drops words",
        "crashes",
    ],
)
def test_a_runtime_with_one_fault_is_found_out(name, monkeypatch):
    """The contract is worth something: each of these faults fails it."""
    runtime = broken(name)
    monkeypatch.setattr(plugins, "load", lambda _: runtime)
    with pytest.raises((AssertionError, KeyError)):
        check_runtime("x")


def test_a_runtime_without_a_fault_is_not_found_out(monkeypatch):
    """The same runtime passes when nothing is wrong with it."""
    runtime = broken("nothing")
    monkeypatch.setattr(plugins, "load", lambda _: runtime)
    check_runtime("x", source="https://example.com/m.gguf")
