"""The settings of `llmkube router`."""

from pathlib import Path

import attrs

from llmkube.base.settings import removed_setting, setting
from llmkube.programs.config.host_config import log_level_setting
from llmkube.programs.state_location import STATE_DIR


@attrs.frozen
class RouterConfig:
    """The settings of `llmkube router`."""

    state_dir: Path | None = STATE_DIR
    host: str = setting("127.0.0.1", help="Address to listen on; :: is every one of this machine.")
    port: int = setting(8080, help="Port of the OpenAI-compatible API; 0 takes a free one.", minimum=0, maximum=65535)
    admin_host: str = setting("127.0.0.1", help="Address of /healthz, /readyz and /metrics.")
    admin_port: int = setting(
        9090, help="Port of /healthz, /readyz and /metrics; 0 takes a free one.", minimum=0, maximum=65535
    )
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
