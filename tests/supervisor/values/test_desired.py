import attrs
import pytest

from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.supervisor.values.desired import Desired, desired_here, draft_key

METAL = frozenset({"metal"})


def service(uid="s1", **spec):
    metadata = {"name": "chat", "namespace": "default", "uid": uid, **spec.pop("metadata", {})}
    return decode(InferenceService, {"metadata": metadata, "spec": {"modelRef": "m", **spec}})


def model(accelerator="metal", uid="m1", **spec):
    spec = {"source": "builtin://demo", "hardware": {"accelerator": accelerator}, **spec}
    return decode(Model, {"metadata": {"name": "m", "namespace": "default", "uid": uid}, "spec": spec})


@pytest.mark.parametrize(
    ("service_", "model_", "belongs"),
    [
        (service(), model(), True),
        (service(replicas=0), model(), True),
        (service(), model("cuda"), False),
        (service(), model("cpu"), False),
        (service(), None, False),
        (None, model(), False),
        (service(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}), model(), False),
    ],
)
def test_services_of_this_host(service_, model_, belongs):
    """A service belongs to this host exactly if it exists, is not being deleted and its Model matches this host."""
    assert (desired_here(service_, model_, None, METAL) is not None) == belongs


def test_a_model_without_hardware_asks_for_cpu():
    """An absent hardware block means the schema's default, cpu."""
    bare = decode(Model, {"metadata": {"name": "m", "namespace": "default"}, "spec": {"source": "builtin://demo"}})
    assert desired_here(service(), bare, None, frozenset({"cpu"})) is not None


def test_a_deleted_model_does_not_stop_a_running_engine():
    """A running service whose Model disappears keeps the last Model that was known."""
    current = Desired(service(), model())
    kept = desired_here(service(replicas=1), None, current, METAL)
    assert kept is not None
    assert kept.model == model()


def test_a_reference_to_a_missing_model_does_not_reuse_the_old_one():
    """A service that now refers to another Model does not run with the former one's weights."""
    current = Desired(service(), model())
    assert desired_here(service(modelRef="other"), None, current, METAL) is None


def test_a_draft_is_part_of_the_desired_state():
    """A service keeps a draft Model that disappears, drops one that it no longer names, and takes another one."""
    with_draft = service(speculativeDecoding={"type": "draft", "draftModelRef": "small"})
    draft = attrs.evolve(model(), metadata=attrs.evolve(model().metadata, name="small"))
    assert draft_key(with_draft) == draft.key
    assert draft_key(service(extraArgs=["-md", "/x.gguf"])) is None
    assert draft_key(service(extraArgs=["-md", "../x"])) is None
    desired = desired_here(with_draft, model(), None, METAL, draft=draft)
    assert desired == Desired(with_draft, model(), draft)
    assert desired_here(with_draft, model(), desired, METAL) == desired
    assert desired_here(service(), model(), desired, METAL) == Desired(service(), model())
    assert not desired.has_same_spec(Desired(with_draft, model()))
    assert not desired.has_same_spec(
        attrs.evolve(desired, draft=attrs.evolve(draft, spec=model(quantization="Q8_0").spec))
    )
    assert desired.has_same_spec(Desired(with_draft, model(), draft))


@pytest.mark.parametrize(("spec", "running"), [({}, True), ({"replicas": 0}, False), ({"suspend": True}, False)])
def test_when_a_process_is_wanted(spec, running):
    """Zero replicas and suspension want no process, and nothing else does."""
    assert Desired(service(**spec), model()).running is running


def test_only_identity_and_specs_change_the_desired_state():
    """Status, labels and resourceVersions change nothing; uid and spec do."""
    desired = Desired(service(), model())
    assert desired.has_same_spec(Desired(service(metadata={"labels": {"a": "b"}, "resourceVersion": "7"}), model()))
    assert not desired.has_same_spec(Desired(service(metadata={"generation": 9}), model()))
    assert not desired.has_same_spec(Desired(service(contextSize=512), model()))
    assert not desired.has_same_spec(Desired(service(uid="s2"), model()))
    assert not desired.has_same_spec(Desired(service(), model(quantization="Q8_0")))
    assert not desired.has_same_spec(None)
