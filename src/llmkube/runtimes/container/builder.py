"""What a runtime is, and the builder with which it plans a service's container.

A runtime is a pure function from a `ContainerBuilder` to a `ContainerPlan`, with its name and its options. The builder
knows what all runtimes have in common: port, image, probes, environment, token, sources. Built-in runtimes and
plug-ins use the same one; `docs/adding-a-runtime.md` is the guide.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from llmkube.k8s.crd.inferenceservice import InferenceService, InferenceServiceSpec
from llmkube.k8s.crd.meta import SecretKeySelector
from llmkube.k8s.crd.model import FORMATS, Model, ModelSpec
from llmkube.k8s.crd.placement import EndpointSpec
from llmkube.runtimes.arguments import CommandLine, refuse_owned
from llmkube.runtimes.container.container_plan import (
    PORT_NAME,
    ContainerPlan,
    KeyCheck,
    Probe,
    Probes,
    Resources,
    ScalingMetric,
    Variable,
)
from llmkube.runtimes.container.gpu import stack_of
from llmkube.runtimes.container.images import CPU, Images
from llmkube.runtimes.llama_fields import mode_of
from llmkube.runtimes.plan import Placeholder, PlanError
from llmkube.weights.errors import SourceError
from llmkube.weights.source import (
    DEFAULT_REVISION,
    HubRepository,
    ImageSource,
    LocalFile,
    Source,
    VolumeSource,
    parse_source,
)

SOURCE: Final = "Model.spec.source"


def hub_repository(source: str) -> HubRepository | None:
    """Return the Hugging Face repository that a source names as a whole, a web page's address included; None if none.

    Raises:
        PlanError: The source is malformed, or names one quantization.
    """
    parsed = parsed_source(source)
    if not isinstance(parsed, HubRepository):
        return None
    if parsed.quantization:
        raise PlanError(
            f"this engine takes a repository as a whole, and {parsed.redacted} names one GGUF file of it; leave "
            f":{parsed.quantization} out, or serve it with llama.cpp",
            field=SOURCE,
        )
    return parsed


def is_mounted(source: Source) -> bool:
    """Whether a pod gets the weights by mounting them, with nothing to fetch: a volume, an image, a node's path."""
    return isinstance(source, ImageSource | LocalFile | VolumeSource)


def parsed_source(source: str) -> Source:
    """Return what a source means.

    Raises:
        PlanError: It is malformed.
    """
    try:
        return parse_source(source)
    except SourceError as exc:
        raise PlanError(str(exc).removeprefix("spec.source: "), field=SOURCE) from exc


DEFAULT_PATH: Final = EndpointSpec().path
ANY_ADDRESS: Final = "::"
"""All addresses of both families: an IPv6 socket on Linux takes IPv4 as well, unless its program forbids that."""

ANY_IPV4: Final = "0.0.0.0"  # noqa: S104 (a pod has an address of its own, and is reached by that one alone)
"""All IPv4 addresses, for what listens by asyncio or uvloop: given `::`, both set IPV6_V6ONLY."""

LOOPBACK: Final = "127.0.0.1"
"""Every pod has it, also one whose own addresses are all IPv6."""

KEYS_FIELD: Final = "spec.apiKeySecretRef"

_ENGINE_PORT: Final = 21410
"""Where an engine listens behind what asks for keys: above the ports of engines, below those that Linux gives away."""

_SECRET_FLAGS: Final = dict.fromkeys(
    ("--api-key", "--admin-api-key", "--hf-token", "-hft", "--ssl-keyfile-password"),
    "a Secret, by spec.env: a command line is public",
)
_FETCHED: Final = ("sha256", "files", "sourceSecretRef.name")
PATHS: Final = {"chat": DEFAULT_PATH, "embedding": "/v1/embeddings", "rerank": "/v1/rerank"}
"""Where an OpenAI-compatible engine answers, by mode."""


def gateway_name(spec: InferenceServiceSpec) -> str:
    """Return the model that clients of a gateway name to reach a service.

    vLLM and Ollama answer 404 to a name that they have not been given. SGLang, TGI and llama.cpp's server with one
    model take any, Triton's clients name the model in the path.
    """
    gateway = spec.endpoint.gateway
    return (gateway.model_name if gateway else None) or spec.model_ref


def fetches_if_told(spec: InferenceServiceSpec, model: ModelSpec) -> bool:
    """Whether the engine brings its own weights: if the service says so."""
    return bool(spec.skip_model_init)


def fetches_always(spec: InferenceServiceSpec, model: ModelSpec) -> bool:
    """Whether the engine brings its own weights: yes; what is mounted it can read as well."""
    return True


def fetches_repositories(spec: InferenceServiceSpec, model: ModelSpec) -> bool:
    """Whether the engine brings its own weights: if told, and a whole Hugging Face repository in any case."""
    return fetches_if_told(spec, model) or (not model.files and hub_repository(model.source) is not None)


@attrs.frozen(kw_only=True)
class Runtime:
    """One inference engine in a container.

    Attributes:
        name: The value of `spec.runtime`.
        plan: Writes the container; pure.
        fetches: Whether the engine brings its own weights, so that no init container fetches for it; pure.
        reads: The `spec.format` values that it can be handed; for the runtimes that come with LLMKube
            `k8s.crd.pairing` says it.
        images: The images that serve it, each with a tag, by compute stack (`cuda`, `rocm`, `vulkan`, `intel`); by ""
            where no GPU is asked for. An engine that needs one has an image there as well: the cluster may hand a GPU
            out by other means (runtimeClassName).
        image_key: The name under which an operator names others, where these are another runtime's.
        asks_keys: Whether it can stand behind what asks for keys: it has one port, which speaks HTTP.
        config: The class of its own options (a wire class, see `k8s.fields`), if it has any.
        config_key: The field of the InferenceService's spec that holds them, such as `echoConfig`.
    """

    name: str
    plan: "Callable[[ContainerBuilder], ContainerPlan]"
    fetches: Callable[[InferenceServiceSpec, ModelSpec], bool] = fetches_if_told
    reads: tuple[str, ...] = FORMATS
    images: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    image_key: str = ""
    asks_keys: bool = True
    config: type[Any] | None = None
    config_key: str = ""


@attrs.define(eq=False, kw_only=True)
class ContainerBuilder:
    """The container of a service, while a runtime plans it.

    Attributes:
        runtime: The runtime that plans.
        service: What is asked.
        model: Of which Model.
        images: What the operator has to say about images.
        resources: What a replica requests; GPUs are counted there.
        config: The runtime's own options, decoded; None if it has none or the service gives none.
        line: The command line; a field is honoured once it has found a place there.
        env: Our variables; the user's come last, by themselves.
        key_check: What stands in front of the engine, once `behind_keys` was asked.
    """

    runtime: Runtime
    service: InferenceService
    model: Model
    images: Images = Images()
    resources: Resources = Resources()
    config: Any = None
    line: CommandLine
    env: list[Variable] = attrs.Factory(list)
    key_check: KeyCheck | None = attrs.field(default=None, init=False)

    @property
    def spec(self) -> InferenceServiceSpec:
        """What is asked."""
        return self.service.spec

    @property
    def name(self) -> str:
        """The service's name, by which clients ask for the model."""
        return self.service.metadata.name

    @property
    def mode(self) -> str:
        """What the engine shall offer: `chat`, `embedding` or `rerank`."""
        return mode_of(self.spec)

    @property
    def fetches(self) -> bool:
        """Whether the engine brings its own weights."""
        return self.runtime.fetches(self.spec, self.model.spec)

    @property
    def source(self) -> Source:
        """Where the weights come from."""
        return parsed_source(self.model.spec.source)

    def honour(self, *paths: str) -> None:
        """Say that fields have had an effect other than on the command line."""
        self.line.honoured.update(paths)

    def refuse(self, owned: Mapping[str, str]) -> None:
        """Refuse flags in `spec.extraArgs` that are decided elsewhere, and those that would show a secret.

        Args:
            owned: Who decides, by flag.

        Raises:
            PlanError: The first of them.
        """
        refuse_owned(self.spec.extra_args, {**_SECRET_FLAGS, **owned})

    def refuse_value(self, path: str, value: str | None, unsupported: Mapping[str, str]) -> None:
        """Refuse a value that the schema allows and our image does not know; of another image the user knows better.

        Args:
            path: The field.
            value: What it says.
            unsupported: What to do instead, by value.

        Raises:
            PlanError: It is one of them.
        """
        if not self.spec.image and value is not None and value in unsupported:
            raise PlanError(f"the image of {self.runtime.name} does not know {value}: {unsupported[value]}", field=path)

    def port(self, default: int) -> int:
        """Return the port to listen on: the runtime's own unless the service names one."""
        self.honour("spec.containerPort")
        return self.spec.container_port or default

    def behind_keys(self, port: int, *host_flags: str) -> int | None:
        """Return where on `LOOPBACK` the engine shall listen because its clients have keys; None when they have none.

        What asks for the keys then listens on `port`, in a container of its own: not every engine asks on all of its
        paths, takes several keys, or keeps them off its command line.

        Args:
            port: As `port` returned it.
            *host_flags: The engine's flags that say where it listens.

        Raises:
            PlanError: The service says where the engine listens.
        """
        ref = self.spec.api_key_secret_ref
        if ref is None:
            return None
        owner = f"{KEYS_FIELD}, with which the engine listens on the pod's loopback address"
        if self.spec.bind_address:
            raise PlanError(f"the address is decided by {owner}: leave one of the two out", field="spec.bindAddress")
        refuse_owned(self.spec.extra_args, dict.fromkeys(host_flags, owner))
        self.honour(f"{KEYS_FIELD}.name", f"{KEYS_FIELD}.key")
        self.key_check = KeyCheck(ref.name, ref.key, _ENGINE_PORT + (port == _ENGINE_PORT))
        return self.key_check.engine_port

    def add_listener(self, host_flag: str, port_flag: str, port: int, *, anywhere: str = ANY_ADDRESS) -> None:
        """Write where to listen: on all addresses (`anywhere`, to this engine) unless the service names one.

        An engine whose clients have keys listens behind what asks for them (`behind_keys`).
        """
        loopback_port = self.behind_keys(port, host_flag)
        if loopback_port is not None:
            self.line.argv += [host_flag, LOOPBACK, port_flag, str(loopback_port)]
            return
        if self.spec.bind_address:
            self.line.add("spec.bindAddress", host_flag)
            self.line.argv.append(self.spec.bind_address)  # as it is: `$(POD_IP)` is an address that only a pod knows
        else:
            self.line.default(host_flag, value=anywhere)
        self.line.argv += [port_flag, str(port)]

    def names(self) -> tuple[str, ...]:
        """Return all names by which clients ask for the model: the service's, its aliases, and a gateway's for it."""
        gateway = self.spec.endpoint.gateway
        self.honour("spec.endpoint.gateway.enabled", "spec.aliases")
        found = (self.name, *self.spec.aliases)
        if gateway is None or not gateway.enabled:
            return tuple(dict.fromkeys(found))
        self.honour("spec.endpoint.gateway.modelName")
        return tuple(dict.fromkeys((*found, gateway_name(self.spec))))

    def weights(self) -> str:
        """Return the argument for weights that are fetched or mounted: their file, or the folder of several.

        Raises:
            PlanError: The engine shall bring its own, and the source is nothing that is mounted.
        """
        if self.fetches and not is_mounted(self.source):
            hint = ", or leave spec.skipModelInit out" if self.spec.skip_model_init else ""
            raise PlanError(f"{self.runtime.name} cannot fetch this itself: name a Hugging Face repository, a pvc:// "
                            f"volume or a path{hint}", field=SOURCE)  # fmt: skip
        self.honour(SOURCE)
        # the parts of a split gguf lie beside the first, which leads to them
        return (
            Placeholder.FOLDER
            if len(self.model.spec.files) > 1 and self.model.spec.format != "gguf"
            else Placeholder.MODEL
        )

    def repository(self, cache_variable: str = "HF_HOME") -> HubRepository | None:
        """Return the repository that the engine fetches for itself; None if it is handed files.

        Args:
            cache_variable: The variable for the folder of what it fetches; empty if it needs none.
        """
        found = hub_repository(self.model.spec.source) if self.fetches else None
        if found is not None:
            self.honour(SOURCE)
            if cache_variable:
                self.env.append(Variable(cache_variable, Placeholder.CACHE))
        return found

    def add_model(self, *flags: str, cache_variable: str = "HF_HOME") -> HubRepository | None:
        """Write the repository that the engine fetches, with its revision, or the weights that it is handed.

        Args:
            *flags: What goes before it.
            cache_variable: As for `repository`.

        Raises:
            PlanError: As `repository` and `weights`.
        """
        repository = self.repository(cache_variable)
        self.line.argv += [*flags, repository.name if repository else self.weights()]
        if repository and repository.revision != DEFAULT_REVISION:
            self.line.argv += ["--revision", repository.revision]
        return repository

    def add_cache_type(self, path: str, kind: str, custom: str | None) -> None:
        """Write the type of the KV cache that the options at `path` name; `custom` wins, and `auto` says nothing."""
        if custom:
            self.line.add(f"{path}.kvCacheCustomDtype", "--kv-cache-dtype", custom)
        elif kind != "auto":
            self.line.add(f"{path}.kvCacheDtype", "--kv-cache-dtype", kind)

    def add_token(self, ref: SecretKeySelector | None, path: str, *names: str) -> None:
        """Hand the engine its Hugging Face token: the one that `path` refers to, else the Model's own.

        Args:
            ref: The key of a Secret that the service names.
            path: The field that holds it.
            *names: The variables to set; `HF_TOKEN` if none is named.
        """
        if ref is None and self.model.spec.source_secret_ref is not None and self.fetches:
            path = "Model.spec.sourceSecretRef"
            ref = SecretKeySelector(name=self.model.spec.source_secret_ref.name, key="HF_TOKEN")
        if ref is not None:
            self.honour(*(f"{path}.{key}" for key in ("name", "key", "optional")))
            self.env += [Variable.from_secret(name, ref) for name in names or ("HF_TOKEN",)]

    def finish(
        self,
        *,
        container_name: str,
        port: int,
        probes: Probes,
        image: str = "",
        on_cpu: bool = False,
        command: tuple[str, ...] = (),
        extra_args: bool = True,
        endpoint_path: str = "",
        hpa_metric: ScalingMetric | None = None,
        metrics_port_name: str = PORT_NAME,
        **further: Any,
    ) -> ContainerPlan:
        """Return the plan: what the runtime decides, and what every container takes from its service.

        Args:
            container_name: What the container is called.
            port: As `port` returned it.
            probes: The runtime's; those of the service are merged into them.
            image: The runtime's own image where it has none in `Runtime.images`.
            on_cpu: Whether an image for CPUs alone may serve it.
            command: The runtime's entrypoint; empty leaves the image's.
            extra_args: Whether the command line ends with `spec.extraArgs`.
            endpoint_path: What the engine answers; empty for OpenAI's paths by `spec.mode`.
            hpa_metric: As in the plan.
            metrics_port_name: As in the plan.
            **further: The plan's other attributes.

        Raises:
            PlanError: There is no image.
        """
        spec = self.spec
        self.honour("spec.image", "spec.command", "spec.env", "spec.skipModelInit", "spec.endpoint.path")
        self.honour(*(f"spec.probeOverrides.{name}" for name in ("startup", "liveness", "readiness")))
        if extra_args:
            self.honour("spec.extraArgs")
            self.line.argv += spec.extra_args
        if not self.fetches:
            self.honour(*(f"Model.spec.{path}" for path in _FETCHED))
        if spec.metrics_path:
            self.honour("spec.metricsPath")
            metrics_port_name, further = metrics_port_name or PORT_NAME, {**further, "metrics_path": spec.metrics_path}
        image_key = self.runtime.image_key or self.runtime.name
        stack = CPU if on_cpu else stack_of(self.model.spec) if self.resources.on_gpu else ""
        pinned = image or self.runtime.images.get(stack, "")
        return ContainerPlan(
            runtime=self.runtime.name,
            container_name=container_name,
            image=spec.image or self.images.choose(image_key, stack, pinned),
            image_before=self.images.superseded(image_key, stack, pinned) if on_cpu and not spec.image else "",
            port=port,
            command=spec.command or command,
            args=tuple(self.line.argv),
            env=self._environment(),
            probes=self._probes(probes),
            resources=self.resources,
            needs_model_init=not self.fetches,
            endpoint_path=self._endpoint_path(endpoint_path),
            hpa_metric=hpa_metric,
            metrics_port_name=metrics_port_name,
            key_check=self.key_check,
            **further,
        )

    def _environment(self) -> tuple[Variable, ...]:
        """Ours, then the user's; a name that is there twice is what was said last, as in a pod."""
        variables: dict[str, Variable] = {}
        user_variables = [Variable(each.name, each.value or "", each.value_from) for each in self.spec.env]
        for variable in (*self.env, *user_variables):
            variables.pop(variable.name, None)
            variables[variable.name] = variable
        return tuple(variables.values())

    def _probes(self, probes: Probes) -> Probes:
        overrides = self.spec.probe_overrides

        def merged(probe: Probe, override: Mapping[str, Any] | None) -> Probe:
            return attrs.evolve(probe, override=override) if override else probe

        if overrides is None:
            return probes
        return Probes(
            startup=merged(probes.startup, overrides.startup),
            liveness=merged(probes.liveness, overrides.liveness),
            readiness=merged(probes.readiness, overrides.readiness),
        )

    def _endpoint_path(self, runtime_path: str) -> str:
        if self.spec.endpoint.path != DEFAULT_PATH:
            return self.spec.endpoint.path
        if not runtime_path:
            self.honour("spec.mode")
        return runtime_path or PATHS.get(self.mode, DEFAULT_PATH)
