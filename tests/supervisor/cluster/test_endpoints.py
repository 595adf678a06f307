from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.supervisor.cluster.endpoints import endpoints_manifest, service_manifest, slice_manifest

METADATA = {"name": "chat", "namespace": "ns", "uid": "u1"}
CHAT = decode(InferenceService, {"metadata": METADATA, "spec": {"modelRef": "m"}})


def test_the_service_has_no_selector_and_belongs_to_its_object():
    """Kubernetes routes the Service by our slices alone, and collects it with the InferenceService."""
    manifest = service_manifest(CHAT)
    assert "selector" not in manifest["spec"]
    assert manifest["spec"]["ports"] == [{"name": "http", "port": 8080, "protocol": "TCP"}]
    assert manifest["metadata"]["ownerReferences"][0]["uid"] == "u1"


def test_a_ready_slice_names_the_engine():
    """A ready slice carries the advertised address, the engine's port and the labels that tie it to its Service."""
    manifest = slice_manifest(CHAT, "mac", "192.0.2.5", 4711, ready=True)
    assert manifest["endpoints"] == [{"addresses": ["192.0.2.5"], "conditions": {"ready": True}}]
    assert manifest["ports"] == [{"name": "http", "port": 4711, "protocol": "TCP"}]
    assert manifest["addressType"] == "IPv4"
    assert manifest["metadata"]["labels"]["kubernetes.io/service-name"] == "chat"
    assert manifest["metadata"]["labels"]["inference.llmkube.dev/host"] == "mac"


def test_without_an_engine_a_slice_claims_nothing():
    """Before the first engine has a port, an older agent's claim is replaced by an empty one."""
    manifest = slice_manifest(CHAT, "mac", "2001:db8::5", 0, ready=False)
    assert manifest["endpoints"] == []
    assert manifest["addressType"] == "IPv6"


def test_the_classic_object_moves_an_address_that_is_not_ready():
    """In a classic Endpoints object an engine that does not answer stands under notReadyAddresses."""
    ready = endpoints_manifest(CHAT, "192.0.2.5", 4711, ready=True)["subsets"][0]
    assert ready["addresses"] == [{"ip": "192.0.2.5"}]
    waiting = endpoints_manifest(CHAT, "192.0.2.5", 4711, ready=False)["subsets"][0]
    assert waiting["notReadyAddresses"] == [{"ip": "192.0.2.5"}]
    assert "addresses" not in waiting
