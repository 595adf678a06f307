import datetime
from pathlib import Path

import attrs
import pytest

from llmkube.base.errors import ExternalError, UserError
from llmkube.k8s.builtins import EndpointSlice
from llmkube.k8s.codec import decode, encode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import GGUFStatus, Model
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.conditions import Statement
from llmkube.k8s.wire.reasons import Reason
from llmkube.runtimes.devices import Offload
from llmkube.supervisor.cluster import status
from llmkube.supervisor.cluster.status import Slot, gguf_status
from llmkube.supervisor.values.lifecycle import ServiceView
from llmkube.weights.errors import NotGGUFError
from llmkube.weights.formats.shape import GGUFFacts, Projector
from llmkube.weights.store.blobs import WeightsFile

T0 = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
CHAT = decode(InferenceService, {"metadata": {"name": "chat", "namespace": "ns"}, "spec": {"modelRef": "m"}})
MODEL = decode(Model, {"metadata": {"name": "m", "namespace": "ns"}, "spec": {"source": "builtin://demo"}})


def later(seconds):
    return T0 + datetime.timedelta(seconds=seconds)


def loaded(holds, reason, message=""):
    return Statement("Loaded", holds, reason, message, generation=1)


def test_a_transition_time_moves_only_when_the_status_flips():
    """A new reason or message with the same status keeps the transition time."""
    first = status.settle([loaded(False, "Loading")], (), now=later(0))
    second = status.settle([loaded(False, "Restarting", "again")], first, now=later(5))
    assert (second[0]["reason"], second[0]["lastTransitionTime"]) == ("Restarting", "2026-01-01T00:00:00Z")
    (third,) = status.settle([loaded(True, "Loaded")], second, now=later(9))
    assert third["lastTransitionTime"] == "2026-01-01T00:00:09Z"


def test_conditions_that_stay_the_same_exist_once():
    """Statements that change nothing give the conditions of before, which the written status has."""
    first = status.settle([loaded(False, "Loading")], (), now=later(0))
    assert status.settle([loaded(False, "Loading")], first, now=later(5)) is first


def test_a_condition_fits_into_the_api():
    """A message that is too long for Kubernetes is cut, not refused."""
    (condition,) = status.settle([loaded(False, "Loading", "x" * 100_000)], (), now=T0)
    assert len(condition["message"]) < 32_768


def test_every_condition_of_a_service_is_always_stated():
    """An unknown condition is Unknown since the object's creation, and no condition is ever left out."""
    conditions = status.settle([loaded(False, "Loading")], (), now=T0)
    metadata = attrs.evolve(CHAT.metadata, creation_timestamp="2025-01-01T00:00:00Z")
    patch = status.service_status(
        attrs.evolve(CHAT, metadata=metadata), conditions, ServiceView(Reason.LOADING), "Always"
    )
    reported = {one["type"]: (one["status"], one["lastTransitionTime"][:4]) for one in patch["status"]["conditions"]}
    assert reported.keys() == set(status.SERVICE_CONDITIONS)
    assert reported["Loaded"] == ("False", "2026")
    assert reported["Accepted"] == ("Unknown", "2025")


@pytest.mark.parametrize(
    ("view", "word"),
    [
        (ServiceView(Reason.LOADED, "loaded in 3 s"), ""),
        (ServiceView(Reason.SCALED_TO_ZERO, "replicas=0"), ""),
        (ServiceView(Reason.IDLE, "not loaded"), ""),
        (ServiceView(Reason.CRASH_LOOP, "exit code 1\nlast words"), "CrashLoopBackOff"),
    ],
)
def test_the_scheduling_status_names_the_reason_of_the_wait(view, word):
    """A service that serves, or should not, waits for nothing; the message is one line."""
    patch = status.service_status(CHAT, (), view, "OnRequest")["status"]
    assert patch["schedulingStatus"] == word
    assert "\n" not in patch["schedulingMessage"]
    assert patch["activation"] == "OnRequest"


@pytest.mark.parametrize(
    ("error", "reason"),
    [(NotGGUFError("x"), "NotGGUF"), (UserError("x"), "SourceInvalid"), (ExternalError("x"), "FetchFailed")],
)
def test_a_failed_fetch_has_a_reason_of_its_own(error, reason):
    """The condition's reason separates user errors from environment errors."""
    assert status.fetch_reason(error) == reason


def test_a_model_without_a_file_claims_no_file():
    """Path, size and header facts are absent until there is a file."""
    patch = status.model_status(MODEL, (), None, None)["status"]
    assert set(patch) == {"conditions"}


def test_agents_write_only_fields_that_hosts_may_write():
    """Otherwise the API server refuses it: the policies of hosts are generated from the same list."""
    serving = ServiceView(
        Reason.LOADED, "", engine="llama-server", build="b1", weights_format="gguf", offload=Offload("CUDA0", 20, 33)
    )
    reported = status.service_status(CHAT, (), serving, "Always")["status"]
    assert set(reported) == {*status.SERVICE_FIELDS, "conditions"}
    assert reported["acceleration"] == {"device": "CUDA0", "layersOffloaded": 20, "layersTotal": 33}
    seen = Projector("mlp", 8, vision=True, audio=False, shape=None, name="mmproj.gguf")
    weights, facts = WeightsFile(Path("/m.gguf"), 9, "0" * 64, "i"), attrs.evolve(FACTS, projector=seen)
    written = status.model_status(MODEL, (), weights, facts)["status"]
    assert set(written) == {*status.MODEL_FIELDS, "conditions"}


@pytest.mark.parametrize(
    ("slot", "words"),
    [
        (Slot(EndpointSlice, Key("default", "chat.mac")), "EndpointSlice default/chat.mac"),
        (Slot(InferenceService, Key("default", "chat"), "status"), "InferenceService default/chat/status"),
    ],
)
def test_a_slot_reads_as_an_object_in_a_log_line(slot, words):
    """Its kind, its key, and the subresource if there is one."""
    assert str(slot) == words


FACTS = GGUFFacts(
    architecture="llama",
    file_version=3,
    tensor_count=5,
    size_bytes=6,
    name="n",
    license="mit",
    quantization="F32",
    context_length=1,
    layer_count=2,
    embedding_size=7,
    head_count=8,
)


def test_each_field_of_the_status_is_filled():
    """A complete header fills every field of `status.gguf`, under the names of the API."""
    status = gguf_status(FACTS)
    metadata = {"name": "m", "namespace": "default"}
    data = {"apiVersion": Model.RESOURCE.api_version, "kind": "Model", "metadata": metadata, "spec": {"source": "/m"}}
    model = decode(Model, data | {"status": {"gguf": status}})
    filled = model.status.gguf
    names = {field.name for field in attrs.fields(GGUFStatus)} - {"wire"}
    assert {name for name in names if getattr(filled, name) in (None, "")} == set()
    assert encode(model)["status"]["gguf"] == status
    assert len(status) == len(names)
