"""Every runtime that runs in pods keeps what `check_runtime` asks."""

import pytest

from contracts.check_runtime import check_runtime
from llmkube.k8s.crd.pairing import READS
from llmkube.runtimes.registry import BUILT_IN
from plugin_packages import example_installed


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_built_in_runtime_keeps_its_promises(name):
    """Each built-in runtime is pure, shows no secret, has one port, and hears or reports every field."""
    check_runtime(name, weights_format=READS[name][0])


def test_the_example_plugin_keeps_the_same_promises(tmp_path):
    """The worked example is held to what the built-in runtimes are held to, its own options included."""
    with example_installed(tmp_path):
        check_runtime("echo", source="https://models.example.com/m.gguf")
