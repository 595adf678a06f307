"""Every construct of the original's manifests: what it sets, and what has to come of it here.

A construct is a way to use fields; `gives` are words that stand in the objects that are made of it, `says` are words of
the status of the service or its Model.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import yaml


@attrs.frozen
class Construct:
    """A use of fields, with its verdict: what it gives, or what is said where it gives nothing.

    Attributes:
        name: What it is, and the name of both objects.
        service: Fields of the InferenceService's spec.
        model: Fields of the Model's spec; `source` is a file of the hub where it is not set.
        gives: Words of what is made of it; none of its fields may then be said to have no effect, but those of `lost`.
        says: Words of conditions, or of the API server where it refuses one of the two.
        lost: Fields that the status names as without effect, beside what others give.
    """

    name: str
    service: Mapping[str, Any] = attrs.field(factory=dict)
    model: Mapping[str, Any] = attrs.field(factory=dict)
    gives: str = ""
    says: str = ""
    lost: frozenset[str] = attrs.field(default=frozenset(), converter=frozenset)


_ROWS: Final = yaml.safe_load((Path(__file__).parent / "data" / "constructs.yaml").read_text(encoding="utf-8"))

CONSTRUCTS: Final = tuple(Construct(**row) for row in _ROWS)

ELSEWHERE: Final[Mapping[str, str]] = {
    "InferenceService modelRef": "each construct has it",
    "InferenceService hosts.modelRef": "ours: pods and hosts under one name (tests/sim/test_pods_and_hosts.py)",
    "InferenceService hosts.replicas": "ours: pods and hosts under one name (tests/sim/test_pods_and_hosts.py)",
    "InferenceService speculativeDecoding.draftModelRef": "two Models (tests/sim/test_drafts.py)",
    "InferenceService multiNode.rdmaResource": "needs the kind (tests/controller/reconcile/test_groups.py)",
    "InferenceService multiNode.ibGIDIndex": "needs the kind (tests/controller/reconcile/test_groups.py)",
    "InferenceService multiNode.rendezvousPort": "needs the kind (tests/controller/reconcile/test_groups.py)",
    "InferenceService slo.indicator": "needs Pyrra (tests/controller/render/test_monitoring.py)",
    "InferenceService slo.latencyThreshold": "needs Pyrra (tests/controller/render/test_monitoring.py)",
}
"""Fields that no construct sets, and what shows them."""
