"""Plans as small readable documents: the content of the golden files. Run this file to write them again.

A file is a runtime's; a document in it is a feature: its spec, and the plan without the fields of every plan.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import yaml

from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.runtimes.container.container_plan import ContainerPlan, MountPaths, Probe, Resources
from llmkube.runtimes.plan import PlanError
from llmkube.runtimes.registry import container_plan_for

FOLDER: Final = Path(__file__).parent / "golden"
PLACES: Final = MountPaths(
    model="/models/key/model.gguf", folder="/models/key", draft="/drafts/key/draft.gguf", cache="/cache"
)


def planned(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plan of a document's spec."""
    name = {"name": "chat", "namespace": "ns"}
    service = {"metadata": name, "spec": {"modelRef": "m", **document["service"]}}
    model = {"metadata": {"name": "m", "namespace": "ns"}, "spec": document["model"]}
    try:
        plan = container_plan_for(decode(InferenceService, service), decode(Model, model))
    except PlanError as error:
        return {"refused": str(error)}
    return written(plan)


def written(plan: ContainerPlan) -> dict[str, Any]:
    """Return a plan as a document: slots filled, empty fields left out."""
    resources = {key: _plain(value) for key, value in attrs.asdict(plan.resources, recurse=False).items()}
    default = {key: _plain(value) for key, value in attrs.asdict(Resources(), recurse=False).items()}
    document: dict[str, Any] = {
        "image": plan.image,
        "port": plan.port,
        "extraPorts": dict(plan.extra_ports),
        "command": " ".join(plan.render_words(plan.command, PLACES)),
        "args": _lines(plan.render_words(plan.args, PLACES)),
        "env": [_variable(variable) for variable in plan.render_env(PLACES)],
        "postStart": plan.render_hook(PLACES),
        "probes": {name: _probe(probe) for name, probe in attrs.asdict(plan.probes, recurse=False).items()},
        "resources": {key: value for key, value in resources.items() if value != default[key]},
        "init": plan.needs_model_init,
        "draftModel": plan.draft_model,
        "endpoint": f"{plan.scheme} {plan.endpoint_path}",
        "scalesOn": f"{plan.hpa_metric.name} {plan.hpa_metric.target}" if plan.hpa_metric else "nothing",
        "sharedMemory": plan.shared_memory,
        "notHonoured": list(plan.not_honoured),
    }
    return {key: value for key, value in document.items() if value not in ("", [], {}, False)}


def _plain(value: Any) -> Any:
    """Amounts are pairs, claims are maps, taints are words."""
    if not isinstance(value, tuple):
        return value
    if value and isinstance(value[0], str):
        return list(value)
    return [dict(each) for each in value] if value and isinstance(value[0], Mapping) else dict(value)


def _lines(words: list[str]) -> list[str]:
    """One line for each flag, with its values."""
    lines: list[str] = []
    for word in words:
        if word.startswith("--") or not lines:
            lines.append(word)
        else:
            lines[-1] += f" {word}"
    return lines


def _variable(variable: Mapping[str, Any]) -> str:
    if "value" in variable:
        return f"{variable['name']}={variable['value']}"
    [(kind, source)] = variable["valueFrom"].items()
    return f"{variable['name']} from {kind} {' '.join(map(str, source.values()))}"


def _probe(probe: Probe) -> str:
    read = probe.manifest()
    if ask := read.get("httpGet"):
        how = f"GET {ask['path']} at {ask['port']}"
    else:
        how = f"connect to {read['tcpSocket']['port']}" if "tcpSocket" in read else " ".join(read["exec"]["command"])
    numbers = "every {periodSeconds} s, {timeoutSeconds} s each, {failureThreshold} failures".format(**read)
    return f"{how}, {numbers}"


def main() -> None:
    """Write every golden file again from its specs."""
    for path in sorted(FOLDER.glob("*.yaml")):
        documents = [
            {**{key: document[key] for key in ("feature", "service", "model")}, "plan": planned(document)}
            for document in yaml.safe_load_all(path.read_text())
        ]
        path.write_text(yaml.safe_dump_all(documents, sort_keys=False, width=120, allow_unicode=True))


if __name__ == "__main__":
    main()
