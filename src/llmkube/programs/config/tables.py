"""The tables of `config.toml`, and how a program's settings are found: flags, then environment, then that file."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import attrs

from llmkube.base.settings import Config, read_config, resolve, setting
from llmkube.k8s.crd.placement import ACCELERATORS
from llmkube.programs.config.host_config import (
    CONTEXT,
    KUBECONFIG,
    LEASE_NAMESPACE,
    AgentConfig,
    UpConfig,
    log_level_setting,
    port_setting,
)
from llmkube.programs.config.router_config import RouterConfig
from llmkube.programs.state_location import STATE_DIR, Place, check_state_dir, state_dir_of

PER_SERVICE = "perService"
CACHE_MODES = ("shared", PER_SERVICE)
ALLOWANCES = ("foreignVolumes", "tokens", "root", "privileged", "hostNamespaces", "controlPlane")
"""The members of `controller.settings.Allowance`, which takes a quarter of a second to import."""


@attrs.frozen
class ApiServerConfig:
    """The settings of `llmkube apiserver`."""

    state_dir: Path | None = STATE_DIR
    port: int = port_setting(7443, "the Kubernetes API")
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
    port: int = setting(
        0, help="Port of /healthz, /readyz and /metrics on all addresses; 0 for none.", minimum=0, maximum=65535
    )
    state_dir: Path | None = STATE_DIR
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
    state_dir = state_dir_of(resolve(Place, flags=flags, environ=environ).state_dir)
    file = state_dir / "config.toml"
    config = read_config(file, TABLES) if check_state_dir(state_dir) else Config(file)
    return resolve(kind, flags={**flags, "state_dir": state_dir}, environ=environ, config=config, table=table)
