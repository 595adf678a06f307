"""What both programs that run engines on their own host are told: `llmkube up` and `llmkube agent`."""

from pathlib import Path

import attrs

from llmkube.base.settings import setting
from llmkube.programs.config.common_settings import HF_TOKEN_FILE, HUB_ENDPOINT
from llmkube.programs.state_location import STATE_DIR


@attrs.frozen
class HostConfig:
    """What both programs that run engines on their own host are told: `llmkube up` and `llmkube agent`."""

    llama_server: Path | None = setting(
        None, help="The llama-server program; without it, the one on PATH, else the bundled one."
    )
    mlx_server: Path | None = setting(
        None,
        help="The mlx_lm.server of spec.runtime mlx-lm; without it, the one on PATH or of Homebrew, if there is one.",
    )
    vllm_metal: Path | None = setting(
        None, help="The vllm of spec.runtime vllm-metal; without it, the one on PATH or of Homebrew, if there is one."
    )
    ollama: Path | None = setting(
        None, help="The ollama of spec.runtime ollama; without it, the one on PATH or of Homebrew, if there is one."
    )
    omlx_bin: Path | None = setting(
        None, help="The omlx of spec.runtime omlx; without it, the one on PATH or of Homebrew, if there is one."
    )
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
    state_dir: Path | None = STATE_DIR
