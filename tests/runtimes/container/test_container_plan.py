import math

import attrs
import pytest

from llmkube.runtimes.container.container_plan import (
    ContainerPlan,
    ModelFile,
    MountPaths,
    Probe,
    Probes,
    Variable,
    requests_in_flight,
)
from llmkube.runtimes.plan import Placeholder

PLAN = ContainerPlan(
    runtime="x",
    container_name="x",
    image="x",
    port=1,
    args=("--model", Placeholder.MODEL, "--mmproj", ModelFile("sub/p.gguf"), "-md", Placeholder.DRAFT, "{model}"),
    env=(
        Variable("HF_HOME", Placeholder.CACHE),
        Variable("A", "{cache}"),
        Variable("S", value_from={"secretKeyRef": {}}),
    ),
    probes=Probes.tcp(),
)
PLACES = MountPaths(model="/models/k/sub/m.gguf", folder="/models/k", draft="/d/m.gguf", cache="/cache")


def test_slots_are_filled_and_a_users_equal_text_is_not():
    """A user's text that looks like a slot stays unchanged."""
    assert PLAN.render_words(PLAN.args, PLACES) == [
        "--model", "/models/k/sub/m.gguf", "--mmproj", "/models/k/sub/p.gguf", "-md", "/d/m.gguf", "{model}"
    ]  # fmt: skip
    assert PLAN.render_env(PLACES) == [
        {"name": "HF_HOME", "value": "/cache"},
        {"name": "A", "value": "{cache}"},
        {"name": "S", "valueFrom": {"secretKeyRef": {}}},
    ]


def test_the_name_of_a_file_is_literal():
    """In arguments, where a kubelet replaces `$(NAME)`, it is escaped; in a hook it is not."""
    odd = attrs.evolve(PLACES, model="/models/k/$(HOME)$$.gguf", folder="/models/$k")
    plan = attrs.evolve(
        PLAN, post_start=("load", Placeholder.MODEL, "$(HOME)"), env=(Variable("M", Placeholder.MODEL),)
    )
    assert plan.render_words((Placeholder.MODEL, ModelFile("$p"), "$(HOME)"), odd) == [
        "/models/k/$$(HOME)$$$$.gguf", "/models/$$k/$$p", "$(HOME)"
    ]  # fmt: skip
    assert plan.render_env(odd) == [{"name": "M", "value": "/models/k/$$(HOME)$$$$.gguf"}]
    assert plan.render_hook(odd) == ["load", "/models/k/$(HOME)$$.gguf", "$(HOME)"]


@pytest.mark.parametrize(
    ("args", "weights", "cache"),
    [
        ((), False, True),
        (("{model}", "{cache}"), False, True),
        ((Placeholder.MODEL,), True, True),
        ((Placeholder.FOLDER,), True, True),
        ((ModelFile("p"),), True, True),
        ((Placeholder.DRAFT,), False, True),
    ],
)
def test_a_plan_lists_the_files_to_mount(args, weights, cache):
    """The Model's files are mounted exactly if a slot of the plan refers to one."""
    plan = attrs.evolve(PLAN, args=args)
    assert (plan.uses_weights, plan.uses_cache) == (weights, cache)
    assert not attrs.evolve(plan, env=()).uses_cache


@pytest.mark.parametrize(
    "change",
    [
        {"args": (*PLAN.args[:-1], Placeholder.MODEL)},
        {"args": ("--model", Placeholder.MODEL, "--mmproj", "sub/p.gguf", "-md", Placeholder.DRAFT, "{model}")},
        {"env": ()},
        {"probes": Probes.http("/")},
        {"image": "y"},
        {"port": 2},
        {"post_start": ("a",)},
    ],
)
def test_the_digest_distinguishes_plans(change):
    """Every part of the container is included, a slot against its own text as well."""
    assert attrs.evolve(PLAN, **change).digest != PLAN.digest


def test_the_digest_ignores_fields_without_effect():
    """A field that is not honoured changes no container."""
    assert attrs.evolve(PLAN, not_honoured=("spec.x",)).digest == PLAN.digest


NUMBERS = {"periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 3}


@pytest.mark.parametrize(
    ("probe", "manifest"),
    [
        (Probe("/health"), {"httpGet": {"path": "/health", "port": "http"}, **NUMBERS}),
        (Probe(), {"tcpSocket": {"port": "http"}, **NUMBERS}),
        (Probe(command=("a", "b")), {"exec": {"command": ["a", "b"]}, **NUMBERS}),
        (Probe("/", override={"failureThreshold": 60}),
         {"httpGet": {"path": "/", "port": "http"}, **NUMBERS, "failureThreshold": 60}),
        (Probe("/", override={"tcpSocket": {"port": 8080}, "initialDelaySeconds": 5}),
         {"tcpSocket": {"port": 8080}, **NUMBERS, "initialDelaySeconds": 5}),
        (Probe("/", override={"grpc": {"port": 1}}), {"grpc": {"port": 1}, **NUMBERS}),
        (Probe("/", period_seconds=15, override={"failureThreshold": 9}),
         {"httpGet": {"path": "/", "port": "http"}, **NUMBERS, "periodSeconds": 15, "failureThreshold": 9}),
    ],
)  # fmt: skip
def test_an_override_is_merged_into_a_probe(probe, manifest):
    """There is always exactly one handler: the user's if there is one, with our numbers by default."""
    assert probe.manifest() == manifest


STARTUP = Probes.http("/health").startup


@pytest.mark.parametrize(
    ("override", "period", "threshold"),
    [
        ({}, 1, 1800),
        ({"failureThreshold": 60}, 10, 60),
        ({"periodSeconds": 30}, 30, 60),
        ({"periodSeconds": 5, "failureThreshold": 12}, 5, 12),
        ({"periodSeconds": [1]}, [1], 1800),
        ({"httpGet": {"path": "/up", "port": 8080}}, 1, 1800),
    ],
)
def test_a_loading_engine_is_probed_every_second_for_half_an_hour(override, period, threshold):
    """The half hour is kept for another period; a threshold alone applies to Kubernetes' own ten seconds."""
    manifest = attrs.evolve(STARTUP, override=override).manifest()
    assert (manifest["periodSeconds"], manifest["failureThreshold"]) == (period, threshold)


NAMES = ("llamacpp:requests_processing", "llamacpp:requests_deferred")
IDLE = "# HELP x y\nllamacpp:requests_processing 0\nllamacpp:requests_deferred 0\n"


@pytest.mark.parametrize(
    ("text", "requests"),
    [
        (IDLE, 0),
        (IDLE.replace("processing 0", "processing 1"), 1),
        (IDLE.replace("deferred 0", "deferred 2.0"), 2),
        (IDLE.replace("processing 0", 'processing{model="a b} c"} 0'), 0),
        (IDLE + 'llamacpp:requests_processing{model="x"} 3 1700000000\n', 3),
        (IDLE.replace("processing 0", "processing"), None),
        ("llamacpp:requests_processing 0\n", None),
        ("llamacpp:requests_processing_total 5\nllamacpp:requests_processing 0\nllamacpp:requests_deferred 0\n", 0),
        ("", None),
    ],
)
def test_a_missing_metric_is_not_zero(text, requests):
    """Every metric has to be present and a number, in any of its labels; otherwise the count is unknown."""
    assert requests_in_flight(text, NAMES) == requests


def test_an_invalid_metric_is_not_zero():
    """An engine that reports NaN is not idle."""
    found = requests_in_flight(IDLE.replace("processing 0", "processing NaN"), NAMES)
    assert found is not None
    assert math.isnan(found)
