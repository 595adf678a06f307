"""A service's phase, conditions and counts follow from the hosts' slices and reports, row by row."""

import attrs
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from controller.objects import NOBODY, NOW, STUDIO, condition, fetched_model, model, service, slice_of
from llmkube.controller.settings import ControllerSettings
from llmkube.controller.status.service_status import (
    PRIORITY_WEIGHTS,
    Replicas,
    assess_service,
    count_replicas,
    derive_service_status,
    resolve_mode,
)
from llmkube.k8s.crd.inferenceservice import PRIORITIES, SERVICE_PHASES, InferenceServiceStatus
from llmkube.k8s.fields import wire_fields
from llmkube.k8s.leases.live_hosts import LiveHosts
from llmkube.k8s.wire.names import LOADED_LABEL

TWO_HOSTS = LiveHosts({"studio": frozenset({"metal"}), "mini": frozenset({"metal"})})
SETTINGS = ControllerSettings()
GATEWAY = ControllerSettings(gateway_url="http://127.0.0.1:8080/")


def loaded(reason, message="words", *, generation=None):
    return condition("Loaded", reason == "Loaded", reason, message, generation)


def fetched(reason, **facts):
    return model(condition("Fetched", False, reason, "words"), **facts)


INVALID = condition("Accepted", False, "Invalid", "spec.extraArgs: --port is ours")
OLD_INVALID = condition("Accepted", False, "Invalid", generation=1)
NO_ADDRESS = condition("Published", False, "NoAddress", "nobody reaches it")
READY = slice_of("studio", True)
NOT_READY = slice_of("studio", False)
AT_DOOR = attrs.evolve(
    READY, metadata=attrs.evolve(READY.metadata, labels=READY.metadata.labels | {LOADED_LABEL: "false"})
)
SUSPENDED = service(spec={"suspend": True})
EXITED = service(loaded("EngineExited", "exit code 1\nerror: out of memory"))


IDLE = service(condition("Accepted", True, "Accepted"), loaded("Idle", "not loaded"))


def wanting(number):
    return service(spec={"replicas": number})


ROWS = [
    # suspended first, whatever else is wrong
    (SUSPENDED, None, [], NOBODY, "Suspended", "Suspended"),
    (SUSPENDED, fetched_model(), [READY], STUDIO, "Suspended", "Suspended"),
    # the Model is missing, even while an engine still answers
    (service(), None, [], STUDIO, "Pending", "ModelNotFound"),
    (service(), None, [READY], STUDIO, "Pending", "ModelNotFound"),
    (wanting(0), None, [], STUDIO, "Pending", "ModelNotFound"),
    # nothing is wanted
    (wanting(0), fetched_model(), [], STUDIO, "Stopped", "ManuallyScaledToZero"),
    (wanting(0), fetched_model(), [], NOBODY, "Stopped", "ManuallyScaledToZero"),
    (wanting(0), fetched_model(), [READY], STUDIO, "Progressing", "Creating"),
    # ready
    (service(), fetched_model(), [READY], STUDIO, "Ready", "InferenceReady"),
    (service(), fetched_model(), [READY, slice_of("mini", True)], TWO_HOSTS, "Ready", "InferenceReady"),
    (service(loaded("Loaded")), fetched_model(), [], STUDIO, "Ready", "InferenceReady"),
    (service(INVALID), fetched_model(), [READY], STUDIO, "Ready", "InferenceReady"),
    (service(), model(generation=2), [READY], STUDIO, "Ready", "InferenceReady"),
    # partly ready
    (wanting(2), fetched_model(), [READY], STUDIO, "Progressing", "NoHost"),
    (wanting(2), fetched_model(), [READY], TWO_HOSTS, "Progressing", "Creating"),
    # no host serves it
    (service(), fetched_model(), [], NOBODY, "Pending", "NoHost"),
    (service(), fetched_model(), [READY], NOBODY, "Pending", "NoHost"),
    (service(loaded("Loaded")), fetched_model(), [], NOBODY, "Pending", "NoHost"),
    (service(INVALID), fetched_model(), [], NOBODY, "Pending", "NoHost"),
    (service(), fetched_model(accelerator="cpu"), [], STUDIO, "Pending", "NoHost"),
    # refused
    (service(INVALID), fetched_model(), [], STUDIO, "Failed", "Invalid"),
    (service(INVALID), fetched("Fetching"), [], STUDIO, "Failed", "Invalid"),
    (service(OLD_INVALID, generation=2), fetched_model(), [], STUDIO, "Creating", "Creating"),
    (service(condition("Accepted", True, "Accepted")), fetched_model(), [], STUDIO, "Creating", "Creating"),
    # the Model's file
    (service(), fetched("SourceInvalid"), [], STUDIO, "Failed", "SourceInvalid"),
    (service(), fetched("SourceUnsupported"), [], STUDIO, "Failed", "SourceUnsupported"),
    (service(), fetched("FileNotFound"), [], STUDIO, "Failed", "FileNotFound"),
    (service(), fetched("NotGGUF"), [], STUDIO, "Failed", "NotGGUF"),
    (service(), fetched("DigestMismatch"), [], STUDIO, "Failed", "DigestMismatch"),
    (service(), fetched("FetchFailed"), [], STUDIO, "Pending", "FetchFailed"),
    (service(), fetched("Fetching"), [], STUDIO, "Pending", "Fetching"),
    (service(), fetched("Fetching", source="https://example.com/m.gguf"), [], STUDIO, "Pending", "Fetching"),
    (service(loaded("CrashLoopBackOff")), fetched("Fetching"), [], STUDIO, "Pending", "Fetching"),
    (service(), model(), [], STUDIO, "Pending", "NotClaimed"),
    (service(loaded("Loading")), model(), [], STUDIO, "Pending", "Pending"),
    # loaded when a request needs it
    (IDLE, fetched_model(), [], STUDIO, "Idle", "Idle"),
    (IDLE, fetched_model(), [NOT_READY], STUDIO, "Idle", "Idle"),
    (IDLE, fetched_model(), [], NOBODY, "Pending", "NoHost"),
    (IDLE, fetched("Fetching"), [], STUDIO, "Pending", "Fetching"),
    (IDLE, fetched("DigestMismatch"), [], STUDIO, "Failed", "DigestMismatch"),
    (service(INVALID, loaded("Idle")), fetched_model(), [], STUDIO, "Failed", "Invalid"),
    (service(loaded("Idle")), fetched_model(), [], STUDIO, "Creating", "Creating"),
    # the engine
    (service(loaded("CrashLoopBackOff")), fetched_model(), [], STUDIO, "Failed", "CrashLoopBackOff"),
    (service(loaded("CrashLoopBackOff")), model(), [], STUDIO, "Failed", "CrashLoopBackOff"),
    (service(loaded("EngineExited")), fetched_model(), [slice_of("studio")], STUDIO, "Failed", "EngineExited"),
    (service(loaded("EngineNotFound")), fetched_model(), [], STUDIO, "Failed", "EngineNotFound"),
    (service(loaded("LoadStalled")), fetched_model(), [], STUDIO, "Failed", "LoadStalled"),
    (service(loaded("Invalid")), fetched_model(), [], STUDIO, "Failed", "Invalid"),
    (service(loaded("InternalError")), fetched_model(), [], STUDIO, "Failed", "InternalError"),
    (service(loaded("EngineStuck")), fetched_model(), [], STUDIO, "Failed", "EngineStuck"),
    (service(loaded("JournalNotWritten")), fetched_model(), [], STUDIO, "Failed", "JournalNotWritten"),
    (service(loaded("EngineExited", generation=1), generation=2), fetched_model(), [], STUDIO, "Creating", "Creating"),
    # no client can connect
    (service(loaded("Loaded"), NO_ADDRESS), fetched_model(), [], STUDIO, "Failed", "NoAddress"),
    (service(loaded("Loaded"), NO_ADDRESS), fetched_model(), [NOT_READY], STUDIO, "Failed", "NoAddress"),
    (service(loaded("Loading"), NO_ADDRESS), fetched_model(), [], STUDIO, "Failed", "NoAddress"),
    (service(loaded("Loaded"), NO_ADDRESS), fetched_model(), [READY], STUDIO, "Ready", "InferenceReady"),
    # on its way
    (service(), fetched_model(), [], STUDIO, "Pending", "NotClaimed"),
    (service(loaded("Pending")), fetched_model(), [], STUDIO, "Creating", "Creating"),
    (service(loaded("WaitingForModel")), fetched_model(), [], STUDIO, "Creating", "Creating"),
    (service(loaded("Fetching")), fetched_model(), [], STUDIO, "Creating", "Creating"),
    (service(loaded("Loading")), fetched_model(), [NOT_READY], STUDIO, "Creating", "Creating"),
    (service(loaded("Restarting")), fetched_model(), [slice_of("studio")], STUDIO, "Creating", "Creating"),
    (service(loaded("NotAnswering")), fetched_model(), [NOT_READY], STUDIO, "Creating", "Creating"),
    (service(loaded("Stopping")), fetched_model(), [], STUDIO, "Creating", "Creating"),
    # a slice, even of a dead host, means that slices are published: the condition is ignored then
    (service(loaded("Loaded")), fetched_model(), [slice_of("mini", True)], STUDIO, "Creating", "Creating"),
]


@pytest.mark.parametrize(
    ("conditions", "holders", "expected"),
    [
        ((), ("studio",), "Creating/Creating"),
        ((), ("mini",), "Pending/NotClaimed"),
        ((), ("mini", "studio"), "Creating/Creating"),
        ((loaded("CrashLoopBackOff"),), ("mini",), "Pending/NotClaimed"),
        ((loaded("CrashLoopBackOff"),), ("studio",), "Failed/CrashLoopBackOff"),
        ((INVALID,), ("mini",), "Pending/NotClaimed"),
        ((loaded("Released"), INVALID), (), "Pending/NotClaimed"),
        ((loaded("Released"),), ("studio",), "Creating/Creating"),
    ],
)
def test_a_service_is_as_its_claims_are(conditions, holders, expected):
    """The report of a dead host is ignored; a live host's claim is enough to wait for it."""
    isvc = service(*conditions)
    verdict = assess_service(isvc, fetched_model(), Replicas(1, 0, 0), STUDIO, holders)
    assert f"{verdict.phase}/{verdict.reason}" == expected
    assert ("mini" in verdict.message) == (holders == ("mini",))


@pytest.mark.parametrize(("isvc", "its_model", "slices", "hosts", "expected"), [(*row[:4], row[4:]) for row in ROWS])
def test_phase_table(isvc, its_model, slices, hosts, expected):
    """Each row of the table in `controller.inferenceservice` gives its phase and reason, in the schema's words."""
    verdict = assess_service(isvc, its_model, count_replicas(isvc, its_model, slices, hosts), hosts)
    assert (verdict.phase, verdict.reason) == expected
    assert verdict.phase in SERVICE_PHASES
    assert verdict.message


@pytest.mark.parametrize(
    ("isvc", "slices", "hosts", "replicas"),
    [
        (service(), [], STUDIO, Replicas(1, 0, 0)),
        (service(), [READY], STUDIO, Replicas(1, 1, 1)),
        (service(), [NOT_READY], STUDIO, Replicas(1, 1, 0)),
        (service(), [slice_of("studio", None)], STUDIO, Replicas(1, 1, 1)),
        (service(), [slice_of("studio")], STUDIO, Replicas(1, 0, 0)),
        (service(loaded("Idle")), [AT_DOOR], STUDIO, Replicas(1, 0, 0)),
        (wanting(2), [AT_DOOR, slice_of("mini", True)], TWO_HOSTS, Replicas(2, 1, 1)),
        (service(), [READY], NOBODY, Replicas(1, 0, 0)),
        (service(), [READY, slice_of("mini", True)], STUDIO, Replicas(1, 1, 1)),
        (wanting(3), [READY, slice_of("mini", False)], TWO_HOSTS, Replicas(3, 2, 1)),
        (service(spec={"replicas": 3, "suspend": True}), [READY], STUDIO, Replicas(0, 1, 1)),
        (service(loaded("Loaded")), [], STUDIO, Replicas(1, 1, 1)),
        (service(loaded("Loaded"), NO_ADDRESS), [], STUDIO, Replicas(1, 1, 0)),
        (service(loaded("Loading")), [], STUDIO, Replicas(1, 1, 0)),
        (service(loaded("NotAnswering")), [], STUDIO, Replicas(1, 1, 0)),
        (service(loaded("Stopping")), [], STUDIO, Replicas(1, 1, 0)),
        (service(loaded("EngineExited")), [], STUDIO, Replicas(1, 0, 0)),
        (service(loaded("Loaded")), [], NOBODY, Replicas(1, 0, 0)),
        (service(loaded("Loaded")), [], LiveHosts({"mini": frozenset({"cpu"})}), Replicas(1, 0, 0)),
    ],
)
def test_counting(isvc, slices, hosts, replicas):
    """Ready are engines that answer on live hosts; without any slice the host's own report is used while it lives."""
    assert count_replicas(isvc, fetched_model(), slices, hosts) == replicas


@pytest.mark.parametrize(
    ("isvc", "its_model", "slices", "hosts", "stated"),
    [
        (service(), True, [READY], STUDIO, "True/InferenceReady False/InferenceReady False/InferenceReady"),
        (service(loaded("Loading")), True, [], STUDIO, "False/NoReadyReplicas True/Creating False/Creating"),
        (wanting(2), True, [READY], STUDIO, "True/InferenceReady True/NoHost False/NoHost"),
        (wanting(0), True, [READY], STUDIO, "False/NoReadyReplicas True/Creating False/Creating"),
        (service(), True, [], NOBODY, "False/NoHost True/NoHost False/NoHost"),
        (service(), False, [], STUDIO, "False/ModelNotFound True/ModelNotFound False/ModelNotFound"),
        (service(), False, [READY], STUDIO, "True/InferenceReady True/ModelNotFound False/ModelNotFound"),
        (IDLE, True, [], STUDIO, "True/Idle False/Idle False/Idle"),
        (EXITED, True, [], STUDIO, "False/EngineExited False/EngineExited True/EngineExited"),
        (service(INVALID), True, [READY], STUDIO, "True/InferenceReady False/InferenceReady True/Invalid"),
        (
            wanting(0),
            True,
            [],
            STUDIO,
            "False/ManuallyScaledToZero False/ManuallyScaledToZero False/ManuallyScaledToZero",
        ),
        (SUSPENDED, True, [], STUDIO, "False/Suspended False/Suspended False/Suspended"),
    ],
)
def test_conditions_table(isvc, its_model, slices, hosts, stated):
    """The four conditions are always written, and each agrees with the phase."""
    status = derive_service_status(isvc, fetched_model() if its_model else None, slices, hosts, SETTINGS, now=NOW)
    conditions = {one["type"]: f"{one['status']}/{one['reason']}" for one in status["conditions"]}
    expected = dict(zip(("Available", "Progressing", "Degraded"), stated.split(), strict=True))
    assert conditions == expected | {"Suspended": "True/Suspended" if isvc is SUSPENDED else "False/NotSuspended"}


REASONS = st.sampled_from(
    ["Loaded", "Pending", "Fetching", "Loading", "Restarting", "CrashLoopBackOff", "Stopping", "ScaledToZero", "Idle"]
)
SERVICES = st.builds(
    lambda reason, replicas, suspend, generation: service(
        condition("Accepted", True, "Accepted"),
        loaded(reason, generation=1),
        spec={"replicas": replicas, "suspend": suspend},
        generation=generation,
    ),
    REASONS,
    st.integers(0, 3),
    st.booleans(),
    st.integers(1, 2),
)
MODELS = st.sampled_from(
    [None, fetched_model(), model(), fetched("Fetching"), fetched("NotGGUF"), fetched("FetchFailed")]
)
SLICES = st.lists(st.builds(slice_of, st.sampled_from(["studio", "mini"]), st.sampled_from([True, False])), max_size=2)


@given(SERVICES, MODELS, SLICES, st.sampled_from([NOBODY, STUDIO, TWO_HOSTS]))
def test_invariants(isvc, its_model, slices, hosts):
    """Available means exactly that a replica answers or is loaded on request; without hosts nothing is ready."""
    status = derive_service_status(isvc, its_model, slices, hosts, SETTINGS, now=NOW)
    conditions = {one["type"]: one["status"] == "True" for one in status["conditions"]}
    assert status["phase"] in SERVICE_PHASES
    is_answering = status["readyReplicas"] > 0 and status["desiredReplicas"] > 0
    assert conditions["Available"] == (is_answering or status["phase"] == "Idle")
    assert status["phase"] != "Ready" or (conditions["Available"] and not conditions["Progressing"])
    assert conditions["Progressing"] == (status["phase"] in {"Pending", "Creating", "Progressing"})
    assert status["phase"] != "Failed" or conditions["Degraded"]
    assert conditions["Suspended"] == (status["phase"] == "Suspended")
    assert hosts != NOBODY or status["readyReplicas"] == 0
    assert status["readyReplicas"] <= status["replicas"]


@given(SERVICES, MODELS, SLICES)
def test_only_fields_of_the_schema_are_written(isvc, its_model, slices):
    """Every field that is derived exists in the schema: a misspelt one would be pruned and written for ever."""
    known = {slot.key for slot in wire_fields(InferenceServiceStatus)}
    assert derive_service_status(isvc, its_model, slices, STUDIO, SETTINGS, now=NOW).keys() <= known


@pytest.mark.parametrize(
    ("spec", "mode"),
    [
        ({}, "chat"),
        ({"mode": "embedding"}, "embedding"),
        ({"mode": "chat", "extraArgs": ["--embedding"]}, "chat"),
        ({"extraArgs": ["--embedding"]}, "embedding"),
        ({"extraArgs": ["--no-mmap", "--embeddings"]}, "embedding"),
        ({"extraArgs": ["--reranking"]}, "rerank"),
        ({"args": ["--rerank"]}, "rerank"),
        ({"extraArgs": ["--embd-normalize", "2"]}, "chat"),
        ({"endpoint": {"path": "/v1/embeddings"}}, "embedding"),
        ({"endpoint": {"path": "/v1/rerank"}}, "rerank"),
        ({"endpoint": {"path": "/v1/completions"}}, "chat"),
    ],
)
def test_mode_table(spec, mode):
    """The mode is the spec's, else that of its flags, else that of its path, else chat."""
    assert resolve_mode(service(spec=spec).spec) == mode


@pytest.mark.parametrize(
    ("name", "spec", "settings", "endpoint"),
    [
        ("chat", {}, SETTINGS, "http://chat.ml.svc.cluster.local:8080/v1/chat/completions"),
        ("chat", {}, ControllerSettings(cluster_domain="corp"), "http://chat.ml.svc.corp:8080/v1/chat/completions"),
        ("chat", {"mode": "embedding"}, SETTINGS, "http://chat.ml.svc.cluster.local:8080/v1/embeddings"),
        ("chat", {"mode": "rerank"}, SETTINGS, "http://chat.ml.svc.cluster.local:8080/v1/rerank"),
        ("chat", {"endpoint": {"path": "/x"}}, SETTINGS, "http://chat.ml.svc.cluster.local:8080/x"),
        ("chat.v2", {}, SETTINGS, "http://chat-v2-f5101b.ml.svc.cluster.local:8080/v1/chat/completions"),
        ("chat", {}, GATEWAY, "http://127.0.0.1:8080/v1/chat/completions"),
    ],
)
def test_endpoint_table(name, spec, settings, endpoint):
    """The endpoint names the Service where there is a cluster to resolve it, else the gateway, with the mode's path."""
    status = derive_service_status(service(name=name, spec=spec), None, [], NOBODY, settings, now=NOW)
    assert status["endpoint"] == endpoint


def test_every_priority_has_a_weight():
    """The weights cover the schema's tiers, and a higher tier weighs more."""
    assert set(PRIORITY_WEIGHTS) == set(PRIORITIES)
    weights = [PRIORITY_WEIGHTS[tier] for tier in ("batch", "low", "normal", "high", "critical")]
    assert weights == sorted(weights)


def test_messages_name_the_missing_object():
    """A replica beyond the number of hosts, a missing Model and an engine's last lines are named."""
    two = wanting(2)
    assert assess_service(
        two, fetched_model(), count_replicas(two, fetched_model(), [READY], STUDIO), STUDIO
    ).message == ("1 of 2 replicas ready: a host runs one process per service, and 1 can serve this one")
    none = Replicas(1, 0, 0)
    assert assess_service(EXITED, None, none, STUDIO).message == 'Model "phi" not found in this namespace'
    assert assess_service(EXITED, fetched_model(), none, STUDIO).message == "exit code 1\nerror: out of memory"


GOLDEN = """
phase: Ready
replicas: 1
readyReplicas: 1
desiredReplicas: 1
endpoint: http://chat.ml.svc.cluster.local:8080/v1/chat/completions
modelReady: true
mode: chat
runtime: llamacpp
effectivePriority: 100000
conditions:
- type: Available
  status: 'True'
  reason: InferenceReady
  message: 1 of 1 replicas ready
  lastTransitionTime: '2025-06-01T11:00:00Z'
  observedGeneration: 4
- type: Progressing
  status: 'False'
  reason: InferenceReady
  message: 1 of 1 replicas ready
  lastTransitionTime: '2025-06-01T12:00:00Z'
  observedGeneration: 4
- type: Degraded
  status: 'False'
  reason: InferenceReady
  message: 1 of 1 replicas ready
  lastTransitionTime: '2025-06-01T12:00:00Z'
  observedGeneration: 4
- type: Suspended
  status: 'False'
  reason: NotSuspended
  message: spec.suspend is false
  lastTransitionTime: '2025-06-01T12:00:00Z'
  observedGeneration: 4
"""


def test_golden_status():
    """A service that has just become ready again after an edit: Available did not flip, Progressing did."""
    isvc = service(
        loaded("Loaded"),
        condition("Available", True, "InferenceReady"),
        condition("Progressing", True, "Creating"),
        generation=4,
        spec={"priority": "high"},
    )
    status = derive_service_status(isvc, fetched_model(), [READY], STUDIO, SETTINGS, now=NOW)
    assert status == yaml.safe_load(GOLDEN)
