"""Settings of all programs: the tables of `config.toml`, resolved from flags, environment and that file."""

import os
import re
import ssl
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import attrs

from llmkube.base.http.egress import Egress
from llmkube.base.http.outbound import trust_file
from llmkube.base.settings import (
    ANY_NAME,
    LOG_LEVELS,
    Config,
    SettingError,
    read_config,
    removed_setting,
    resolve,
    setting,
)
from llmkube.k8s.crd.placement import ACCELERATORS, ACTIVATION_MODES, ALWAYS, ON_REQUEST
from llmkube.k8s.crd.serving import ENGINE_NAME
from llmkube.programs.state_location import STATE_DIR, StateDirSetting, check_state_dir, state_dir_of
from llmkube.runtimes.allowances import EngineTemplate
from llmkube.weights.download.hugging_face import ENDPOINT

NAMESPACE = setting(None, help="Serve only this namespace; without it, all namespaces.")
KUBECONFIG = setting(None, help="Path of the kubeconfig.")
CONTEXT = setting(None, help="Context of the kubeconfig.")
MODEL_STORE = setting(None, help="Folder for model files; without it, `store` in the state directory.")
HF_TOKEN_FILE = setting(
    None, help="File with a Hugging Face token, for every Model that names no Secret; read again for each download."
)
HUB_ENDPOINT = setting(ENDPOINT, help="Address of Hugging Face or a mirror.")
HTTPS_PROXY_PAGES = setting(
    True,
    help="Let web pages behind an https proxy use the API: those whose origin is the host and the port of the request.",
)
LEASE_NAMESPACE = setting("llmkube-system", help="Namespace of the hosts' Leases.")


def port_setting(default: int, purpose: str, *, zero: str = "selects a free one") -> Any:
    """Return the setting of a port; `zero` is the effect of 0, for the help."""
    return setting(default, help=f"Port of {purpose}; 0 {zero}.", minimum=0, maximum=65535)


def program_setting(program: str, runtime: str) -> Any:
    """Return the setting of a runtime's program, which is searched for if it is not set."""
    fallback = "without it, the one on PATH or from Homebrew, if there is one."
    return setting(None, help=f"The {program} of spec.runtime {runtime}; {fallback}")


def log_level_setting(default: str) -> Any:
    """Return the setting of a program's log level."""
    return setting(default, help="Lowest level of log lines to write.", choices=LOG_LEVELS)


def activation_setting(default: str) -> Any:
    """Return the setting of the default for `spec.activation.mode`."""
    return setting(
        default,
        help="Whether models of services without spec.activation.mode are loaded always, or when a request needs them.",
        choices=ACTIVATION_MODES,
    )


def prompt_cache_setting(default: float) -> Any:
    """Return the setting of the disk space for saved prompts."""
    return setting(
        default,
        help="Disk space in GiB for what models have computed of conversations, saved while they are idle and when "
        "they are unloaded, so that they continue after the next load; the files contain the conversations. 0 saves "
        "nothing and removes them.",
        minimum=0,
    )


@attrs.frozen
class EgressConfig:
    """Settings of every program that connects to servers outside."""

    proxy: tuple[str, ...] = setting(
        (),
        help="Proxy for downloads and providers, as TARGET=URL or TARGET=direct: *=http://proxy:3128 for every server, "
        "a domain, an address or a network; the first that matches; repeatable. It overrides HTTPS_PROXY, HTTP_PROXY, "
        "ALL_PROXY and NO_PROXY. Set one with a password in config.toml or the variable: a command line is public.",
    )
    ca_file: Path | None = setting(
        None, help="File of certificates (PEM) to trust besides the system's, for downloads and providers."
    )

    def egress(self, environ: Mapping[str, str] | None = None) -> Egress:
        """Return the proxies of the settings and the environment, and the file of certificates, which is read once.

        Raises:
            UserError: A setting is invalid; the message names its flag.
        """
        if self.ca_file is not None:
            trust_file(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), self.ca_file)
        ca_file = self.ca_file and self.ca_file.absolute()
        return Egress.of(self.proxy, ca_file, os.environ if environ is None else environ)


@attrs.frozen
class HostConfig(EgressConfig):
    """Settings of both programs that run engines on their host: `llmkube up` and `llmkube agent`."""

    llama_server: Path | None = setting(None, help="The llama-server; without it, one on PATH, else the bundled one.")
    mlx_server: Path | None = program_setting("mlx_lm.server", "mlx-lm")
    vllm_metal: Path | None = program_setting("vllm", "vllm-metal")
    ollama: Path | None = program_setting("ollama", "ollama")
    omlx_bin: Path | None = program_setting("omlx", "omlx")
    omlx_port: int = setting(8000, help="Port of an oMLX that is already running.", minimum=1, maximum=65535)
    omlx_key_file: Path | None = setting(
        None,
        help="File with the API key of an oMLX that is already running; without it, an oMLX with a key is not used.",
    )
    omlx_startup_seconds: float = setting(
        120.0, help="Seconds within which an oMLX that was started for a service must respond.", minimum=1
    )
    host_name: str | None = setting(None, help="Name of this machine; by default its short name and four hex digits.")
    host_ip: str | None = setting(None, help="Address of this machine at which clients reach its engines.")
    allow_from: tuple[str, ...] = setting(
        (),
        help="Network (CIDR) from which requests to published engines need no key, in addition to the networks that "
        "an agent always admits (docs/reference/security.md); repeatable. All other requests without a key get 401.",
    )
    s3_env_auth: bool = setting(
        False, help="Use the AWS keys in this program's environment for s3:// sources of Models that name no Secret."
    )
    hf_token_file: Path | None = HF_TOKEN_FILE
    hub_endpoint: str = HUB_ENDPOINT
    allow_engine_flag: tuple[str, ...] = setting(
        (),
        help="Exact name of an engine flag that services may use in extraArgs although it is refused by default; "
        "repeatable. With a flag that takes a file, every editor of a service can read any of your files.",
    )
    allow_engine_variable: tuple[str, ...] = setting(
        (),
        help="Exact name of a variable that services may set in env although it is refused by default; repeatable. "
        "With a variable that loads a library, every editor of a service can run code as you.",
    )
    drain_seconds: float = setting(30.0, help="Time for requests in flight before an engine is stopped.", minimum=0)
    memory_fraction: float = setting(
        0.0,
        help="Share of this machine's memory that all models together may use; 0 selects it by the memory's size: "
        "0.67, or 0.75 from 48 GB, or 0.9 from 128 GB.",
        minimum=0,
        maximum=1,
    )
    memory_check: str = setting(
        "enforce",
        help="Effect if a model's memory need is unknown: enforce refuses the model, warn starts it with an estimate.",
        choices=("enforce", "warn"),
    )
    memory_pressure_warning: float = setting(
        0.10, help="Memory is short if less than this share of it is available.", minimum=0, maximum=1
    )
    memory_pressure_critical: float = setting(
        0.05, help="Memory is critically short if less than this share of it is available.", minimum=0, maximum=1
    )
    eviction: str = setting(
        "on",
        help="Whether services are evicted when memory is short, or for services of higher priority: on, off, or "
        "dry-run, which only reports evictions.",
        choices=("on", "dry-run", "off"),
    )
    eviction_last_service: str = setting(
        "keep", help="Whether the last running engine may be evicted: keep it, or evict it.", choices=("keep", "evict")
    )
    eviction_soft_seconds: float = setting(
        60.0, help="Time for which memory must be short before a busy service is evicted.", minimum=0
    )
    eviction_cooldown_seconds: float = setting(15.0, help="Minimum time between two evictions.", minimum=1)
    eviction_return_seconds: float = setting(
        30.0, help="Time for which memory must be normal before evicted services are restarted.", minimum=1, maximum=60
    )
    state_dir: Path = STATE_DIR  # load() sets the default
    engines: Mapping[str, EngineTemplate] = attrs.field(factory=dict, kw_only=True)  # from their own tables


@attrs.frozen
class AgentConfig(HostConfig):
    """The settings of `llmkube agent`."""

    namespace: str | None = NAMESPACE
    selector: str = setting("", help="Serve only InferenceServices with these labels (team=ml); without it, all.")
    model_store: Path | None = MODEL_STORE
    port: int = port_setting(9090, "/healthz, /readyz and /metrics on 127.0.0.1", zero="for none")
    log_level: str = log_level_setting("info")
    kubeconfig: Path | None = KUBECONFIG
    context: str | None = CONTEXT
    accelerator: tuple[str, ...] = setting(
        ("metal",), help="Accelerator that this host serves; repeatable.", choices=ACCELERATORS
    )
    insecure_lan: bool = setting(False, help="Admit requests to published engines from any address, without a key.")
    activation: str = activation_setting(ALWAYS)
    prompt_cache_gib: float = prompt_cache_setting(0.0)
    endpoints_api: str = setting(
        "endpointslices",
        help="Publish EndpointSlices, or the older Endpoints for scripts that read them.",
        choices=("endpointslices", "endpoints"),
    )
    lease_namespace: str = LEASE_NAMESPACE
    allow_private_sources: tuple[str, ...] = setting(
        (),
        help="Private network (CIDR) from which Models may be downloaded, such as that of a web server next to this "
        "host; repeatable. A Model can make this host send requests to any address in it.",
    )
    allow_local_sources: tuple[str, ...] = setting(
        (),
        help="Folder of this host whose GGUF files Models may name by path; repeatable; none by default. A Model can "
        "make this host serve any GGUF file below it.",
    )
    allow_ollama_sources: tuple[str, ...] = setting(
        (),
        help="Model of this host's Ollama that Models may name as ollama://NAME, such as llama3.2, or * for all that "
        "have no namespace; repeatable; none by default. Ollama pulls what a Model names, and serves your own models.",
    )
    on_exit: str = setting(
        "stop",
        help="Effect of SIGTERM on engines: stop them, or keep them running for the next agent on this host.",
        choices=("stop", "keep"),
    )
    keep_awake: bool = setting(
        False, help="Keep a Mac awake while an engine runs, not only while one serves requests (caffeinate)."
    )
    apple_power_enabled: bool = setting(
        False, help="Measure the power of a Mac's chip; requires the sudoers line that `llmkube agent sudoers` prints."
    )
    power_enabled: bool = setting(
        False,
        help="Measure the power of this host's processors by service: RAPL on Linux; on a Mac use "
        "--apple-power-enabled.",
    )
    log_file: Path | None = setting(
        None,
        help="File to which a service manager appends this program's output; the agent keeps it below 10 MiB.",
        in_file=False,
    )


OWN_NETWORKS = ("127.0.0.0/8", "::1/128", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")
"""This machine and private networks. Under `llmkube up` the owner of the machine writes the Models, and could send
requests to these addresses anyway; in a cluster other users write them."""


@attrs.frozen
class UpConfig(HostConfig):
    """The settings of `llmkube up`."""

    api_port: int = port_setting(7443, "the Kubernetes API on 127.0.0.1")
    gateway_port: int = port_setting(8080, "the OpenAI-compatible gateway on 127.0.0.1")
    gateway_serves: str = setting(
        "all",
        help="Routes of the gateway: all services at /v1 and the ModelRouters, or only the routers, so that requests "
        "to services need the keys of a router.",
        choices=("all", "routers"),
    )
    probe_port: int = port_setting(9090, "/healthz, /readyz and /metrics on 127.0.0.1")
    accelerator: tuple[str, ...] = setting(
        ("cpu", "metal") if sys.platform == "darwin" else (),
        help="Accelerator that this machine serves besides cpu; repeatable. Without it, the GPUs that llama-server "
        "lists.",
        choices=ACCELERATORS,
    )
    activation: str = activation_setting(ON_REQUEST)
    prompt_cache_gib: float = prompt_cache_setting(8.0)
    listen: str | None = setting(
        None,
        help="Address of this machine, such as 192.168.1.50 or 192.168.1.50:8080, at which other machines reach the "
        "gateway, with a key; without a port, that of the gateway.",
    )
    listen_key_file: Path | None = setting(
        None,
        help="File with the keys that clients of --listen may send, one per line; without it, a key is generated and "
        "stored in the state directory.",
    )
    insecure_lan: bool = setting(
        False, help="Admit requests to published engines and to --listen from any address, without a key."
    )
    https_proxy_pages: bool = HTTPS_PROXY_PAGES
    allow_private_sources: tuple[str, ...] = setting(
        OWN_NETWORKS,
        help="Private network (CIDR) from which Models may be downloaded; repeatable. Cloud metadata services are "
        "always refused.",
    )
    allow_local_sources: tuple[str, ...] | None = setting(
        None,
        help="Folder of this machine whose GGUF files Models may name by path; repeatable. Without it, the user's home "
        "and the store.",
    )
    allow_ollama_sources: tuple[str, ...] = setting(
        ("*", "*/*"),
        help="Model of this machine's Ollama that Models may name as ollama://NAME; * matches any part of a name; "
        "repeatable.",
    )
    log_level: str = log_level_setting("warning")


@attrs.frozen
class ListenerConfig(EgressConfig):
    """Settings of programs with a port for clients and one for their operator."""

    state_dir: Path = STATE_DIR  # load() sets the default
    host: str = setting("127.0.0.1", help="Address to listen on; :: means every address of this machine.")
    port: int = port_setting(8080, "the OpenAI-compatible API")
    admin_host: str = setting("127.0.0.1", help="Address of /healthz, /readyz and /metrics.")
    admin_port: int = port_setting(9090, "/healthz, /readyz and /metrics")
    https_proxy_pages: bool = HTTPS_PROXY_PAGES
    log_level: str = log_level_setting("info")


@attrs.frozen
class RouterConfig(ListenerConfig):
    """The settings of `llmkube router`."""

    service: tuple[str, ...] = setting(
        (),
        help="Address of an InferenceService that a ModelRouter names, as NAME=URL, such as "
        "phi-4-mini=http://127.0.0.1:8081/v1; repeatable.",
    )
    keys_dir: Path | None = setting(
        None,
        help="Folder of the keys that a ModelRouter needs: `backends/NAME` holds the key of a provider, each line of "
        "`teams/TEAM` the key of a client; without it, `router-keys` in the state directory.",
    )
    workers: str | None = removed_setting(
        "a router is one process; run replicas on Kubernetes (spec.proxy.replicas) with policy.budgetStore in Redis"
    )


@attrs.frozen
class GatewayConfig(ListenerConfig):
    """The settings of `llmkube gateway`."""

    kubeconfig: Path | None = KUBECONFIG
    context: str | None = CONTEXT
    namespace: tuple[str, ...] = setting(
        (), help="Namespace whose InferenceServices are served; repeatable. Without it, all namespaces."
    )
    policy: Path | None = setting(
        None, help="File with a ModelRouter: its policy, rules and backends; read again when it changes."
    )
    keys_dir: Path = setting(
        Path("/etc/llmkube/gateway-keys"),
        help="Folder of keys: each line of `teams/TEAM` is the key of a client; `services/NAMESPACE.NAME` holds the "
        "key of an engine, `backends/NAME` that of a provider.",
    )
    allow_anonymous: bool = setting(False, help="Serve clients without keys if neither keys nor tokens are configured.")


PER_SERVICE = "perService"
CACHE_MODES = ("shared", PER_SERVICE)
ALLOWANCES = ("foreignVolumes", "tokens", "root", "privileged", "hostNamespaces", "controlPlane")
"""The members of `controller.settings.Allowance`, copied because importing it takes a quarter of a second."""


@attrs.frozen
class ApiServerConfig:
    """The settings of `llmkube apiserver`."""

    state_dir: Path = STATE_DIR  # load() sets the default
    port: int = port_setting(7443, "the Kubernetes API on 127.0.0.1")
    log_level: str = log_level_setting("info")


@attrs.frozen
class ControllerConfig:
    """The settings of `llmkube controller`."""

    kubeconfig: Path | None = KUBECONFIG
    context: str | None = CONTEXT
    namespace: str | None = setting(None, help="Reconcile only this namespace; without it, all namespaces.")
    accelerator: tuple[str, ...] = setting(
        ("metal",),
        help="Accelerator that hosts serve; Models that require another one are served by pods; repeatable.",
        choices=ACCELERATORS,
    )
    lease_namespace: str = LEASE_NAMESPACE
    image: str = setting("", help="Image of this program for Jobs that fetch weights; without it, no pods are created.")
    image_pull_secret: tuple[str, ...] = setting(
        (), help="Secret for pulling that image, which must exist in every namespace; repeatable."
    )
    cache_mode: str = setting(
        "shared",
        help="Volumes for weights: one for each namespace (shared), or one for each service (perService).",
        choices=CACHE_MODES,
    )
    cache_size: str = setting("100Gi", help="Size of each volume for weights.")
    cache_storage_class: str = setting("", help="StorageClass of these volumes; without it, the cluster's default.")
    cache_access_mode: str = setting(
        "ReadWriteOnce",
        help="Access mode of these volumes; ReadWriteOnce keeps the pods that share a volume on one node.",
        choices=("ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"),
    )
    cache_fs_group: int = setting(
        65532, help="Group that may write to these volumes; 0 if the cluster assigns one (OpenShift).", minimum=0
    )
    host_path: tuple[str, ...] = setting(
        (), help="Folder of the nodes that Models may name by path and services may mount read-only; repeatable."
    )
    allow: tuple[str, ...] = setting(
        (),
        help="Privilege that an editor of an InferenceService may request for its pods; repeatable.",
        choices=ALLOWANCES,
    )
    allow_priority_class: tuple[str, ...] = setting(
        (), help="PriorityClass, or a pattern of names (gpu-*), that services may name; repeatable."
    )
    ca_config_map: str = setting(
        "",
        help="ConfigMap whose ca.crt is trusted besides the system's certificates, for fetching weights and by "
        "routers; it must exist in every namespace with Models.",
    )
    proxy: tuple[str, ...] = setting(
        (),
        help="Proxy for pods that fetch weights and for routers, as TARGET=URL or TARGET=direct (*=http://proxy:3128); "
        "repeatable. They also get this program's HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY.",
    )
    priority_class_prefix: str | None = setting(
        None,
        help="Prefix of the pods' PriorityClass, to which the service's priority is appended; without it, the chart's "
        "classes if the cluster has them; empty for none.",
    )
    shared_gpu_node: tuple[str, ...] = setting(
        (), help="Label (KEY=VALUE) of nodes whose GPUs are shared, for services that request one; repeatable."
    )
    monitor_label: tuple[str, ...] = setting(
        (), help="Label (KEY=VALUE) of services' PodMonitors, by which a Prometheus selects them; repeatable."
    )
    engine_image: tuple[str, ...] = setting(
        (), help="Image (RUNTIME=IMAGE, RUNTIME-STACK=IMAGE) of an engine, in place of the default; repeatable."
    )
    gpu_resource: tuple[str, ...] = setting(
        (),
        help="Extended resource (VENDOR=NAME, VENDOR-STACK=NAME) of a GPU, such as amd-vulkan=devic.es/dri-render; "
        "repeatable.",
    )
    image_registry: str = setting("", help="Registry of all engine images, in place of each image's own.")
    allow_private_sources: tuple[str, ...] = setting(
        (), help="Private network (CIDR) from which Models may be fetched; repeatable."
    )
    hub_endpoint: str = setting("", help="Address of Hugging Face or a mirror.")
    look_seconds: int = setting(
        3600, help="Seconds between two checks of the source of a Model with refreshPolicy OnChange.", minimum=60
    )
    prune_cache: bool = setting(
        False, help="Remove weights from each namespace's volume ten minutes after the last Model stopped naming them."
    )
    drain_container: bool = setting(
        True,
        help="Add a container of this program's image next to each engine, which delays the termination of a pod until "
        "its requests are finished; without it, pods sleep for ten seconds (Kubernetes 1.30 or later).",
    )
    port: int = port_setting(0, "/healthz, /readyz and /metrics on all addresses", zero="for none")
    state_dir: Path = STATE_DIR  # load() sets the default
    log_level: str = log_level_setting("info")


T = TypeVar("T")

ENGINES = "engines"

TABLES: Mapping[str, type[Any]] = {
    "up": UpConfig,
    "agent": AgentConfig,
    "controller": ControllerConfig,
    "apiserver": ApiServerConfig,
    "router": RouterConfig,
    ENGINES + ANY_NAME: EngineTemplate,
}
"""The tables of `config.toml`."""


def load(table: str, kind: type[T], flags: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> T:
    """Return a program's settings from flags, environment and the state directory's `config.toml`.

    The result's `state_dir`, if it has one, is the folder whose `config.toml` was read.

    Raises:
        SettingError: A source has an invalid value; the message names it.
        UserError: Another user could have written to the state directory.
    """
    environ = os.environ if environ is None else environ
    state_dir = state_dir_of(resolve(StateDirSetting, flags=flags, environ=environ).state_dir)
    file = state_dir / "config.toml"
    config = read_config(file, TABLES) if check_state_dir(state_dir) else Config(file)
    found = resolve(kind, flags={**flags, "state_dir": state_dir}, environ=environ, config=config, table=table)
    return attrs.evolve(found, engines=_engines_of(config)) if isinstance(found, HostConfig) else found


def _engines_of(config: Config) -> dict[str, EngineTemplate]:
    engines = {}
    for table in config.tables:
        group, _, name = table.partition(".")
        if group == ENGINES:
            if not re.fullmatch(ENGINE_NAME, name):
                raise SettingError(f"{config.path}: {table}: {name!r} is not a name; use letters, digits, - and _")
            engines[name] = resolve(EngineTemplate, flags={}, environ={}, config=config, table=table)
            engines[name].check(f"{config.path}: {table}")
    return engines
