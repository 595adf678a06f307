"""What a Service is filled in with, and what it keeps."""

from apiserver.stored_objects import judged, made


def test_a_service_is_filled_in():
    """Type, affinity, protocol, target port and traffic policy have their defaults."""
    assert made("Service", spec={"ports": [{"port": 80}]})["spec"] == {
        "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}],
        "sessionAffinity": "None",
        "type": "ClusterIP",
        "internalTrafficPolicy": "Cluster",
    }


def test_a_service_keeps_its_address():
    """An update without clusterIP keeps it; one with another is refused."""
    old = made("Service", spec={"ports": [{"port": 80}], "clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"]})
    old["metadata"]["resourceVersion"] = "1"
    assert judged("Service", old, spec={"ports": [{"port": 81}]}) == []
    moved = {"ports": [{"port": 80}], "clusterIP": "10.96.0.8", "clusterIPs": ["10.96.0.8"]}
    assert judged("Service", old, spec=moved) == [
        'spec.clusterIPs[0]: Invalid value: ["10.96.0.8"]: may not change once set'
    ]
