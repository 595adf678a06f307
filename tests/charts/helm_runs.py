"""Runs of the real helm and promtool; without one of them a test fails and says what builds it."""

import os
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from charts.chart_tools import COMMAND, find_tool

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "llmkube"
EVERYTHING = Path(__file__).with_name("everything.yaml")
GATEWAY = EVERYTHING.with_name("gateway.yaml")
OPENSHIFT = CHART / "values-openshift.yaml"

REPOSITORY = "team/llmkube"
OUR_IMAGE = ("--set", f"image.registry=registry.example.com,image.repository={REPOSITORY}")
"""Arguments that name an image, as the chart of the tree names none."""
DIGEST = f"sha256:{'5' * 64}"
PACKAGED = f"registry.example.com/{REPOSITORY}@{DIGEST}"
"""The image of the packages that tests make."""
PACKAGED_ENGINE = f"registry.example.com/engines/llama@sha256:{'6' * 64}"
"""The same for services on CPUs."""

PATIENCE_SECONDS = 60
NAMESPACE = "llmkube-system"
GUIDE = ("llmkube", "llmkube/llmkube", "-n", NAMESPACE, "--create-namespace")
"""The arguments of `helm install` in the guide, word for word."""

Object = Mapping[str, Any]

VARIANTS: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "openshift": ("-f", str(OPENSHIFT)),
    "everything": ("-f", str(EVERYTHING)),
    "pod-monitor": (
        *("-f", str(EVERYTHING), "-f", str(OPENSHIFT)),
        *("--set", "metrics.serviceMonitor.enabled=false,metrics.podMonitor.enabled=true"),
    ),
    "gateway": ("-f", str(GATEWAY)),
    "one-namespace": ("--set", "controller.namespace=ml,agents.rbac=true,agents.secrets={*}"),
    "bare": (
        *("--set", "crds.install=false,rbac.create=false,agents.policies=false,priorityClasses.enabled=false"),
        *("--set", "controller.serviceAccount.create=false,controller.serviceAccount.name=theirs"),
        *("--set", "controller.podDisruptionBudget.enabled=false"),
    ),
}
"""Arguments of helm, by what they are about."""


def tool(name: str) -> str:
    """Return the path of a tool, or fail the test."""
    found = find_tool(name)
    if not found:
        pytest.fail(f"this test needs {name}, and there is none: `{COMMAND} {name}` builds it, or put it on PATH")
    return found


def run(name: str, *args: str, home: Path | None = None, code: int = 0, **env: str) -> str:
    """Run a tool and return what it wrote; its exit status is asserted."""
    folders = {f"HELM_{kind}_HOME": str(home / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")} if home else {}
    done = subprocess.run(
        [tool(name), *args],
        env={**os.environ, **folders, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == code, f"{name} {' '.join(args)}: exit {done.returncode}\n{done.stdout}"
    return done.stdout


def objects_in(text: str) -> list[dict[str, Any]]:
    return [each for each in yaml.load_all(text, yaml.CSafeLoader) if each]


def render(*args: str, release: str = "llmkube", namespace: str = NAMESPACE) -> list[dict[str, Any]]:
    """Return what the chart makes of these arguments, with an image."""
    return objects_in(run("helm", "template", release, str(CHART), "--namespace", namespace, *OUR_IMAGE, *args))


def named(objects: Iterable[Object], kind: str) -> dict[str, Any]:
    """Return the objects of a kind by their names."""
    return {each["metadata"]["name"]: each for each in objects if each["kind"] == kind}
