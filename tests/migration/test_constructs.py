"""Every construct of the original's manifests has its effect, or the status reports why not."""

import json
import re
from pathlib import Path

import pytest
import trio

from controller.cluster import SETTLED
from controller.podcluster import open_pods
from controller.podobjects import HUB_FILE
from llmkube.k8s.builtins import Service
from llmkube.k8s.crd.definitions import all_crds
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.errors import InvalidError, SchemaMismatchError
from llmkube.k8s.workloads import Deployment, HorizontalPodAutoscaler, PodDisruptionBudget
from migration.constructs import CONSTRUCTS, ELSEWHERE

KUBERNETES_OWN = {"affinity", "env", "podSecurityContext", "securityContext", "extraVolumes", "extraVolumeMounts"}
KUBERNETES_OWN |= {"tolerations", "prefetchTolerations", "topologySpreadConstraints", "probeOverrides"}
"""Fields that Kubernetes defines: they are passed through, and their own fields are not checked."""


async def write(hands, construct):
    """Apply both objects; return the API server's error, if it refuses one."""
    model = dict(construct.model)
    try:
        await hands.create_model(construct.name, model.pop("source", HUB_FILE), **model)
        await hands.create_service(construct.name, **{"modelRef": construct.name, **construct.service})
    except (InvalidError, SchemaMismatchError) as refusal:
        return str(refusal)
    return ""


async def made(hands, name):
    """Return all objects made of a construct as one text, with argv as one line."""
    words = []
    for kind in (Deployment, Service, HorizontalPodAutoscaler, PodDisruptionBudget):
        if await hands.exists(kind, name):
            one = await hands.json(kind, name)
            containers = one["spec"].get("template", {}).get("spec", {}).get("containers", ())
            words += (" ".join([*each.get("command", ()), *each.get("args", ())]) for each in containers)
            words.append(json.dumps(one))
    return "\n".join(words)


async def condition_texts(hands, name):
    """Return the conditions of both objects as one text."""
    objects = [await hands.json(kind, name) for kind in (InferenceService, Model) if await hands.exists(kind, name)]
    return "\n".join(f"{one['reason']}: {one.get('message', '')}" for each in objects
                     for one in each.get("status", {}).get("conditions", ()))  # fmt: skip


def ignored(status):
    """Return the fields that a status reports as without effect."""
    found = re.search("FieldsIgnored: .*: (.*)", status)
    return set(found[1].split(", ")) if found else set()


def own(construct):
    """Return the paths of a construct's fields as a status names them."""
    within = ((f"Model.spec.{name}", value) for name, value in construct.model.items())
    todo = [*((f"spec.{name}", value) for name, value in construct.service.items()), *within]
    found = set()
    while todo:
        path, value = todo.pop()
        found.add(path)
        todo += ((f"{path}.{name}", each) for name, each in value.items()) if isinstance(value, dict) else ()
    return found - {"Model.spec.hardware.accelerator"}


@pytest.mark.ci
async def test_every_construct_has_an_effect_or_a_report(autojump_clock):
    """A strict server accepts each construct, and its text is in the resulting objects or in its status."""
    wrong = {}
    async with open_pods() as hands, trio.open_nursery() as nursery:
        refused = {construct.name: await write(hands, construct) for construct in CONSTRUCTS}
        nursery.start_soon(hands.run_kubernetes)
        await trio.sleep(60 + SETTLED)
        for construct in CONSTRUCTS:
            objects, status = (
                await made(hands, construct.name),
                refused[construct.name] + await condition_texts(hands, construct.name),
            )
            lost = {path for path in ignored(status) if path in own(construct)} if construct.gives else construct.lost
            if construct.gives not in objects or construct.says not in status or lost != construct.lost:
                wrong[construct.name] = (construct.gives or construct.says, lost, objects, status)
        nursery.cancel_scope.cancel()
    assert not wrong, "\n\n".join(f"{name}: {seen}" for name, seen in wrong.items())


def test_every_construct_has_one_verdict():
    """Each construct has exactly one expected text, and no name is used twice."""
    assert [one.name for one in CONSTRUCTS if bool(one.gives) == bool(one.says)] == []
    assert len({one.name for one in CONSTRUCTS}) == len(CONSTRUCTS)


def paths(kind, schema):
    """Yield the path of each field, two levels deep; a field with fields of its own is represented by them."""
    for name, field in schema["properties"].items():
        within = {} if name in KUBERNETES_OWN else field.get("properties") or {}
        yield from (f"{kind} {name}.{each}" for each in within)
        if not within:
            yield f"{kind} {name}"


def used(kind, spec):
    for name, value in spec.items():
        yield f"{kind} {name}"
        if isinstance(value, dict):
            yield from (f"{kind} {name}.{each}" for each in value)


def untouched(constructs):
    """Return the fields of both kinds that no construct sets."""
    known = {"Model", "InferenceService"}
    there = set()
    for crd in all_crds():
        if (kind := crd["spec"]["names"]["kind"]) in known:
            [version] = crd["spec"]["versions"]
            there |= set(paths(kind, version["schema"]["openAPIV3Schema"]["properties"]["spec"]))
    set_here = {f"Model {name}" for name in ("source", "hardware.accelerator")}
    for one in constructs:
        set_here |= {*used("Model", one.model), *used("InferenceService", one.service)}
    return there - set_here


def test_every_field_is_in_a_construct():
    """A field that no construct sets has a reason, and a test that covers it."""
    assert untouched(CONSTRUCTS) == set(ELSEWHERE)
    for why in ELSEWHERE.values():
        for path in [word.strip("()") for word in why.split() if "tests/" in word]:
            assert (Path(__file__).parents[2] / path).is_file(), path


def test_a_field_without_a_construct_is_noticed():
    assert "InferenceService jinja" in untouched([one for one in CONSTRUCTS if "jinja" not in one.service])
