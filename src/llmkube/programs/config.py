"""The settings of every program: the tables of `config.toml`, and how they are found: flags, environment, that file."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import attrs

from llmkube.base.settings import LOG_LEVELS, Config, read_config, removed_setting, resolve, setting
from llmkube.k8s.crd.placement import ACCELERATORS
from llmkube.programs.state_location import STATE_DIR, StateDirSetting, check_state_dir, state_dir_of
from llmkube.weights.download.hugging_face import ENDPOINT

NAMESPACE = setting(None, help="Only serve this namespace; without it, all of them.")
KUBECONFIG = setting(None, help="Path of the kubeconfig.")
CONTEXT = setting(None, help="Context of the kubeconfig.")
MODEL_STORE = setting(None, help="Folder for model files; without it, `store` in the state directory.")
HF_TOKEN_FILE = setting(
    None, help="File with a Hugging Face token, for every Model that names no Secret; read anew for each download."
)
HUB_ENDPOINT = setting(ENDPOINT, help="Address of Hugging Face, or of a mirror of it.")
LEASE_NAMESPACE = setting("llmkube-system", help="Namespace of the hosts' Leases.")


def port_setting(default: int, purpose: str, *, zero: str = "takes a free one") -> Any:
    """Return the setting of a port; `zero` is the effect of 0, for the help."""
    return setting(default, help=f"Port of {purpose}; 0 {zero}.", minimum=0, maximum=65535)


def program_setting(program: str, runtime: str) -> Any:
    """Declare the program of a runtime, which is looked for where nothing is said."""
    fallback = "without it, the one on PATH or of Homebrew, if there is one."
    return setting(None, help=f"The {program} of spec.runtime {runtime}; {fallback}")


def log_level_setting(default: str) -> Any:
    """Return the setting of a program's log level."""
    return setting(default, help="The least important log line to write.", choices=LOG_LEVELS)


@attrs.frozen
class HostConfig:
    """What both programs that run engines on their own host are told: `llmkube up` and `llmkube agent`."""

    llama_server: Path | None = setting(
        None, help="The llama-server program; without it, the one on PATH, else the bundled one."
    )
    mlx_server: Path | None = program_setting("mlx_lm.server", "mlx-lm")
    vllm_metal: Path | None = program_setting("vllm", "vllm-metal")
    ollama: Path | None = program_setting("ollama", "ollama")
    omlx_bin: Path | None = program_setting("omlx", "omlx")
    omlx_port: int = setting(8000, help="Port of an oMLX that runs already.", minimum=1, maximum=65535)
    omlx_key_file: Path | None = setting(
        None, help="File with the API key that an oMLX which runs already asks for; without it, such a one is not used."
    )
    omlx_startup_seconds: float = setting(
        120.0, help="Seconds until an oMLX that was started for a service has to answer.", minimum=1
    )
    host_name: str | None = setting(
        None, help="Name of this host; without it, the short host name and four hex digits."
    )
    host_ip: str | None = setting(None, help="Address of this host at which the cluster reaches its engines.")
    allow_from: tuple[str, ...] = setting(
        (),
        help="Network (CIDR) whose requests reach engines without a key, beside those that an agent admits by itself: "
        "the cluster's nodes, their pod CIDRs, and this host; repeatable. All other requests get 401.",
    )
    s3_env_auth: bool = setting(
        False, help="Fetch s3:// sources of Models that name no Secret with the AWS keys of this program's environment."
    )
    hf_token_file: Path | None = HF_TOKEN_FILE
    hub_endpoint: str = HUB_ENDPOINT
    allow_engine_flag: tuple[str, ...] = setting(
        (),
        help="Flag of the engine that services may use in extraArgs although none may without this, by its exact name; "
        "repeatable. With one that names a file, every editor of a service reads any file of yours by it.",
    )
    allow_engine_variable: tuple[str, ...] = setting(
        (),
        help="Variable that services may set in env although none may without this, by its exact name; repeatable. One "
        "that loads a library runs an editor's code as you.",
    )
    drain_seconds: float = setting(
        30.0, help="How long requests in flight may take before an engine is stopped.", minimum=0
    )
    memory_fraction: float = setting(
        0.0,
        help="Share of this host's memory that models may take together; 0 goes by its size: 0.67, from 48 GB on 0.75, "
        "from 128 GB on 0.9.",
        minimum=0,
        maximum=1,
    )
    memory_check: str = setting(
        "enforce",
        help="What happens to a model whose need for memory is not known: enforce refuses it, warn starts it on a "
        "guess.",
        choices=("enforce", "warn"),
    )
    memory_pressure_warning: float = setting(
        0.10, help="Memory is short below this share of the host's that is still available.", minimum=0, maximum=1
    )
    memory_pressure_critical: float = setting(
        0.05, help="Memory is critically short below this share.", minimum=0, maximum=1
    )
    eviction: str = setting(
        "on",
        help="Whether services are stopped when memory is short, or for more important ones: on, off, or dry-run, "
        "which only says who would be.",
        choices=("on", "dry-run", "off"),
    )
    eviction_last_service: str = setting(
        "keep",
        help="Whether the only engine that runs on this host may be stopped for memory.",
        choices=("keep", "evict"),
    )
    eviction_soft_seconds: float = setting(
        60.0, help="How long memory has to be short before a service that has work is stopped.", minimum=0
    )
    eviction_cooldown_seconds: float = setting(15.0, help="The least time between two evictions.", minimum=1)
    eviction_return_seconds: float = setting(
        30.0, help="How long memory has to be normal before services that were evicted return.", minimum=1, maximum=60
    )
    state_dir: Path = STATE_DIR  # load() decides it where nothing is said


@attrs.frozen
class AgentConfig(HostConfig):
    """The settings of `llmkube agent`."""

    namespace: str | None = NAMESPACE
    selector: str = setting(
        "", help="Only serve InferenceServices with these labels, such as team=ml; without it, all of them."
    )
    model_store: Path | None = MODEL_STORE
    port: int = port_setting(9090, "/healthz, /readyz and /metrics on 127.0.0.1", zero="for none")
    log_level: str = log_level_setting("info")
    kubeconfig: Path | None = KUBECONFIG
    context: str | None = CONTEXT
    accelerator: tuple[str, ...] = setting(("metal",), help="What this host serves.", choices=ACCELERATORS)
    insecure_lan: bool = setting(False, help="Let every request in at published engines, from any address.")
    endpoints_api: str = setting(
        "endpointslices",
        help="Publish EndpointSlices, or the classic Endpoints for scripts that read them.",
        choices=("endpointslices", "endpoints"),
    )
    lease_namespace: str = LEASE_NAMESPACE
    allow_private_sources: tuple[str, ...] = setting(
        (),
        help="Network (CIDR) that Models may be downloaded from although it is not public, such as that of a web "
        "server beside this host; repeatable. A Model can make this host send requests to any address in it.",
    )
    allow_local_sources: tuple[str, ...] = setting(
        (),
        help="Folder of this host whose GGUF files Models may name by path; repeatable. Without it, none: a Model can "
        "make this host serve any GGUF file below it.",
    )
    allow_ollama_sources: tuple[str, ...] = setting(
        (),
        help="Model of this host's Ollama that Models may name as ollama://NAME, such as llama3.2, or * for all that "
        "have no namespace; repeatable. Without it, none: Ollama pulls what a Model names, and serves what is yours.",
    )
    on_exit: str = setting(
        "stop",
        help="What SIGTERM does to the engines: stop them, or keep them for the next agent on this host.",
        choices=("stop", "keep"),
    )
    keep_awake: bool = setting(
        False, help="Keep a Mac awake while an engine runs, and not only while one works (caffeinate)."
    )
    apple_power_enabled: bool = setting(
        False, help="Measure what a Mac's chip draws; needs the line of sudoers that `llmkube agent sudoers` prints."
    )
    power_enabled: bool = setting(
        False,
        help="Measure what this host's processors draw, and for which service: RAPL on Linux; on a Mac this is "
        "--apple-power-enabled.",
    )
    log_file: Path | None = setting(
        None,
        help="File that a service manager appends this program's output to; the agent keeps it below 10 MiB.",
        in_file=False,
    )


OWN_NETWORKS = (
    "127.0.0.0/8",
    "::1/128",
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "100.64.0.0/10",
    "fc00::/7",
)
"""This machine and the networks around it. Under `llmkube up` the owner of the machine writes the Models, and could
send requests to these addresses anyway; in a cluster other users write them."""


@attrs.frozen
class UpConfig(HostConfig):
    """The settings of `llmkube up`."""

    api_port: int = port_setting(7443, "the Kubernetes API on 127.0.0.1")
    gateway_port: int = port_setting(8080, "the OpenAI-compatible gateway on 127.0.0.1")
    probe_port: int = port_setting(9090, "/healthz, /readyz and /metrics on 127.0.0.1")
    accelerator: tuple[str, ...] = setting(
        ("cpu", "metal") if sys.platform == "darwin" else ("cpu",), help="What this host serves.", choices=ACCELERATORS
    )
    listen: str | None = setting(
        None,
        help="Address of this machine, such as 192.168.1.50 or 192.168.1.50:8080, at which other machines reach the "
        "gateway, with a key; without a port, that of the gateway.",
    )
    listen_key_file: Path | None = setting(
        None,
        help="File with keys, one per line, of which clients of --listen show one; without it, a key is drawn and kept "
        "in the state directory.",
    )
    insecure_lan: bool = setting(
        False, help="Let every request in at published engines and at --listen, from any address."
    )
    allow_private_sources: tuple[str, ...] = setting(
        OWN_NETWORKS,
        help="Network (CIDR) that Models may be downloaded from although it is not public; repeatable. Cloud metadata "
        "services are refused whatever stands here.",
    )
    allow_local_sources: tuple[str, ...] | None = setting(
        None,
        help="Folder of this machine whose GGUF files Models may name by path; repeatable. Without it, the user's home "
        "and the store.",
    )
    allow_ollama_sources: tuple[str, ...] = setting(
        ("*", "*/*"),
        help="Model of this machine's Ollama that Models may name as ollama://NAME; * stands for any part of a name; "
        "repeatable.",
    )
    log_level: str = log_level_setting("warning")


@attrs.frozen
class RouterConfig:
    """The settings of `llmkube router`."""

    state_dir: Path = STATE_DIR  # load() decides it where nothing is said
    host: str = setting("127.0.0.1", help="Address to listen on; :: is every one of this machine.")
    port: int = port_setting(8080, "the OpenAI-compatible API")
    admin_host: str = setting("127.0.0.1", help="Address of /healthz, /readyz and /metrics.")
    admin_port: int = port_setting(9090, "/healthz, /readyz and /metrics")
    service: tuple[str, ...] = setting(
        (),
        help="Where an InferenceService answers that a ModelRouter names, as NAME=URL, such as "
        "phi-4-mini=http://127.0.0.1:8081/v1; repeatable.",
    )
    keys_dir: Path | None = setting(
        None,
        help="Folder of the keys that a ModelRouter needs: `backends/NAME` holds one of a provider, each line of "
        "`teams/TEAM` one of clients; without it, `router-keys` in the state directory.",
    )
    ca_file: Path | None = setting(
        None, help="File of certificates (PEM) to trust beside the system's, for providers at https addresses."
    )
    workers: str | None = removed_setting(
        "a router is one process; run replicas on Kubernetes (spec.proxy.replicas) with policy.budgetStore in Redis"
    )
    log_level: str = log_level_setting("info")


PER_SERVICE = "perService"
CACHE_MODES = ("shared", PER_SERVICE)
ALLOWANCES = ("foreignVolumes", "tokens", "root", "privileged", "hostNamespaces", "controlPlane")
"""The members of `controller.settings.Allowance`, which takes a quarter of a second to import."""


@attrs.frozen
class ApiServerConfig:
    """The settings of `llmkube apiserver`."""

    state_dir: Path = STATE_DIR  # load() decides it where nothing is said
    port: int = port_setting(7443, "the Kubernetes API on 127.0.0.1")
    log_level: str = log_level_setting("info")


@attrs.frozen
class ControllerConfig:
    """The settings of `llmkube controller`."""

    kubeconfig: Path | None = KUBECONFIG
    context: str | None = CONTEXT
    namespace: str | None = setting(None, help="Only look at this namespace; without it, at all of them.")
    accelerator: tuple[str, ...] = setting(
        ("metal",), help="What hosts serve; a Model that asks for another one is served by pods.", choices=ACCELERATORS
    )
    lease_namespace: str = LEASE_NAMESPACE
    image: str = setting(
        "", help="Image of this program, for the Jobs that fetch weights. Without it, no pods are made."
    )
    image_pull_secret: tuple[str, ...] = setting((), help="Secret for pulling that image; in every namespace.")
    cache_mode: str = setting(
        "shared",
        help="Whose a volume for weights is: one for each namespace (shared), or one for each service (perService).",
        choices=CACHE_MODES,
    )
    cache_size: str = setting("100Gi", help="Size of each volume for weights.")
    cache_storage_class: str = setting("", help="Its StorageClass; without it, the cluster's default.")
    cache_access_mode: str = setting(
        "ReadWriteOnce",
        help="ReadWriteOnce keeps the pods that share a volume on one node.",
        choices=("ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"),
    )
    cache_fs_group: int = setting(
        65532, help="Group that may write to it; 0 where the cluster assigns one (OpenShift).", minimum=0
    )
    host_path: tuple[str, ...] = setting(
        (), help="Folder of the nodes that Models may name by path, and services may mount to read; repeatable."
    )
    allow: tuple[str, ...] = setting(
        (),
        help="What an editor of an InferenceService may ask of its pods beyond an ordinary pod; repeatable.",
        choices=ALLOWANCES,
    )
    allow_priority_class: tuple[str, ...] = setting(
        (), help="PriorityClass, or a pattern of names (gpu-*), that services may name; repeatable."
    )
    ca_config_map: str = setting("", help="ConfigMap whose ca.crt fetching shall trust; in every namespace.")
    priority_class_prefix: str | None = setting(
        None,
        help="Before a service's priority it names the pods' PriorityClass; without it, the chart's where the cluster "
        "has them; empty for none.",
    )
    shared_gpu_node: tuple[str, ...] = setting(
        (), help="Label (KEY=VALUE) of nodes whose GPUs are shared, for services that want one; repeatable."
    )
    monitor_label: tuple[str, ...] = setting(
        (), help="Label (KEY=VALUE) of services' PodMonitors, by which a Prometheus selects them; repeatable."
    )
    engine_image: tuple[str, ...] = setting(
        (), help="Image (RUNTIME=IMAGE, RUNTIME-STACK=IMAGE) of an engine, instead of ours; repeatable."
    )
    gpu_resource: tuple[str, ...] = setting(
        (),
        help="Extended resource (VENDOR=NAME, VENDOR-STACK=NAME) of a GPU, such as amd-vulkan=devic.es/dri-render; "
        "repeatable.",
    )
    image_registry: str = setting("", help="Registry that engines' images come from, instead of each one's own.")
    allow_private_sources: tuple[str, ...] = setting(
        (), help="Network (CIDR) that Models may be fetched from although it is not public; repeatable."
    )
    hub_endpoint: str = setting("", help="Address of Hugging Face, or of a mirror of it.")
    look_seconds: int = setting(
        3600, help="Between two looks at the source of a Model with refreshPolicy OnChange.", minimum=60
    )
    prune_cache: bool = setting(
        False, help="Remove weights from each namespace's volume ten minutes after the last Model named them."
    )
    drain_container: bool = setting(
        True,
        help="Have a container of that image beside each engine, by which a pod that has to end waits for requests; "
        "without it, pods sleep for ten seconds (Kubernetes 1.30).",
    )
    port: int = port_setting(0, "/healthz, /readyz and /metrics on all addresses", zero="for none")
    state_dir: Path = STATE_DIR  # load() decides it where nothing is said
    log_level: str = log_level_setting("info")


T = TypeVar("T")

TABLES: Mapping[str, type[Any]] = {
    "up": UpConfig,
    "agent": AgentConfig,
    "controller": ControllerConfig,
    "apiserver": ApiServerConfig,
    "router": RouterConfig,
}
"""The tables of `config.toml`."""


def load(table: str, kind: type[T], flags: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> T:
    """Return a program's settings from flags, environment and the state directory's `config.toml`.

    The result's `state_dir`, if it has one, is the folder whose `config.toml` was read.

    Raises:
        SettingError: Some source has a wrong value; the sentence names it.
        UserError: The state directory may hold what another user has put there.
    """
    environ = os.environ if environ is None else environ
    state_dir = state_dir_of(resolve(StateDirSetting, flags=flags, environ=environ).state_dir)
    file = state_dir / "config.toml"
    config = read_config(file, TABLES) if check_state_dir(state_dir) else Config(file)
    return resolve(kind, flags={**flags, "state_dir": state_dir}, environ=environ, config=config, table=table)
