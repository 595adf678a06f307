"""What to do about a service or a Model that fails, by its reason. Pure."""

from collections.abc import Mapping
from typing import Final

from llmkube.cli.view.output import printable
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.reasons import Reason
from llmkube.k8s.wire.service_health import Health

_OTHER_SOURCE: Final = "deploy again with another --source"
_READABLE: Final = "create a Secret with a key HF_TOKEN that may read it, and name it with --secret"
_LOGS: Final = "`llmkube logs {name}` has all that the engine wrote"
_IMAGE: Final = "correct spec.image and spec.imagePullSecrets, or make the registry reachable from the node"
_POD: Final = "`kubectl describe pods -n {namespace} -l app={name}` shows what the kubelet says"
_REPORT: Final = "this is a bug in the program; its log has the traceback. It tries again by itself"

_ADVICE: Final[Mapping[Reason, str]] = {
    # the objects
    Reason.MODEL_NOT_FOUND: "give the --source of its weights, or the name of another Model with --model",
    Reason.INVALID: "the field at fault is named above: deploy again without its flag, or with another value",
    Reason.NOT_SUPPORTED: "the field at fault is named above: deploy again without its flag",
    Reason.NOT_ALLOWED: "leave out what is named above, or ask the operator of the cluster to allow it",
    Reason.NAME_TAKEN: "delete the object that has the name, or deploy under another one",
    Reason.QUANTIZATION_MISMATCH: "correct spec.quantization of the Model, or name another file",
    # the source
    Reason.SOURCE_INVALID: _OTHER_SOURCE,
    Reason.SOURCE_UNSUPPORTED: _OTHER_SOURCE,
    Reason.SOURCE_NOT_FOUND: _OTHER_SOURCE,
    Reason.SOURCE_REFUSED: _OTHER_SOURCE,
    Reason.SOURCE_AMBIGUOUS: _OTHER_SOURCE,
    Reason.INVALID_FILE_SET: _OTHER_SOURCE,
    Reason.SOURCE_NOT_ALLOWED: f"{_OTHER_SOURCE}, or start the program that refuses it with a flag that allows it",
    Reason.REDIRECT_REFUSED: f"{_OTHER_SOURCE}; the agent's --allow-private-sources can allow a private network",
    Reason.ADDRESS_BLOCKED: f"{_OTHER_SOURCE}; the agent's --allow-private-sources can allow a private network",
    Reason.FILE_NOT_FOUND: "put the file there on the host that serves it, or deploy again with another --source",
    Reason.NOT_GGUF: "deploy again with the --source of a .gguf file; `llmkube inspect` shows whether one is sound",
    Reason.NOT_MLX: "deploy again with the --source of a folder that has config.json and .safetensors files",
    Reason.DIGEST_MISMATCH: "deploy again with the digest that you trust, or without --sha256",
    Reason.TOKEN_UNAVAILABLE: "create the Secret with a key HF_TOKEN, and name it with --secret",
    Reason.ACCESS_DENIED: _READABLE,
    Reason.PVC_NOT_FOUND: "create the PersistentVolumeClaim, or deploy again with another --source",
    Reason.NO_SPACE: "free space on the host; the agent then tries again by itself",
    Reason.INSPECTION_FAILED: "`kubectl logs -n {namespace} job/…` of the Job that reads the header shows why",
    Reason.JOB_REFUSED: "the API server says above why it refuses the Job: grant what it asks for",
    # the engine on a host
    Reason.CRASH_LOOP: _LOGS,
    Reason.ENGINE_EXITED: _LOGS,
    Reason.HUNG: _LOGS,
    Reason.LOAD_STALLED: f"{_LOGS}; a smaller --context-size loads faster",
    Reason.METAL_ERROR: f"{_LOGS}; a smaller --context-size takes less of the GPU's memory",
    Reason.INTERNAL_ERROR: _REPORT,
    Reason.ENGINE_NOT_FOUND: "install the program that is named above on the host, or name another one with its flag "
    "(docs/engines.md); the agent then starts the engine by itself",
    Reason.ENGINE_STUCK: "the kernel does not end the engine's process: restart the host",
    Reason.JOURNAL_NOT_WRITTEN: "make the agent's --state-dir writable, and free space on its disk",
    Reason.PORT_TAKEN: "end the program that listens on the port; the agent then tries again by itself",
    Reason.API_KEYS_UNAVAILABLE: "correct the Secret that spec.apiKeySecretRef names, with one key on each line; the "
    "agent then goes on by itself",
    Reason.EXCEEDS_MEMORY: "deploy again with a smaller --context-size or a --source that is smaller, or raise the "
    "budget that is named above: spec.hardware.memoryBudget of the Model, or the agent's --memory-fraction",
    # the host
    Reason.NO_HOST: "start an agent on a host that serves it, or deploy again with another --accelerator",
    Reason.ADDRESS_MISSING: "give the host that address again, or start its agent with another --host-ip",
    Reason.NO_ADDRESS: "start the host's agent with an address that others reach: --host-ip",
    Reason.REFUSED: "the API server says above why it refuses the endpoint: grant what it asks for",
    # pods
    Reason.OOM_KILLED: "give it more memory in spec.resources, or deploy with a smaller --context-size",
    Reason.ERR_IMAGE_PULL: _IMAGE,
    Reason.IMAGE_PULL_BACK_OFF: _IMAGE,
    Reason.INVALID_IMAGE_NAME: _IMAGE,
    Reason.ERR_IMAGE_NEVER_PULL: "put the image on the node: it may not be pulled there",
    Reason.REGISTRY_UNAVAILABLE: _IMAGE,
    Reason.CREATE_CONTAINER_CONFIG_ERROR: "create the Secret or ConfigMap that the container refers to, or name a user "
    "in spec.podSecurityContext.runAsUser where the image runs as root",
    Reason.CREATE_CONTAINER_ERROR: _POD,
    Reason.RUN_CONTAINER_ERROR: _POD,
    Reason.REPLICA_FAILURE: "the API server says above why it refuses the pods: a quota or an admission rule",
    Reason.POD_SECURITY: "name an image that runs without root, and its user in spec.podSecurityContext.runAsUser, or "
    "serve it in another namespace",
    Reason.PROGRESS_DEADLINE_EXCEEDED: _POD,
    Reason.REPLICA_SET_CREATE_ERROR: "the API server says above why it refuses the ReplicaSet",
}


def advice(reason: str, key: Key) -> str:
    """Return what a user can do about a failure; for a reason of another program, where more is shown."""
    known = Reason.of(reason)
    text = _ADVICE.get(known) if known is not None else None
    return (text or "`llmkube status {name}` shows more").format(name=key.name, namespace=key.namespace)


def explain(key: Key, health: Health) -> str:
    """Return why a service cannot be served, in the words of the program that knows it, and what to do about it."""
    words = printable(health.message)
    failure = f"{health.reason}: {words}" if words else health.reason
    todo = f"What to do: {advice(health.reason, key)}"
    if health.serves_on:
        return f"InferenceService {key}: {refused(health)}\n{todo}"
    return f"InferenceService {key} cannot be served: {failure}\n{todo}"


def refused(health: Health) -> str:
    """Say what is wrong with the newest spec, and that an engine serves all the same."""
    words = printable(health.headline)
    failure = words if words == health.reason else f"{health.reason}: {words}"
    # What is said of an engine that serves from an older spec says so itself.
    return f"the newest spec was refused ({failure}); the previous one still serves" if health.about else failure
