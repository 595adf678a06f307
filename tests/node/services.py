"""Models and InferenceServices of the story, and what tests ask of them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trio

from node.images import reference
from node.objects import Object, pod
from node.running_node import Node

API = "inference.llmkube.dev/v1alpha1"
ANSWER = "LLMKube turns serving a language model into a Kubernetes object"
PATIENCE = "120s"
START_SECONDS = 60.0
SLEEP = ("sleep", "900")
TRAFFIC = Path(__file__).with_name("traffic.py").read_text()


def model(name: str, source: str = "builtin://demo", **spec: Any) -> Object:
    return {"apiVersion": API, "kind": "Model", "metadata": {"name": name}, "spec": {"source": source, **spec}}


def service(name: str, **spec: Any) -> Object:
    """Return a service of the Model of its name, with the bundled engine of our own image, as the user nobody."""
    engine = {
        "modelRef": name,
        "contextSize": 1024,
        "parallelSlots": 2,
        "image": reference("llmkube-llama"),
        "command": ["llmkube-llama-server"],
        "extraArgs": ["--threads=1"],
        "resources": {"cpu": "50m", "memory": "256Mi"},
        "podSecurityContext": {"runAsNonRoot": True, "runAsUser": 65532},
    }
    return {"apiVersion": API, "kind": "InferenceService", "metadata": {"name": name}, "spec": engine | spec}


async def serve(node: Node, namespace: str, name: str = "tiny", **spec: Any) -> str:
    """Serve the demo model and return its URL, as pods of the namespace write it; start a pod `asker` as its client."""
    await node.apply(namespace, model(name), service(name, **spec), pod("asker", SLEEP))
    await wait(node, namespace, "pod/asker", "condition=Ready")
    await wait(node, namespace, f"isvc/{name}", "condition=Available")
    return f"http://{name}:8080"


async def wait(node: Node, namespace: str, what: str, condition: str, patience: str = PATIENCE) -> None:
    """Return when `kubectl wait` sees it; what the object and its pods look like otherwise is in the error."""
    wanted = ("wait", "-n", namespace, what, f"--for={condition}", f"--timeout={patience}")
    output = await node.kubectl(*wanted, check=False)
    with trio.move_on_after(START_SECONDS):  # the API server may have been killed, or the object is about to be made
        while "refused" in output or "not found" in output:
            await trio.sleep(0.2)
            output = await node.kubectl(*wanted, check=False)
    if "condition met" not in output:
        shown = await node.kubectl("get", "-n", namespace, what, "-o", "yaml", check=False)
        pods = await node.kubectl("get", "-n", namespace, "pods,jobs,pvc", "-o", "wide", check=False)
        events = await node.kubectl("get", "-n", namespace, "events", check=False)
        raise AssertionError(f"{output}\n{shown}\n{pods}\n{events}")


async def read(node: Node, namespace: str, what: str) -> Any:
    """Return an object, or the list of a kind, as the API server has it."""
    return json.loads(await node.kubectl("get", "-n", namespace, *what.split(), "-o", "json"))


def condition(found: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Return a condition of an object; empty when it has no condition of that type."""
    return next((each for each in found.get("status", {}).get("conditions", []) if each["type"] == kind), {})


async def chat(node: Node, namespace: str, pod: str, url: str, *, key: str = "") -> str:
    """Ask from inside a pod, and return the answer's status and text."""
    return await node.execute(namespace, pod, "python3", "-c", ASK, url, key, check=False)


ASK = """
import json, sys, urllib.error, urllib.request
url, key = sys.argv[1:]
body = {"model": "tiny", "temperature": 0, "messages": [{"role": "user", "content": "What is LLMKube?"}]}
headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)
try:
    with urllib.request.urlopen(request, timeout=30) as answer:
        print(answer.status, json.load(answer)["choices"][0]["message"]["content"])
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
except OSError as error:
    print(repr(error))
"""
