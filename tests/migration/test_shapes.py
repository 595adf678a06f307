"""Manifests for the Go implementation are accepted here as they are, or the reason is reported."""

import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import attrs
import httpx
import pytest

from llmkube.controller.reconcile.workload_plans import RENDERED
from llmkube.controller.render.pod_policy import refusal_message, service_refusals
from llmkube.controller.render.storage import source_volume
from llmkube.controller.settings import WorkloadSettings
from llmkube.controller.status.job_result import JobFacts
from llmkube.controller.status.model_status import assess_supply
from llmkube.controller.status.supply import Usage, choose_supply, weights_path
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.definitions import all_crds
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.runtimes.llama_fields import additional_ids
from llmkube.runtimes.registry import check, container_plan_for
from memory_api_server import open_memory_api_server
from migration.shapes import POOL, ROUTER, SHAPES

SETTINGS = WorkloadSettings(image="example.org/llmkube:test")
BY_ID = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)


@asynccontextmanager
async def open_server() -> AsyncIterator[httpx.AsyncClient]:
    async with (
        open_memory_api_server(utcnow=lambda: datetime.now(UTC), rng=random.Random(0)) as memory,
        httpx.AsyncClient(transport=memory.transport, base_url="http://apiserver", timeout=30) as http,
    ):
        await memory.server.ensure(all_crds())
        await http.post("/api/v1/namespaces", json={"metadata": {"name": "ai"}})
        yield http


async def apply(http, body, manager="kubectl", **params):
    path = f"/apis/{body['apiVersion']}/namespaces/ai/{body['kind'].lower()}s/{body['metadata']['name']}"
    headers = {"content-type": "application/apply-patch+yaml"}
    params = {"fieldManager": manager, "fieldValidation": "Strict", **params}
    return await http.patch(path, json=body, params=params, headers=headers)


def objects(shape):
    model, service = shape.manifests()
    return decode(InferenceService, service), decode(Model, model)


@BY_ID
async def test_a_shape_is_applied_by_a_strict_client(shape):
    """No field of it is unknown or refused by the schema."""
    async with open_server() as http:
        for body in shape.manifests():
            answer = await apply(http, body)
            assert answer.status_code == 201, answer.text


@BY_ID
def test_a_shape_is_planned(shape):
    """Its container is planned, no field is ignored, and no flag is on the command line twice."""
    service, model = objects(shape)
    plan = container_plan_for(service, model, rendered=RENDERED)
    by_fetching = ("Model.spec.source", "Model.spec.mmproj", "Model.spec.files")
    assert [path for path in plan.not_honoured if not path.startswith(by_fetching)] == list(shape.ignored)
    words = [str(word) for word in plan.args]
    assert shape.says in " ".join(words)
    twice = {word for word, count in Counter(words).items() if count > 1 and word.startswith("--")}
    assert not twice
    assert additional_ids(shape.name, service.spec) == shape.aliases


@BY_ID
def test_a_shape_is_allowed_or_the_refusal_names_what_would_allow_it(shape):
    """A refusal names the field that the operator of a cluster must allow first, and the chart's value."""
    service, _ = objects(shape)
    refusals = service_refusals(service.spec, SETTINGS)
    assert " ".join(f"{one.field} workloads.allow.{one.value}" for one in refusals) == shape.refused
    if shape.refused:
        assert all(word in refusal_message(refusals) for word in shape.refused.split())
        allowing = WorkloadSettings(image="x", priority_classes=("ai-*",))
        assert not service_refusals(service.spec, allowing)


async def test_a_router_and_a_pool_are_applied():
    """They are kinds of ours."""
    async with open_server() as http:
        assert (await apply(http, ROUTER)).status_code == 201
        assert (await apply(http, POOL)).status_code == 201


async def test_a_router_that_their_server_has_stored_is_applied_again():
    """A provider that their schema has called local is stored unchanged when the user applies the file again."""
    provider = {"name": "far", "external": {"provider": "openai", "model": "gpt-5"}}
    stored = {**ROUTER, "spec": {**ROUTER["spec"], "backends": [*ROUTER["spec"]["backends"], provider]}}
    defaulted = {**stored["spec"], "backends": [{**each, "tier": "local"} for each in stored["spec"]["backends"]]}
    async with open_server() as http:
        assert (await apply(http, {**stored, "spec": defaulted}, "theirs")).status_code == 201
        for _ in range(2):
            answer = await apply(http, stored)
            assert answer.status_code == 200, answer.text


def test_the_shapes_are_as_many_as_were_found():
    """Seventeen services with their Models (one with another's claim), a pool and a router are 36 documents."""
    assert 2 * len(SHAPES) + 2 == 36


@pytest.mark.parametrize("shape", [one for one in SHAPES if one.args], ids=lambda shape: shape.name)
def test_the_arguments_of_a_shape_are_taken_on_a_host(shape):
    """No host refuses arguments that its pods accept: none of these flags reaches outside the engine."""
    service, model = objects(shape)
    metal = attrs.evolve(model.spec.hardware, accelerator="metal")
    check(service, attrs.evolve(model, spec=attrs.evolve(model.spec, hardware=metal)))


@pytest.mark.parametrize(
    ("source", "files", "by", "path", "volume"),
    [
        ("https://h/m.gguf", (), "job", "", None),
        ("https://huggingface.co/org/repo/resolve/main/m.gguf", (), "job", "", None),
        ("hf://org/repo@v1", ("m.gguf",), "job", "", None),
        ("org/repo", ("m.gguf",), "job", "", None),
        ("s3://bucket/m.gguf", (), "job", "", None),
        ("pvc://claim/a/m.gguf", (), "claim", "/model-source/a/m.gguf",
         {"persistentVolumeClaim": {"claimName": "claim", "readOnly": True}}),
        ("/models/m.gguf", (), "nothing", "", None),
        ("oci://r.io/phi:q4", ("a/m.gguf",), "image", "/model-source/a/m.gguf",
         {"image": {"reference": "r.io/phi:q4", "pullPolicy": "Always"}}),
        (f"oci://r.io/phi@sha256:{'0' * 64}", ("m.gguf",), "image", "/model-source/m.gguf",
         {"image": {"reference": f"r.io/phi@sha256:{'0' * 64}", "pullPolicy": "IfNotPresent"}}),
        ("oci://r.io/phi:q4", (), "nothing", "", None),
    ],
)  # fmt: skip
def test_every_form_of_a_source_has_one_that_brings_it(source, files, by, path, volume):
    """Each source in the original's table is provided by a Job, a claim or an image, or the gap is reported."""
    head = {"metadata": {"name": "m"}, "spec": {"source": source, "files": list(files)}}
    model = decode(Model, head)
    supply = choose_supply(model, [Usage()], SETTINGS)
    assert (supply.by, weights_path(model, supply)) == (by, path)
    if volume:
        assert source_volume(model) == {"name": "model-source", **volume}
    verdict = assess_supply(model, supply, JobFacts())
    assert bool(verdict.message)
    assert (verdict.phase == "Ready") == (by == "image")
