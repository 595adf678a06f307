"""The container that runs `llmkube fetch`: alone in a Job, or before the engine in a pod. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from llmkube.controller.render.model_sources import CACHE_FOLDER, cache_key, extra_files, follows, predecessors_key
from llmkube.controller.settings import WorkloadSettings
from llmkube.k8s.crd.model import Model
from llmkube.runtimes.container.container_plan import literal
from llmkube.weights.download.buckets import VARIABLES

FETCH: Final = "fetch"
"""Name of the container that runs `llmkube fetch`."""

IMAGE_USER: Final = 65532
"""The user of our own image."""

_CA_FOLDER: Final = "/etc/llmkube/ca"

_SCRATCH: Final = "/tmp"  # noqa: S108 (a volume of the pod's own)


def writing_group(settings: WorkloadSettings) -> dict[str, Any]:
    """Return the part of a pod's security context by which our image may write to a volume."""
    if settings.fs_group is None:
        return {}
    # Without the policy the kubelet walks over all of a volume's files at each start.
    return {"fsGroup": settings.fs_group, "fsGroupChangePolicy": "OnRootMismatch"}


def fetch_container(model: Model, settings: WorkloadSettings, *more: str) -> dict[str, Any]:
    """Return the container that runs `llmkube fetch`; it needs the volumes `models`, `scratch` and perhaps `ca`.

    The source is in its environment: a URL may hold a password, and a command line is public.
    """
    spec = model.spec
    args = ["fetch", "--to", f"{CACHE_FOLDER}/{cache_key(spec)}", "--model-store", f"{CACHE_FOLDER}/.store"]
    args += [word for name in spec.files[:1] for word in ("--file", name)]
    args += [word for name in extra_files(spec) for word in ("--beside", name)]
    args += ["--adopt", f"{CACHE_FOLDER}/{predecessors_key(spec)}"]
    args += ["--sha256", spec.sha256.lower()] if spec.sha256 else []
    args += [word for word in ("--fresh" if follows(spec) else "", *more) if word]
    args += ["--hub-endpoint", settings.hub_endpoint] if settings.hub_endpoint else []
    args += [word for network in settings.private_sources for word in ("--allow-private-sources", network)]
    env: list[dict[str, Any]] = [{"name": "LLMKUBE_SOURCE", "value": literal(spec.source)}]
    env.append({"name": "HOME", "value": _SCRATCH})
    if spec.source_secret_ref:
        # By name, and not the whole Secret: what else is in it is none of the container's business.
        for name in VARIABLES if spec.source.startswith("s3://") else ("HF_TOKEN",):
            reference = {"name": spec.source_secret_ref.name, "key": name, "optional": True}
            env.append({"name": name, "valueFrom": {"secretKeyRef": reference}})
    mounts = [{"name": "models", "mountPath": CACHE_FOLDER}, {"name": "scratch", "mountPath": _SCRATCH}]
    if settings.ca_config_map:
        env.append({"name": "SSL_CERT_FILE", "value": f"{_CA_FOLDER}/ca.crt"})
        mounts.append({"name": "ca", "mountPath": _CA_FOLDER})
    return llmkube_container(settings, args, env, mounts)


def llmkube_container(
    settings: WorkloadSettings,
    args: Sequence[str],
    env: Sequence[Mapping[str, Any]],
    mounts: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Return a container that runs `llmkube`, with nothing but what it is given."""
    return {
        "name": FETCH,
        "image": settings.image,
        "command": ["llmkube"],
        "args": [literal(arg) for arg in args],
        **({"env": list(env)} if env else {}),
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}},
        "volumeMounts": list(mounts),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
        },
    }


def fetch_volumes(settings: WorkloadSettings) -> tuple[dict[str, Any], ...]:
    """Return the volumes that the container needs besides `models`."""
    scratch: dict[str, Any] = {"name": "scratch", "emptyDir": {}}
    if not settings.ca_config_map:
        return (scratch,)
    return (scratch, {"name": "ca", "configMap": {"name": settings.ca_config_map}})
