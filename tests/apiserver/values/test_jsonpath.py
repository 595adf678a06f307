"""The JSON paths of printer columns."""

import pytest

from llmkube.apiserver.values import jsonpath

DOCUMENT = {
    "metadata": {"labels": {"a.b/c": "x"}},
    "status": {
        "phase": "Ready",
        "conditions": [
            {"type": "Other", "status": "False"},
            {"type": "Available", "status": "True", "count": 3},
        ],
    },
}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (".status.phase", ["Ready"]),
        ("{.status.phase}", ["Ready"]),
        ("$.status.phase", ["Ready"]),
        (r".metadata.labels.a\.b/c", ["x"]),
        (".metadata.labels['a.b/c']", ["x"]),
        ('.status.conditions[?(@.type=="Available")].status', ["True"]),
        (".status.conditions[?(@.count>2)].type", ["Available"]),
        (".status.conditions[?(@.count)].type", ["Available"]),
        (".status.conditions[0].type", ["Other"]),
        (".status.conditions[-1].type", ["Available"]),
        (".status.conditions[*].type", ["Other", "Available"]),
        ("..type", ["Other", "Available"]),
        (".status.absent.deeper", []),
        (".status.conditions[9].type", []),
        (".status.phase.deeper", []),
    ],
)
def test_json_paths_reach_what_they_name(path, found):
    """Each form of step that a CRD may use finds its values, and a wrong turn finds nothing."""
    assert jsonpath.find(path, DOCUMENT) == found
