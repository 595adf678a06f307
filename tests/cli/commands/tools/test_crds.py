import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from llmkube.cli.commands.tools.crds import honoured_on_hosts, reference
from llmkube.cli.main import cli
from llmkube.k8s.crd.definitions import all_crds

PAGE = Path(__file__).parents[4] / "docs" / "reference" / "crds.md"


def test_the_page_matches_the_classes():
    """docs/reference/crds.md is the output of `make manifests`: run it if this fails."""
    assert PAGE.read_text(encoding="utf-8") == reference()


def test_the_command_prints_the_page():
    """`llmkube crds --docs` prints the page, and nothing else."""
    done = CliRunner().invoke(cli, ["crds", "--docs"])
    assert (done.exit_code, done.stdout) == (0, reference())


@pytest.mark.parametrize("crd", all_crds(), ids=lambda crd: crd["spec"]["names"]["kind"])
def test_every_field_has_a_line(crd):
    """Each field appears once in its kind's section, except inside conditions and parts of pods."""
    kind = crd["spec"]["names"]["kind"]
    section = reference().partition(f"\n## {kind}\n")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `((?:spec|status)\.[^`]*)` \|.*\|.*\|.*\|.*\|", section, re.MULTILINE)
    root = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    expected = [path for part in ("spec", "status") for path in paths(root[part], part)]
    parts = [path for path in expected if not any(path.startswith((f"{one}.", f"{one}[]")) for one in OTHERS)]
    assert sorted(path for path in listed) == sorted(parts)
    assert len(parts) > 10


OTHERS = (
    *("spec.affinity", "spec.env[].valueFrom", "spec.extraVolumeMounts", "spec.extraVolumes"),
    "spec.podSecurityContext",
    *("spec.prefetchTolerations", "spec.probeOverrides.liveness", "spec.probeOverrides.readiness"),
    *("spec.probeOverrides.startup", "spec.proxy.resources", "spec.securityContext", "spec.tolerations"),
    *("spec.topologySpreadConstraints", "status.conditions"),
)


def paths(schema, path):
    for name, inner in schema.get("properties", {}).items():
        yield f"{path}.{name}"
        yield from paths(inner, f"{path}.{name}")
        yield from paths(inner.get("items", {}), f"{path}.{name}[]")


@pytest.mark.parametrize(
    ("path", "honoured"),
    [
        ("spec.contextSize", True),
        ("spec.jinja", True),
        ("spec.env", True),
        ("spec.speculativeDecoding.nDraftMax", True),
        ("spec.reasoningBudgetMessage", True),
        ("Model.spec.sha256", True),
        ("spec.podLabels", False),
        ("spec.vllmConfig.dtype", False),
        ("spec.resources.gpuSharing.profile", False),
        ("Model.spec.hardware.gpu.vendor", True),
        ("spec.autoscaling.maxReplicas", False),
    ],
)
def test_effective_fields_are_marked(path, honoured):
    """A field is marked exactly if the planner of hosts uses it."""
    assert honoured_on_hosts(path) is honoured
    line = next(line for line in reference().splitlines() if f"| `{path.removeprefix('Model.')}` |" in line)
    assert line.endswith("| yes |" if honoured else "|  |")
