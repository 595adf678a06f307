"""Engines of a host's owner: what an object can reach of their command line, and what is refused."""

import string
import typing
from collections.abc import Mapping
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService, InferenceServiceSpec
from llmkube.k8s.crd.model import Model
from llmkube.k8s.fields import wire_fields
from llmkube.runtimes.allowances import Allowances, EngineTemplate
from llmkube.runtimes.plan import EngineInfo, EngineNotConfiguredError, PlanError
from llmkube.runtimes.process.environment import ALLOWED
from llmkube.runtimes.process.generic import RUNTIME
from llmkube.runtimes.process.plan_inputs import PlanInputs
from llmkube.runtimes.registry import check, container_plan_for, plan_for
from llmkube.weights.formats.shape import FolderFacts
from llmkube.weights.store.blobs import WeightsFile

SPEECH = EngineTemplate(
    "/opt/speech",
    ("--listen={host}:{port}", "--model", "{model}", "-t", "{options.threads}", "--ctx={ctx}", '{"a": "{b c}"}'),
    memory="2Gi",
    options={"threads": ("2", "4"), "mode": ("fast", "good")},
    env={"TZ": "UTC", "SPEECH": "{}"},
    health="/ready",
    ready_pattern="listening",
)
ALLOWED_HERE = Allowances(engines={"speech": SPEECH})
MODEL = decode(Model, {"metadata": {"name": "m"}, "spec": {"source": "/m", "format": "custom"}})


def service(**spec):
    spec = {"engine": {"name": "speech"}, **spec}
    return decode(
        InferenceService, {"metadata": {"name": "s"}, "spec": {"modelRef": "m", "runtime": "generic", **spec}}
    )


def planned(asked, template=SPEECH, model=MODEL):
    weights, engine = WeightsFile(Path("/w {port}"), 9, None, "i"), EngineInfo("/opt/speech", "speech", frozenset())
    allowances = Allowances(engines={"speech": template})
    return plan_for(PlanInputs(asked, model, weights, FolderFacts(), engine, alias="s", allowances=allowances))


def words(plan):
    engine = EngineInfo("/opt/speech", "speech", frozenset())
    return plan.render(engine, model="/w {port}", host="127.0.0.1", port=81, keys="/k")


def test_each_item_of_the_template_is_one_argument():
    """Placeholders have the computed and the chosen values, and what fills them is not searched for placeholders."""
    plan = planned(service(contextSize=512, engine={"name": "speech", "options": {"threads": "4"}}))
    assert words(plan) == (
        "/opt/speech", "--listen=127.0.0.1:81", "--model", "/w {port}", "-t", "4", "--ctx=512", '{"a": "{b c}"}',
    )  # fmt: skip
    assert (plan.ready_path, plan.ready_pattern, plan.memory_bytes) == ("/ready", "listening", 2 << 30)
    assert (plan.not_honoured, plan.demand, plan.mode) == ((), None, "")
    assert not RUNTIME.takes_keys


@pytest.mark.parametrize(
    "edited",
    [{"program": "/opt/other"}, {"args": ("{port}",)}, {"env": {}}, {"options": {"threads": ("4", "2")}}],
    ids=str,
)
def test_an_edited_template_replaces_the_engine(edited):
    """An option that no service selects, and what only the agent reads, restarts nothing."""
    before = planned(service())
    assert planned(service(), attrs.evolve(SPEECH, **edited)).digest != before.digest
    harmless = attrs.evolve(SPEECH, memory="4Gi", options={**SPEECH.options, "mode": ("good",)}, ready_pattern="")
    assert planned(service(), harmless).digest == before.digest


def test_a_context_that_no_argument_has_is_reported():
    """Like every field without effect, by its name."""
    template = attrs.evolve(SPEECH, args=("{host}", "{port}"))
    ignored = {"contextSize": 512, "args": ["--x"], "command": ["sh"], "image": "i", "bindAddress": "0.0.0.0"}
    found = planned(service(**ignored), template).not_honoured
    assert sorted(found) == ["spec.args", "spec.bindAddress", "spec.command", "spec.contextSize", "spec.image"]


@pytest.mark.parametrize(
    ("spec", "field", "message"),
    [
        ({"engine": None}, "spec.engine", r"no image; set spec.engine.name"),
        ({"engine": {"name": "x"}}, "spec.engine.name", r'"x" is not configured on this host; add \[engines.x\] to'),
        ({"engine": {"name": "speech", "options": {"t": "4"}}}, "spec.engine.options", "no option 't'; use threads, m"),
        (
            {"engine": {"name": "speech", "options": {"threads": "8"}}},
            "spec.engine.options",
            "no value '8' for threads",
        ),
        ({"extraArgs": ["--x"]}, "spec.extraArgs", "its owner's"),
        ({"env": [{"name": "LD_PRELOAD", "value": "/x"}]}, "spec.env", "loads code"),
    ],
)
def test_what_is_not_the_owners_is_refused(spec, field, message):
    """Before anything is downloaded, by the field's name and with a fix."""
    with pytest.raises(PlanError, match=message) as caught:
        check(service(**spec), MODEL, ALLOWED_HERE)
    assert caught.value.field == field
    assert isinstance(caught.value, EngineNotConfiguredError) is ('"x"' in message)


def test_a_format_that_the_owner_does_not_list_is_refused():
    """The fix is the owner's as well as the author's."""
    model = attrs.evolve(MODEL, spec=attrs.evolve(MODEL.spec, format="gguf"))
    with pytest.raises(PlanError, match=r'engine "speech" reads custom, not gguf; .* list gguf in its formats'):
        check(service(), model, ALLOWED_HERE)


def test_pods_run_no_engine_of_a_host():
    """But a service for pods and hosts may name an image for the pods, and an engine for the hosts."""
    with pytest.raises(PlanError, match=r"pods serve this service; remove it and name an image") as caught:
        container_plan_for(service(image="example.com/speech:1"), MODEL)
    assert caught.value.field == "spec.engine"
    both = service(image="example.com/speech:1", hosts={"modelRef": "m"})
    assert container_plan_for(both, MODEL, rendered=["spec.hosts"]).not_honoured == ()


HOSTILE = st.text(max_size=20) | st.sampled_from(
    [
        "--evil",
        "{program}",
        "{model}",
        "{options.mode}",
        "/bin/sh",
        "../x",
        "; rm -rf /",
        "a b",
        "$(id)",
        "\0",
        "\n--x",
        "4",
    ]
)


def hostile(hint, name=""):
    """Return a strategy for values of a field's type; every text in them is hostile."""
    if name == "options":
        return st.dictionaries(st.sampled_from(["threads", "mode"]) | HOSTILE, HOSTILE, max_size=3)
    if attrs.has(hint):
        fields = {each.attribute: st.none() | hostile(each.type, each.attribute) for each in wire_fields(hint)}
        filled = st.fixed_dictionaries({}, optional=fields)
        return filled.map(lambda values: _built(hint, values))
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        return st.lists(hostile(arguments[0]), max_size=3).map(tuple)
    if origin is not None and issubclass(origin, Mapping):
        return st.dictionaries(HOSTILE, HOSTILE, max_size=2)
    return {bool: st.booleans(), int: st.integers(), float: st.floats()}.get(hint, HOSTILE)


def _built(kind, values):
    """Return an object with these values, and texts for the fields that it requires."""
    required = {each.attribute: "4" for each in wire_fields(kind) if each.default is attrs.NOTHING}
    return kind(**required | {name: value for name, value in values.items() if value is not None})


FIELDS = {each.attribute: each.type for each in wire_fields(InferenceServiceSpec)}
TEMPTING = ("engine", "args", "extra_args", "command", "image", "env", "context_size", "bind_address")


@given(st.data())
def test_no_field_adds_an_argument_a_program_or_a_path(data):
    """Whatever the fields of a service contain: it is refused, or its command line differs in listed values only."""
    names = data.draw(st.lists(st.sampled_from([*FIELDS, *TEMPTING * 5]), max_size=4, unique=True))
    values = {name: data.draw(hostile(FIELDS[name], name), name) for name in names} | {"runtime": "generic"}
    asked = service()
    asked = attrs.evolve(asked, spec=attrs.evolve(asked.spec, **values))
    try:
        check(asked, MODEL, ALLOWED_HERE)
        plan = planned(asked)
    except PlanError:
        return
    found = words(plan)
    assert (found[:4], found[4], found[7:]) == (
        ("/opt/speech", "--listen=127.0.0.1:81", "--model", "/w {port}"), "-t", ('{"a": "{b c}"}',),
    )  # fmt: skip
    assert found[5] in SPEECH.options["threads"]
    assert found[6].startswith("--ctx=")
    assert set(found[6].removeprefix("--ctx=").removeprefix("-")) <= set(string.digits)
    assert (plan.program, plan.ready_path, plan.ready_pattern) == ("/opt/speech", "/ready", "listening")
    assert dict(plan.env).items() >= SPEECH.env.items()
    assert dict(plan.env).keys() <= ALLOWED.keys() | SPEECH.env.keys()
