"""The plan of an engine's container as a value: the counterpart of `LaunchPlan` in a cluster.

The renderer decides where the weights are mounted, and fills the placeholders. The plan contains everything else that
depends on the runtime, so that the renderer need not distinguish runtimes.
"""

import hashlib
import json
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import attrs

from llmkube.k8s.crd.meta import SecretKeySelector
from llmkube.runtimes.plan import Placeholder

PORT_NAME: Final = "http"
"""Name of the container's port; Services and probes refer to the name, not to the number."""

LOAD_SECONDS: Final = 1800
"""Time for an engine to load."""

_HANDLERS: Final = frozenset({"exec", "grpc", "httpGet", "tcpSocket"})


def literal(text: str) -> str:
    """Escape a text for a command, its arguments or a variable's value, so that a kubelet does not expand it.

    A kubelet replaces `$(NAME)` there, and `$$` with one `$`. A user's own words may rely on that; names and addresses
    must not be expanded.
    """
    return text.replace("$", "$$")


class ModelFile(str):
    """An element of argv for a file that was fetched with the model: its path below `Placeholder.FOLDER`."""

    __slots__ = ()


@attrs.frozen(kw_only=True)
class MountPaths:
    """Paths in one pod for the placeholders of a plan, absolute, or empty if there is none.

    Attributes:
        model: File or folder that the engine is given.
        folder: Folder with the Model's files as in their repository; the parent of `model`, unless the model is in a
            subfolder of the repository.
        draft: The same as `model`, for the draft Model.
        cache: A folder that the engine may write to.
    """

    model: str = ""
    folder: str = ""
    draft: str = ""
    cache: str = ""

    def fill(self, word: str, *, expands: bool) -> str:
        """Return the word, or the path for a placeholder; `expands` if a kubelet replaces `$(NAME)` in that place."""
        if isinstance(word, ModelFile):
            path = posixpath.join(self.folder, str(word))
        elif isinstance(word, Placeholder):
            path = {
                Placeholder.MODEL: self.model,
                Placeholder.FOLDER: self.folder,
                Placeholder.DRAFT: self.draft,
                Placeholder.CACHE: self.cache,
            }[word]
        else:
            return word
        return literal(path) if expands else path


@attrs.frozen
class Variable:
    """One variable of the container's environment: a value or placeholder, or `value_from` as in a pod."""

    name: str
    value: str = ""
    value_from: Mapping[str, Any] | None = attrs.field(default=None, hash=False)

    @classmethod
    def from_secret(cls, name: str, ref: SecretKeySelector) -> "Variable":
        """Return a variable with its value from a Secret; the plan contains only the reference."""
        optional = {} if ref.optional is None else {"optional": ref.optional}
        return cls(name, value_from={"secretKeyRef": {"name": ref.name, "key": ref.key, **optional}})


@attrs.frozen
class Probe:
    """A probe of the container: GET `path`, run `command` in it, or open a TCP connection.

    Attributes:
        path: Path to GET; empty for another kind of probe.
        command: Command to run in the container; empty for a TCP connection, if `path` is empty too.
        period_seconds: Time between two probes.
        timeout_seconds: Time for a response.
        failure_threshold: Consecutive failures before the probe has failed.
        patience_seconds: Total time of failures, for any period, instead of `failure_threshold`; 0 for none.
        override: The user's part of a pod's Probe, which has precedence.
    """

    path: str = ""
    command: tuple[str, ...] = ()
    period_seconds: int = 10
    timeout_seconds: int = 5
    failure_threshold: int = 3
    patience_seconds: int = 0
    override: Mapping[str, Any] = attrs.field(factory=dict, hash=False)

    def manifest(self) -> dict[str, Any]:
        """Return the probe as in a pod. An override with a handler replaces our handler, not our numbers.

        If the override sets a threshold but no period, the period is at least Kubernetes' default of 10 seconds: with
        a shorter one, the threshold would be reached too early.
        """
        handler: dict[str, Any] = {"tcpSocket": {"port": PORT_NAME}}
        if self.path:
            handler = {"httpGet": {"path": self.path, "port": PORT_NAME}}
        elif self.command:
            handler = {"exec": {"command": list(self.command)}}
        custom = "failureThreshold" in self.override
        period = self.override.get("periodSeconds")
        if not (isinstance(period, int) and period > 0):  # the API server reports another value
            period = max(self.period_seconds, 10) if custom else self.period_seconds
        numbers = {
            "periodSeconds": period,
            "timeoutSeconds": self.timeout_seconds,
            "failureThreshold": self.patience_seconds // period or self.failure_threshold,
        }
        return {**({} if _HANDLERS & self.override.keys() else handler), **numbers, **self.override}


@attrs.frozen
class Probes:
    """The three probes of a container."""

    startup: Probe
    liveness: Probe
    readiness: Probe

    @classmethod
    def http(cls, path: str, *, alive: str = "", loaded: str = "") -> "Probes":
        """Return probes by HTTP, with half an hour to load and then three consecutive failures.

        The startup probe runs every second, so that a pod is ready as soon as its engine.

        Args:
            path: Answers 200 when the model can answer requests.
            alive: Answers 200 while the process is healthy, if that is another path.
            loaded: Answers 200 once the model is loaded, if that is another path, too expensive to probe all the time.
        """
        return cls(
            startup=Probe(loaded or path, period_seconds=1, patience_seconds=LOAD_SECONDS),
            liveness=Probe(alive or path, period_seconds=15),
            readiness=Probe(path),
        )

    @classmethod
    def tcp(cls) -> "Probes":
        """Return probes that only open a TCP connection."""
        return cls.http("")


@attrs.frozen
class ScalingMetric:
    """Default metric for autoscaling.

    Attributes:
        name: The metric's name in the cluster.
        target: Target average per pod, as a quantity.
        exported_as: The engine's own name for it, if that differs: the PodMonitor renames it.
    """

    name: str
    target: str = "2"
    exported_as: str = ""


@attrs.frozen
class Resources:
    """Resources that a replica requests from the cluster.

    Attributes:
        gpu_count: GPUs of a replica; 0 for none, and for claims without a number.
        gpu_resource: The extended resource, such as `nvidia.com/gpu`; empty if none is requested.
        toleration_keys: Taints of GPU nodes that the pod tolerates, with any value (`Exists`).
        claims: Claims for devices (dynamic resource allocation), as in `pod.spec.resourceClaims`.
        shared: The GPU is shared with others: the pod belongs on the nodes that the operator reserves for that.
        requests: Amounts by name, in the order of Kubernetes' own documents; GPUs are only in `limits`.
        limits: Amounts by name.
    """

    gpu_count: int = 0
    gpu_resource: str = ""
    toleration_keys: tuple[str, ...] = ()
    claims: tuple[Mapping[str, str], ...] = attrs.field(default=(), hash=False)
    shared: bool = False
    requests: tuple[tuple[str, str], ...] = ()
    limits: tuple[tuple[str, str], ...] = ()

    @property
    def on_gpu(self) -> bool:
        """Whether the engine has a GPU."""
        return self.gpu_count > 0 or bool(self.claims)


@attrs.frozen
class KeyCheck:
    """The key check in front of an engine whose clients have keys: a container of ours in the same pod.

    Attributes:
        secret: Name of the Secret with their keys.
        key: The key in it; its value has one API key per line.
        engine_port: Port of the engine, on the pod's loopback address only.
    """

    secret: str
    key: str
    engine_port: int


@attrs.frozen
class Group:
    """Processes on several nodes that serve one model together; the first of them answers.

    Attributes:
        size: Number of processes, including the first.
        leader: Further arguments of the first.
        workers: Further arguments of the others.
        leader_env: Further variables of the first.
        worker_env: Further variables of the others.
    """

    size: int
    leader: tuple[str, ...]
    workers: tuple[str, ...]
    leader_env: tuple[Variable, ...] = ()
    worker_env: tuple[Variable, ...] = ()


@attrs.frozen(kw_only=True)
class ContainerPlan:
    """The serving container of one InferenceService, and what its pod needs for it.

    Attributes:
        runtime: Name of the runtime.
        container_name: Name of the container.
        image: The image, never empty.
        port: Number of the port named `http`, for clients and probes.
        extra_ports: Further ports by name, such as `("metrics", 8002)`.
        command: Replaces the image's entrypoint if not empty.
        args: The arguments.
        env: The environment, each name once, the user's last.
        probes: The probes of the container.
        resources: Resources of a replica.
        image_before: Another image that running pods may keep; empty for none.
        needs_model_init: The weights must be fetched before the container starts. False if the engine fetches them
            itself, or uses those that are mounted (`uses_weights`).
        draft_model: Name of the Model for `Placeholder.DRAFT`; empty if there is none.
        post_start: A command to run in the container once it has started (`lifecycle.postStart`); empty for none.
        scheme: `http` or `https`, for `status.endpoint`.
        endpoint_path: Path for `status.endpoint`: the user's, or the runtime's if the engine does not have the schema's
            default path.
        model_id: Name of the model in the engine's API; empty if it cannot be chosen.
        hpa_metric: Default metric for autoscaling; None if the engine has none that is suitable.
        metrics_port_name: Name of the port of the engine's metrics; empty if it has none.
        metrics_path: Path of these metrics.
        latency_metric: Histogram of the seconds per response, by its name in the cluster; empty if the engine has none.
        busy_metrics: Metrics of the engine that are all 0 while it has no request; empty if it has none.
        any_user: The image is known to run as any user, with a read-only root filesystem and a writable /tmp.
        key_check: Checks the keys of clients on the port, in front of the engine; None if the engine has the port.
        shared_memory: The engine's processes communicate through `/dev/shm`, and need more than the default of 64 MiB.
        group: Pods on several nodes that serve the model together; None for a single pod.
        not_honoured: Paths of fields that are set but have no effect here.

    The elements of `command`, `args` and `post_start` and the values of `env` may be placeholders; `render_words`,
    `render_hook` and `render_env` fill them.
    """

    runtime: str
    container_name: str
    image: str
    image_before: str = ""
    port: int
    extra_ports: tuple[tuple[str, int], ...] = ()
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: tuple[Variable, ...] = ()
    probes: Probes
    resources: Resources = Resources()
    needs_model_init: bool = True
    draft_model: str = ""
    post_start: tuple[str, ...] = ()
    scheme: str = "http"
    endpoint_path: str = ""
    model_id: str = ""
    hpa_metric: ScalingMetric | None = None
    metrics_port_name: str = ""
    metrics_path: str = "/metrics"
    latency_metric: str = ""
    busy_metrics: tuple[str, ...] = ()
    any_user: bool = False
    key_check: KeyCheck | None = None
    shared_memory: bool = False
    group: Group | None = None
    not_honoured: tuple[str, ...] = ()

    @property
    def uses_weights(self) -> bool:
        """Whether the container is given the Model's files, which then have to be mounted."""
        return any(
            isinstance(word, ModelFile) or _is_in(word, Placeholder.MODEL, Placeholder.FOLDER) for word in self._words()
        )

    @property
    def uses_cache(self) -> bool:
        """Whether the container needs a folder that it may write to."""
        return any(_is_in(word, Placeholder.CACHE) for word in self._words())

    def _words(self) -> Iterator[str]:
        yield from (*self.command, *self.args, *self.post_start, *(variable.value for variable in self.env))

    def render_words(self, words: Iterable[str], paths: MountPaths) -> list[str]:
        """Return `command` or `args` with every placeholder filled."""
        return [paths.fill(word, expands=True) for word in words]

    def render_hook(self, paths: MountPaths) -> list[str]:
        """Return `post_start` with every placeholder filled; a kubelet does not expand the command of a hook."""
        return [paths.fill(word, expands=False) for word in self.post_start]

    def render_env(self, paths: MountPaths) -> list[dict[str, Any]]:
        """Return the environment as in a pod, with every placeholder filled."""
        return [
            {"name": variable.name, "value": paths.fill(variable.value, expands=True)}
            if variable.value_from is None
            else {"name": variable.name, "valueFrom": dict(variable.value_from)}
            for variable in self.env
        ]

    @property
    def digest(self) -> str:
        """SHA-256 of everything that the container consists of, without the list of fields that have no effect."""
        facts = attrs.asdict(attrs.evolve(self, not_honoured=()), value_serializer=_tagged)
        return hashlib.sha256(json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def requests_in_flight(metrics: str, names: Iterable[str]) -> float | None:
    """Return the sum of an engine's metrics of its requests; None if one of them is missing or is not a number.

    Args:
        metrics: Metrics of the engine, in Prometheus' format.
        names: Metrics that are 0 while it has no request (`ContainerPlan.busy_metrics`).
    """
    total, lines = 0.0, metrics.splitlines()
    for name in names:
        found = [line for line in lines if line.startswith((f"{name} ", f"{name}{{"))]
        try:
            total += sum(float(line[len(name) :].rpartition("}")[2].split()[0]) for line in found)
        except (ValueError, IndexError):
            return None
        if not found:
            return None
    return total


def request_counters(metrics: str, names: Iterable[str]) -> list[str]:
    """Return the lines of an engine's counters, with their values; arguments as `requests_in_flight`.

    These are the series `…_total` and `…_count` with its own prefix; those of its process grow while it is idle.
    """
    prefixes = tuple({re.split(r"(?<=[:_])", name, maxsplit=1)[0] for name in names})
    lines = (line for line in metrics.splitlines() if prefixes and line.startswith(prefixes))
    return [line for line in lines if re.split(r"[ {]", line, maxsplit=1)[0].endswith(("_total", "_count"))]


def _is_in(word: str, *placeholders: Placeholder) -> bool:
    return isinstance(word, Placeholder) and word in placeholders


def _tagged(_instance: Any, _attribute: Any, value: Any) -> Any:
    """Distinguish a placeholder and a model's file from a user's equal text."""
    if isinstance(value, Placeholder | ModelFile):
        return {type(value).__name__: str(value)}
    return value
