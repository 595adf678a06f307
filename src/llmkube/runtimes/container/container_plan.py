"""A container plan is what to run in a pod as a value: the in-cluster sister of `LaunchPlan`.

Where the weights lie is the renderer's business: it fills the slots. Everything else that a runtime knows is decided
here, so that no renderer asks which runtime it has before it.
"""

import hashlib
import json
import posixpath
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import attrs

from llmkube.k8s.crd.meta import SecretKeySelector
from llmkube.runtimes.plan import Placeholder

PORT_NAME: Final = "http"
"""What the container's port is called; Services and probes point at the name, whatever the number."""

LOAD_SECONDS: Final = 1800
"""How long an engine may load."""

_HANDLERS: Final = frozenset({"exec", "grpc", "httpGet", "tcpSocket"})


def literal(text: str) -> str:
    """Return a text that stays what it is in a command, its arguments or a variable's value.

    There a kubelet replaces `$(NAME)`, and makes `$$` one `$`. A user's own words may count on that; a name or an
    address stands for itself.
    """
    return text.replace("$", "$$")


class ModelFile(str):
    """A word of argv: a file that was fetched together with the model, by its path below `Placeholder.FOLDER`."""

    __slots__ = ()


@attrs.frozen(kw_only=True)
class MountPaths:
    """What the slots of a plan stand for in one pod: absolute paths, empty where there is none.

    Attributes:
        model: The file, or the folder, that the engine is given.
        folder: Where the Model's files lie as in their repository; the parent of `model` unless the model's path in
            the repository has folders of its own.
        draft: What `model` is, of the Model that guesses ahead.
        cache: A folder that the engine may write to.
    """

    model: str = ""
    folder: str = ""
    draft: str = ""
    cache: str = ""

    def fill(self, word: str, *, expands: bool) -> str:
        """Return the word, or what it stands for; `expands` if a kubelet replaces `$(NAME)` where it stands."""
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
    """One variable of the container's environment: a value, perhaps a slot, or `value_from` as in a pod."""

    name: str
    value: str = ""
    value_from: Mapping[str, Any] | None = attrs.field(default=None, hash=False)

    @classmethod
    def from_secret(cls, name: str, ref: SecretKeySelector) -> "Variable":
        """Take the value from a key of a Secret; only the reference is ever in a plan."""
        optional = {} if ref.optional is None else {"optional": ref.optional}
        return cls(name, value_from={"secretKeyRef": {"name": ref.name, "key": ref.key, **optional}})


@attrs.frozen
class Probe:
    """Ask the container how it is: GET `path`, or run `command` in it, or only connect.

    Attributes:
        path: What to GET; empty for another way.
        command: What to run in the container, if there is no path; empty for a TCP connection.
        period_seconds: Time between two questions.
        timeout_seconds: How long an answer may take.
        failure_threshold: So many failures in a row count.
        patience_seconds: What failures may take together, whatever the period is; 0: the threshold counts them.
        override: The user's part of a pod's Probe; where both say something, it holds.
    """

    path: str = ""
    command: tuple[str, ...] = ()
    period_seconds: int = 10
    timeout_seconds: int = 5
    failure_threshold: int = 3
    patience_seconds: int = 0
    override: Mapping[str, Any] = attrs.field(factory=dict, hash=False)

    def manifest(self) -> dict[str, Any]:
        """Return it as in a pod. An override that says how to ask replaces our way, not our numbers.

        A user's threshold without a period counts in periods of 10 seconds at least, which is what Kubernetes has: our
        shorter one would make seconds of his minutes.
        """
        handler: dict[str, Any] = {"tcpSocket": {"port": PORT_NAME}}
        if self.path:
            handler = {"httpGet": {"path": self.path, "port": PORT_NAME}}
        elif self.command:
            handler = {"exec": {"command": list(self.command)}}
        custom = "failureThreshold" in self.override
        period = self.override.get("periodSeconds") or (max(self.period_seconds, 10) if custom else self.period_seconds)
        numbers = {
            "periodSeconds": period,
            "timeoutSeconds": self.timeout_seconds,
            "failureThreshold": self.patience_seconds // period or self.failure_threshold,
        }
        return {**({} if _HANDLERS & self.override.keys() else handler), **numbers, **self.override}


@attrs.frozen
class Probes:
    """The three questions that a kubelet asks: has it started, does it live, may it be asked."""

    startup: Probe
    liveness: Probe
    readiness: Probe

    @classmethod
    def http(cls, path: str, *, alive: str = "", loaded: str = "") -> "Probes":
        """Ask by HTTP. Half an hour to load; then three refusals in a row count.

        While it loads it is asked every second: a pod would else be ready up to a period after its engine.

        Args:
            path: Answers 200 when the model can be asked.
            alive: Answers 200 while the process is well, if that is another question.
            loaded: Answers 200 once the model is there, if that is another question, too dear to be asked for ever.
        """
        return cls(
            startup=Probe(loaded or path, period_seconds=1, patience_seconds=LOAD_SECONDS),
            liveness=Probe(alive or path, period_seconds=15),
            readiness=Probe(path),
        )

    @classmethod
    def tcp(cls) -> "Probes":
        """Connect, and ask nothing."""
        return cls.http("")


@attrs.frozen
class ScalingMetric:
    """What an autoscaler looks at when the user names nothing.

    Attributes:
        name: The metric's name in the cluster.
        target: Wanted average per pod, as a quantity.
        exported_as: The engine's own name for it, where that differs: the PodMonitor renames it.
    """

    name: str
    target: str = "2"
    exported_as: str = ""


@attrs.frozen
class Resources:
    """What a replica asks the cluster for.

    Attributes:
        gpu_count: GPUs of a replica; 0 for none, and for claims that do not say how many.
        gpu_resource: The extended resource, such as `nvidia.com/gpu`; empty when there is none to request.
        toleration_keys: Taints of GPU nodes that the pod tolerates whatever their value (`Exists`).
        claims: Claims for devices (dynamic resource allocation), as `pod.spec.resourceClaims` has them.
        shared: The GPU is shared with others: the pod belongs on the nodes that the operator has set aside for that.
        requests: Amounts by name, in the order of Kubernetes' own documents; GPUs are in `limits` alone.
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
        """Whether the engine will find a GPU."""
        return self.gpu_count > 0 or bool(self.claims)


@attrs.frozen
class KeyCheck:
    """What stands in front of an engine whose clients have keys: a container of ours in the same pod.

    Attributes:
        secret: Name of the Secret with their keys.
        key: The key in it; its value has one API key per line.
        engine_port: Where the engine listens, on the pod's loopback address alone.
    """

    secret: str
    key: str
    engine_port: int


@attrs.frozen
class Group:
    """Processes on several nodes that serve one model together; the first of them answers.

    Attributes:
        size: How many, the first among them.
        leader: The further arguments of the first.
        workers: Those of the others.
        leader_env: The further variables of the first.
        worker_env: Those of the others.
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
        runtime: The runtime's name.
        container_name: What the container is called.
        image: The image, never empty.
        port: The number of the port named `http`, where clients and probes ask.
        extra_ports: Further ports by name, such as `("metrics", 8002)`.
        command: Replaces the image's entrypoint; empty leaves it.
        args: The arguments.
        env: The environment, each name once, the user's last.
        probes: How a kubelet asks the container.
        resources: What a replica requests.
        image_before: The image that pods which serve may go on with; empty: the same.
        needs_model_init: The weights must be fetched before the container starts. False: the engine fetches for
            itself, or is content with what is mounted (`uses_weights`).
        draft_model: Name of the Model that `Placeholder.DRAFT` stands for; empty when there is none.
        post_start: A command to run in the container once it has started (`lifecycle.postStart`); empty for none.
        scheme: `http` or `https`, for `status.endpoint`.
        endpoint_path: The path for `status.endpoint`: the user's, or the runtime's where the schema's default would
            promise what the engine does not have.
        model_id: The name by which the engine knows the model in its API; empty when it cannot be chosen.
        hpa_metric: What to scale on when the user names nothing; None: the engine counts nothing that would help.
        metrics_port_name: The port of the engine's metrics, by name; empty when it has none.
        metrics_path: The path there.
        latency_metric: The histogram of the seconds that an answer takes, by the name that it has in the cluster; empty
            when the engine has none.
        busy_metrics: Metrics of the engine's that are all 0 while it has no request; empty when it has none.
        any_user: The image is one of which we know that it runs as any user, with a read-only root filesystem and a
            folder /tmp that it may write to.
        key_check: Who asks clients for their keys there, in the engine's place; None when the engine listens there.
        shared_memory: The engine's processes talk through `/dev/shm`, which needs more than a container's 64 MiB.
        group: How pods on several nodes serve it together; None where one pod does.
        not_honoured: Paths of fields that were given but have no effect on this path.

    The words of `command`, `args` and `post_start` and the values of `env` may be slots; `render_words`, `render_hook`
    and `render_env` fill them.
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
        """Whether the container is handed the Model's files: they have to be mounted."""
        return any(
            isinstance(word, ModelFile) or _is_in(word, Placeholder.MODEL, Placeholder.FOLDER) for word in self._words()
        )

    @property
    def uses_cache(self) -> bool:
        """Whether the container wants a folder that it may write to."""
        return any(_is_in(word, Placeholder.CACHE) for word in self._words())

    def _words(self) -> Iterator[str]:
        yield from (*self.command, *self.args, *self.post_start, *(variable.value for variable in self.env))

    def render_words(self, words: Iterable[str], paths: MountPaths) -> list[str]:
        """Return `command` or `args` with every slot filled."""
        return [paths.fill(word, expands=True) for word in words]

    def render_hook(self, paths: MountPaths) -> list[str]:
        """Return `post_start` with every slot filled; of a hook a kubelet takes each word as it is."""
        return [paths.fill(word, expands=False) for word in self.post_start]

    def render_env(self, paths: MountPaths) -> list[dict[str, Any]]:
        """Return the environment as in a pod, with every slot filled."""
        return [
            {"name": variable.name, "value": paths.fill(variable.value, expands=True)}
            if variable.value_from is None
            else {"name": variable.name, "valueFrom": dict(variable.value_from)}
            for variable in self.env
        ]

    @property
    def digest(self) -> str:
        """The SHA-256 of everything that the container is made of; what has no effect does not count."""
        facts = attrs.asdict(attrs.evolve(self, not_honoured=()), value_serializer=_tagged)
        return hashlib.sha256(json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def requests_in_flight(metrics: str, names: Iterable[str]) -> float | None:
    """Return what an engine's metrics of its requests add up to; None where one of them is missing or no number.

    Args:
        metrics: What the engine exports.
        names: The metrics that are 0 while it has no request (`ContainerPlan.busy_metrics`).
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


def _is_in(word: str, *placeholders: Placeholder) -> bool:
    return isinstance(word, Placeholder) and word in placeholders


def _tagged(_instance: Any, _attribute: Any, value: Any) -> Any:
    """Keep a slot and a model's file apart from a user's equal text."""
    if isinstance(value, Placeholder | ModelFile):
        return {type(value).__name__: str(value)}
    return value
