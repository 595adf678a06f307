"""The class of a runtime, and the builder with which it plans a service's container.

A runtime is a pure function from a `ContainerBuilder` to a `ContainerPlan`, with a name and options. The builder does
what all runtimes have in common: port, image, probes, environment, token, sources. Built-in runtimes and plug-ins use
the same builder; `docs/guides/adding-a-runtime.md` is the guide.
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
    """Return the whole Hugging Face repository that a source names, perhaps by the URL of its page; None if none.

    Raises:
        PlanError: The source is malformed, or names one quantization.
    """
    parsed = parsed_source(source)
    if not isinstance(parsed, HubRepository):
        return None
    if parsed.quantization:
        raise PlanError(
            f"this engine needs a whole repository, but {parsed.redacted} names one GGUF file in it; remove "
            f":{parsed.quantization}, or serve it with llama.cpp",
            field=SOURCE,
        )
    return parsed


def is_mounted(source: Source) -> bool:
    """Return whether a pod mounts the weights and fetches nothing: from a volume, an image or a node's path."""
    return isinstance(source, ImageSource | LocalFile | VolumeSource)


def parsed_source(source: str) -> Source:
    """Return the parsed source.

    Raises:
        PlanError: It is malformed.
    """
    try:
        return parse_source(source)
    except SourceError as exc:
        raise PlanError(str(exc).removeprefix("spec.source: "), field=SOURCE) from exc


DEFAULT_PATH: Final = EndpointSpec().path
ANY_ADDRESS: Final = "::"
"""All addresses of both families: an IPv6 socket on Linux also accepts IPv4, unless its program disables that."""

ANY_IPV4: Final = "0.0.0.0"  # noqa: S104 (a pod has its own address, and can be reached only there)
"""All IPv4 addresses, for servers on asyncio or uvloop: for `::`, both set IPV6_V6ONLY."""

LOOPBACK: Final = "127.0.0.1"
"""Every pod has it, even if its own addresses are all IPv6."""

KEYS_FIELD: Final = "spec.apiKeySecretRef"

_ENGINE_PORT: Final = 21410
"""Port of an engine behind a key check: above the default ports of engines, below Linux's ephemeral ports."""

_SECRET_FLAGS: Final = dict.fromkeys(
    ("--api-key", "--admin-api-key", "--hf-token", "-hft", "--ssl-keyfile-password"),
    "spec.env with a Secret, since a command line is public",
)
_FETCHED: Final = ("sha256", "files", "sourceSecretRef.name")
PATHS: Final = {"chat": DEFAULT_PATH, "embedding": "/v1/embeddings", "rerank": "/v1/rerank"}
"""Paths of an OpenAI-compatible engine, by mode."""


def gateway_name(spec: InferenceServiceSpec) -> str:
    """Return the name of the model with which clients of a gateway address a service.

    vLLM and Ollama answer 404 to an unknown name. SGLang, TGI and llama.cpp's server with one model accept any;
    Triton's clients name the model in the path.
    """
    gateway = spec.endpoint.gateway
    return (gateway.model_name if gateway else None) or spec.model_ref


def fetches_if_told(spec: InferenceServiceSpec, model: ModelSpec) -> bool:
    """Return whether the engine fetches the weights itself: if `spec.skipModelInit` is set."""
    return bool(spec.skip_model_init)


def fetches_always(spec: InferenceServiceSpec, model: ModelSpec) -> bool:
    """Return True: the engine fetches the weights itself, and can also read mounted ones."""
    return True


def fetches_repositories(spec: InferenceServiceSpec, model: ModelSpec) -> bool:
    """Return whether the engine fetches the weights itself: a whole Hugging Face repository, or if requested."""
    return fetches_if_told(spec, model) or (not model.files and hub_repository(model.source) is not None)


@attrs.frozen(kw_only=True)
class Runtime:
    """One inference engine in a container.

    Attributes:
        name: The value of `spec.runtime`.
        plan: Plans the container; pure.
        fetches: Returns whether the engine fetches the weights itself, so that no init container has to; pure.
        reads: Values of `spec.format` that it can read; for the built-in runtimes they are in `k8s.crd.pairing`.
        images: Its images, each with a tag, by compute stack (`cuda`, `rocm`, `vulkan`, `intel`); by "" if no GPU is
            requested. An engine that needs a GPU has an image there as well: the cluster may assign one by other means
            (runtimeClassName).
        image_key: Name under which an operator overrides its images, if they are those of another runtime.
        asks_keys: Whether a key check can be put in front of it: it has one port, with HTTP.
        config: Class of its own options (a wire class, see `k8s.fields`), if it has any.
        config_key: Field of the InferenceService's spec for them, such as `echoConfig`.
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
        service: The service.
        model: The Model that it refers to.
        images: The operator's settings for images.
        resources: Resources of a replica, with the number of GPUs.
        config: The runtime's own options, decoded; None if it has none or the service sets none.
        line: The command line; a field that is written there is honoured.
        env: Our variables; `finish` adds the user's.
        key_check: The key check in front of the engine, set by `behind_keys`.
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
        """The spec of the service."""
        return self.service.spec

    @property
    def name(self) -> str:
        """The service's name, with which clients request the model."""
        return self.service.metadata.name

    @property
    def mode(self) -> str:
        """Mode of the engine: `chat`, `embedding` or `rerank`."""
        return mode_of(self.spec)

    @property
    def fetches(self) -> bool:
        """Whether the engine fetches the weights itself."""
        return self.runtime.fetches(self.spec, self.model.spec)

    @property
    def source(self) -> Source:
        """Parsed source of the weights."""
        return parsed_source(self.model.spec.source)

    def honour(self, *paths: str) -> None:
        """Record that fields have an effect outside the command line."""
        self.line.honoured.update(paths)

    def refuse(self, owned: Mapping[str, str]) -> None:
        """Reject flags in `spec.extraArgs` that are controlled elsewhere, and those that would expose a secret.

        Args:
            owned: The field or program that controls a flag, by flag.

        Raises:
            PlanError: For the first of these flags.
        """
        refuse_owned(self.spec.extra_args, {**_SECRET_FLAGS, **owned})

    def refuse_value(self, path: str, value: str | None, unsupported: Mapping[str, str]) -> None:
        """Reject a value that the schema allows but our image does not support; other images are not checked.

        Args:
            path: Path of the field.
            value: Value of the field.
            unsupported: Unsupported values, with the reason or the fix.

        Raises:
            PlanError: The value is one of them.
        """
        if not self.spec.image and value is not None and value in unsupported:
            problem = f"the image of {self.runtime.name} does not support {value}"
            raise PlanError(f"{problem}: {unsupported[value]}", field=path)

    def port(self, default: int) -> int:
        """Return the port to listen on: the service's, or else the runtime's default."""
        self.honour("spec.containerPort")
        return self.spec.container_port or default

    def behind_keys(self, port: int, *host_flags: str) -> int | None:
        """Return the port on `LOOPBACK` where the engine has to listen if its clients have keys; else None.

        The key check then listens on `port`, in its own container: not every engine checks keys on all of its paths,
        accepts several, or keeps them off its command line.

        Args:
            port: Result of `port`.
            *host_flags: The engine's flags for its listening address.

        Raises:
            PlanError: The service sets the engine's listening address.
        """
        ref = self.spec.api_key_secret_ref
        if ref is None:
            return None
        owner = f"{KEYS_FIELD}, with which the engine listens on the pod's loopback address"
        if self.spec.bind_address:
            raise PlanError(f"the address is controlled by {owner}; remove one of the two", field="spec.bindAddress")
        refuse_owned(self.spec.extra_args, dict.fromkeys(host_flags, owner))
        self.honour(f"{KEYS_FIELD}.name", f"{KEYS_FIELD}.key")
        self.key_check = KeyCheck(ref.name, ref.key, _ENGINE_PORT + (port == _ENGINE_PORT))
        return self.key_check.engine_port

    def add_listener(self, host_flag: str, port_flag: str, port: int, *, anywhere: str = ANY_ADDRESS) -> None:
        """Add the address and port to listen on: all addresses (`anywhere`), unless the service sets one.

        An engine whose clients have keys listens behind the key check (`behind_keys`).
        """
        loopback_port = self.behind_keys(port, host_flag)
        if loopback_port is not None:
            self.line.argv += [host_flag, LOOPBACK, port_flag, str(loopback_port)]
            return
        if self.spec.bind_address:
            self.line.add("spec.bindAddress", host_flag)
            self.line.argv.append(self.spec.bind_address)  # not escaped: `$(POD_IP)` is expanded in the pod
        else:
            self.line.default(host_flag, value=anywhere)
        self.line.argv += [port_flag, str(port)]

    def names(self) -> tuple[str, ...]:
        """Return all names with which clients request the model: the service's, its aliases, and the gateway's."""
        gateway = self.spec.endpoint.gateway
        self.honour("spec.endpoint.gateway.enabled", "spec.aliases")
        found = (self.name, *self.spec.aliases)
        if gateway is None or not gateway.enabled:
            return tuple(dict.fromkeys(found))
        self.honour("spec.endpoint.gateway.modelName")
        return tuple(dict.fromkeys((*found, gateway_name(self.spec))))

    def weights(self) -> str:
        """Return the argument for fetched or mounted weights: their file, or the folder of several files.

        Raises:
            PlanError: The engine has to fetch the weights itself, and the source is not mounted.
        """
        if self.fetches and not is_mounted(self.source):
            hint = ", or remove spec.skipModelInit" if self.spec.skip_model_init else ""
            advice = f"name a Hugging Face repository, a pvc:// volume or a path{hint}"
            raise PlanError(f"{self.runtime.name} cannot fetch this itself; {advice}", field=SOURCE)
        self.honour(SOURCE)
        # the engine finds the parts of a split gguf next to the first
        has_folder = len(self.model.spec.files) > 1 and self.model.spec.format != "gguf"
        return Placeholder.FOLDER if has_folder else Placeholder.MODEL

    def repository(self, cache_variable: str = "HF_HOME") -> HubRepository | None:
        """Return the repository that the engine fetches itself; None if it is given files.

        Args:
            cache_variable: Variable for the folder of fetched files; empty if the engine needs none.
        """
        found = hub_repository(self.model.spec.source) if self.fetches else None
        if found is not None:
            self.honour(SOURCE)
            if cache_variable:
                self.env.append(Variable(cache_variable, Placeholder.CACHE))
        return found

    def add_model(self, *flags: str, cache_variable: str = "HF_HOME") -> HubRepository | None:
        """Add the repository that the engine fetches, with its revision, or else the path of the weights.

        Args:
            *flags: Arguments before it.
            cache_variable: As for `repository`.

        Raises:
            PlanError: As for `repository` and `weights`.
        """
        repository = self.repository(cache_variable)
        self.line.argv += [*flags, repository.name if repository else self.weights()]
        if repository and repository.revision != DEFAULT_REVISION:
            self.line.argv += ["--revision", repository.revision]
        return repository

    def add_cache_type(self, path: str, kind: str, custom: str | None) -> None:
        """Add the type of the KV cache from the options at `path`; `custom` has precedence, `auto` adds nothing."""
        if custom:
            self.line.add(f"{path}.kvCacheCustomDtype", "--kv-cache-dtype", custom)
        elif kind != "auto":
            self.line.add(f"{path}.kvCacheDtype", "--kv-cache-dtype", kind)

    def add_token(self, ref: SecretKeySelector | None, path: str, *names: str) -> None:
        """Pass a Hugging Face token to the engine: the one in the field `path`, or else the Model's.

        Args:
            ref: Key of a Secret that the service names.
            path: Path of that field.
            *names: Variables to set; `HF_TOKEN` by default.
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
        """Return the plan, from the runtime's arguments and the settings that all containers take from their services.

        Args:
            container_name: Name of the container.
            port: Result of `port`.
            probes: The runtime's probes; those of the service are merged into them.
            image: The runtime's own image, if it is not in `Runtime.images`.
            on_cpu: Whether a CPU-only image can serve it.
            command: The runtime's entrypoint; empty for that of the image.
            extra_args: Whether the command line ends with `spec.extraArgs`.
            endpoint_path: Path of the engine's API; empty for OpenAI's paths by `spec.mode`.
            hpa_metric: As in the plan.
            metrics_port_name: As in the plan.
            **further: Other attributes of the plan.

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
        """Return our variables, then the user's; of two with one name the last applies, as in a pod."""
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
