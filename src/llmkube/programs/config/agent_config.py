"""The settings of `llmkube agent`."""

from pathlib import Path

import attrs

from llmkube.base.settings import setting
from llmkube.k8s.crd.placement import ACCELERATORS
from llmkube.programs.config.common_settings import (
    CONTEXT,
    KUBECONFIG,
    LEASE_NAMESPACE,
    MODEL_STORE,
    NAMESPACE,
    log_level_setting,
)
from llmkube.programs.config.host_config import HostConfig


@attrs.frozen
class AgentConfig(HostConfig):
    """The settings of `llmkube agent`."""

    namespace: str | None = NAMESPACE
    selector: str = setting(
        "", help="Only serve InferenceServices with these labels, such as team=ml; without it, all of them."
    )
    model_store: Path | None = MODEL_STORE
    port: int = setting(
        9090, help="Port of /healthz, /readyz and /metrics on 127.0.0.1; 0 for none.", minimum=0, maximum=65535
    )
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
