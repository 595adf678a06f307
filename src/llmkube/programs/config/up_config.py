"""The settings of `llmkube up`."""

import sys
from pathlib import Path

import attrs

from llmkube.base.settings import setting
from llmkube.k8s.crd.placement import ACCELERATORS
from llmkube.programs.config.common_settings import log_level_setting, port_setting
from llmkube.programs.config.host_config import HostConfig

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

    api_port: int = port_setting(7443, "the Kubernetes API")
    gateway_port: int = port_setting(8080, "the OpenAI-compatible gateway")
    probe_port: int = port_setting(9090, "/healthz, /readyz and /metrics")
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
