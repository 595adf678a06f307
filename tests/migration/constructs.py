"""Every construct of the original's manifests: the fields that it sets, and the expected result.

A construct is a use of fields; `gives` is text in the objects that are made of it, `says` is text in the status of
the service or its Model.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import yaml


@attrs.frozen
class Construct:
    """A use of fields, with the expected result: text in the objects, or in the status where it has no effect.

    Attributes:
        name: Name of the construct and of both objects.
        service: Fields of the InferenceService's spec.
        model: Fields of the Model's spec; `source` is a file of the hub where it is not set.
        gives: Text in the resulting objects; no field except those of `lost` may then be reported as without effect.
        says: Text in the conditions, or in the API server's error where it refuses one of the two.
        lost: Fields that the status names as without effect, besides those with effect.
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
    "InferenceService activation.mode": "ours: loading on request (tests/sim/test_activation.py)",
    "InferenceService activation.idleTimeout": "ours: loading on request (tests/sim/test_activation.py)",
    "InferenceService activation.maxHold": "ours: loading on request (tests/sim/test_activation.py)",
    "InferenceService activation.pin": "ours: loading on request (tests/sim/test_activation.py)",
    "InferenceService adapters": "ours: two Models (tests/e2e/test_adapters.py)",
    "InferenceService presets": "ours: settings of a name (tests/router/proxy/test_presets.py)",
    "InferenceService engine.name": "ours: engines of a host's owner (tests/runtimes/process/test_generic.py)",
    "InferenceService engine.options": "ours: engines of a host's owner (tests/runtimes/process/test_generic.py)",
    "InferenceService hosts.modelRef": "ours: pods and hosts under one name (tests/sim/test_pods_and_hosts.py)",
    "InferenceService hosts.replicas": "ours: pods and hosts under one name (tests/sim/test_pods_and_hosts.py)",
    "InferenceService speculativeDecoding.draftModelRef": "two Models (tests/sim/test_drafts.py)",
    "InferenceService multiNode.rdmaResource": "needs the kind (tests/controller/reconcile/test_groups.py)",
    "InferenceService multiNode.ibGIDIndex": "needs the kind (tests/controller/reconcile/test_groups.py)",
    "InferenceService multiNode.rendezvousPort": "needs the kind (tests/controller/reconcile/test_groups.py)",
    "InferenceService slo.indicator": "needs Pyrra (tests/controller/render/test_monitoring.py)",
    "InferenceService slo.latencyThreshold": "needs Pyrra (tests/controller/render/test_monitoring.py)",
}
"""Fields that no construct sets, and the reason or the test that covers them."""
