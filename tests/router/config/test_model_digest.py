"""Engines have one digest where they answer alike, and another wherever something changes an answer."""

import attrs
import pytest

from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import HostReplicas, InferenceServiceSpec
from llmkube.k8s.crd.model import Model
from llmkube.k8s.crd.placement import EnvVar
from llmkube.router.config.model_digest import model_digest

MODEL = decode(Model, {"metadata": {"name": "m", "namespace": "ml", "uid": "u1"}, "spec": {"source": "org/repo"}})
SPEC = InferenceServiceSpec(model_ref="m")
DIGEST = "ab" * 32


def of(spec=None, model=MODEL, **changes):
    return model_digest(attrs.evolve(SPEC if spec is None else spec, **changes), model)


def with_(part, **changes):
    return attrs.evolve(MODEL, **{part: attrs.evolve(getattr(MODEL, part), **changes)})


ALIKE = {
    "more slots and replicas": {"parallel_slots": 4, "replicas": 2, "context_size": 4096},
    "a Mac": {"runtime": "llama-server"},
    "another name of the Model": {"model_ref": "n"},
    "where it runs": {"extra_args": ("-ngl", "99", "--threads=4", "--mlock"), "moe_cpu_layers": 3},
    "what is not llama.cpp's": {"env": (EnvVar(name="CUDA_VISIBLE_DEVICES", value="1"),)},
}
OTHER = {
    "another template": {"extra_args": ("--chat-template", "chatml")},
    "another adapter": {"extra_args": ("--lora", "x.gguf")},
    "no template": {"jinja": False},
    "a smaller cache": {"cache_type_k": "q8_0"},
    "no thoughts": {"reasoning_budget": 0},
    "other metadata": {"metadata_overrides": ("a=int:1",)},
    "a variable": {"env": (EnvVar(name="LLAMA_ARG_CHAT_TEMPLATE", value="chatml"),)},
}
NONE = {
    "another engine": {"runtime": "vllm"},
    "several models": {"runtime": "llamacpp-router"},
    "another program": {"command": ("./serve",)},
    "hosts with a model of their own": {"hosts": HostReplicas(model_ref="m")},
    "no beginnings": {"extra_args": ("--no-prefill-assistant",)},
}


@pytest.mark.parametrize("name", ALIKE)
def test_what_changes_no_answer_changes_no_digest(name):
    """One name over a CUDA service and a Mac is one model."""
    assert of(**ALIKE[name]) == of() != ""


@pytest.mark.parametrize("name", OTHER)
def test_what_changes_an_answer_changes_the_digest(name):
    """An answer is not begun by one template and ended by another."""
    assert of(**OTHER[name]) not in ("", of())


@pytest.mark.parametrize("name", NONE)
def test_what_cannot_be_told_has_none(name):
    """It goes on with no other engine's answers."""
    assert of(**NONE[name]) == ""


def test_weights_are_the_same_by_their_digest_or_by_their_object():
    """Two Models of one file are one; one Model whose source has changed is another."""
    assert of(model=None) == ""
    computed = with_("status", sha256=DIGEST)
    asked = attrs.evolve(with_("spec", sha256=DIGEST.upper()), metadata=attrs.evolve(MODEL.metadata, uid="u2"))
    assert of(model=computed) == of(model=asked) != of()
    assert of(model=with_("metadata", uid="u2")) != of()
    assert of(model=with_("spec", source="org/other")) != of()
    assert of(model=with_("status", source_etag="2")) != of()
    assert of(model=with_("spec", mmproj="p.gguf")) != of()
