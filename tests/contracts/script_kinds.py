"""Our own kinds are judged: each bound at its ends and beyond them, each rule kept and broken.

Nothing of `data/specs.jsonl` is stored. Of an object that is taken, the spec is written down, with what the server has
filled in or dropped.
"""

import json
from pathlib import Path
from typing import Any, Final

from contracts.session import JSON, Operation, Session

API_VERSION: Final = "inference.llmkube.dev/v1alpha1"

_SPECS: Final = Path(__file__).with_name("data") / "specs.jsonl"


async def chapter_specs(s: Session) -> None:
    for case in map(json.loads, _SPECS.read_text().splitlines()):
        kind, spec = case["kind"], case["spec"]
        path = f"/apis/{API_VERSION}/namespaces/{{ns}}/{kind.lower()}s"
        operation = Operation("POST", path, manifest(kind, spec), JSON, {"dryRun": "All"})
        body = await s.send(operation, recorded=False)
        refused = body["kind"] == "Status"
        asked = f"{kind} {json.dumps(spec, ensure_ascii=False)}"
        s.note(asked, int(body["code"]) if refused else 201, {}, body if refused else body["spec"])


async def chapter_changed_kinds(s: Session) -> None:
    """Stored values may remain invalid; changed ones are validated."""
    services = f"/apis/{API_VERSION}/namespaces/{{ns}}/inferenceservices"
    autoscaling = {"maxReplicas": 5, "minReplicas": 2}
    await s.post(services, manifest("InferenceService", {"modelRef": "m", "autoscaling": autoscaling}))
    for change in (
        {"autoscaling": {"minReplicas": 6}},
        {"autoscaling": {"maxReplicas": 1}},
        {"autoscaling": {"maxReplicas": 1, "minReplicas": 1}},
        {"autoscaling": None, "endpoint": {"nodePort": 30000}},
        {"endpoint": {"type": "NodePort", "nodePort": 30000}},
        {"endpoint": {"type": None}},
        {"runtime": "generic"},
        {"runtime": "generic", "image": "x"},
        {"replicas": 11},
        {"bogus": 1},
    ):
        await s.patch(f"{services}/a", {"spec": change})
    await s.patch(f"{services}/a/status", {"status": {"phase": "Ready", "readyReplicas": 1}})
    await s.patch(f"{services}/a/status", {"status": {"phase": "Lost"}})
    await s.patch(f"{services}/a/scale", {"spec": {"replicas": 10}})
    await s.patch(f"{services}/a/scale", {"spec": {"replicas": 11}})
    await s.get(f"{services}/a")


def manifest(kind: str, spec: Any) -> dict[str, Any]:
    """Return an object of one of our kinds."""
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": "a"}, "spec": spec}
