"""Autoscalers may scale a service as they scale a Deployment."""

import trio

from controller.cluster import SETTLED
from controller.podcluster import open_pods
from llmkube.k8s.crd.definitions import crd_manifest
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.label_selectors import parse_selector
from llmkube.k8s.workloads import Deployment


async def test_the_selector_of_the_status_is_that_of_the_pods(autojump_clock):
    """What the scale subresource shows selects the pods' template, and nothing that an edit changes."""
    [version] = crd_manifest(InferenceService)["spec"]["versions"]
    path = version["subresources"]["scale"]["labelSelectorPath"]
    assert path == ".status.selector"
    async with open_pods() as hands:
        await hands.bring_up(podLabels={"team": "a"})
        text = (await hands.cluster.service()).status.selector
        live = (await hands.json(Deployment))["spec"]
        assert dict(pair.split("=") for pair in text.split(",")) == live["selector"]["matchLabels"]
        assert parse_selector(text).matches(live["template"]["metadata"]["labels"])
        assert "team" not in text


async def test_a_draft_that_the_engine_does_not_take_is_named(autojump_clock):
    """Only llama.cpp takes a draft from another Model; elsewhere the field is named as one without an effect."""
    draft = {"speculativeDecoding": {"type": "draft-simple", "draftModelRef": "small"}}
    said = {}
    async with open_pods() as hands:
        await hands.create_model()
        for runtime in ("llamacpp", "generic"):
            await hands.create_service(runtime, runtime=runtime, image="x", **draft)
            await trio.sleep(SETTLED)
            conditions = (await hands.cluster.service(runtime)).status.conditions
            [said[runtime]] = [one.message for one in conditions if one.type == "SpecHonoured"]
    assert "draftModelRef" not in said["llamacpp"]
    assert "spec.speculativeDecoding.draftModelRef" in said["generic"]
