"""Slots are known where the spec alone tells them."""

import pytest

from llmkube.k8s.crd.inferenceservice import Autoscaling, HostReplicas, InferenceServiceSpec
from llmkube.router.config.compile_backend import is_replicated, slots_of, splits_cache


@pytest.mark.parametrize(
    ("changes", "slots"),
    [
        ({}, 1),
        ({"parallel_slots": 4}, 4),
        ({"parallel_slots": 4, "replicas": 3}, 12),
        ({"parallel_slots": 4, "runtime": "llama-server"}, 4),
        ({"parallel_slots": 4, "extra_args": ("--mlock",)}, 4),
        ({"parallel_slots": 4, "replicas": 0}, 0),
        ({"parallel_slots": 4, "runtime": "vllm"}, 0),
        ({"parallel_slots": 4, "runtime": "llamacpp-router"}, 0),
        ({"parallel_slots": 4, "autoscaling": Autoscaling(max_replicas=4)}, 0),
        ({"parallel_slots": 4, "hosts": HostReplicas(model_ref="m")}, 0),
        ({"parallel_slots": 4, "command": ("./serve",)}, 0),
        ({"extra_args": ("--parallel", "8")}, 0),
        ({"extra_args": ("--parallel=8",)}, 0),
        ({"extra_args": ("-np", "8")}, 0),
    ],
)
def test_slots_of_a_service(changes, slots):
    """0 wherever something else has a say."""
    assert slots_of(InferenceServiceSpec(model_ref="m", **changes)) == slots


@pytest.mark.parametrize(
    ("changes", "several"),
    [
        ({}, False),
        ({"parallel_slots": 4}, False),
        ({"replicas": 3}, True),
        ({"replicas": 0}, True),
        ({"autoscaling": Autoscaling(max_replicas=4)}, True),
        ({"hosts": HostReplicas(model_ref="m")}, True),
    ],
)
def test_several_engines_answer_at_one_address(changes, several):
    """Also where their number changes."""
    assert is_replicated(InferenceServiceSpec(model_ref="m", **changes)) == several


@pytest.mark.parametrize(
    ("changes", "splits"),
    [
        ({}, True),
        ({"parallel_slots": 4}, True),
        ({"parallel_slots": 4, "extra_args": ("--kv-unified",)}, False),
        ({"parallel_slots": 4, "extra_args": ("-kvu",)}, False),
        ({"parallel_slots": 4, "extra_args": ("--kv-unified", "--no-kv-unified")}, None),
        ({"parallel_slots": 4, "extra_args": ("--kv-unified-per-slot",)}, None),
        ({"parallel_slots": 4, "runtime": "vllm"}, None),
        ({"extra_args": ("--parallel", "8")}, None),
    ],
)
def test_each_slot_has_a_part_of_the_cache_or_all_share_it(changes, splits):
    """What is not clear is not known, and no figure is made of it."""
    assert splits_cache(InferenceServiceSpec(model_ref="m", **changes)) is splits
