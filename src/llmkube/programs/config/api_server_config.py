"""The settings of `llmkube apiserver`."""

from pathlib import Path

import attrs

from llmkube.programs.config.common_settings import log_level_setting, port_setting
from llmkube.programs.state_location import STATE_DIR


@attrs.frozen
class ApiServerConfig:
    """The settings of `llmkube apiserver`."""

    state_dir: Path | None = STATE_DIR
    port: int = port_setting(7443, "the Kubernetes API")
    log_level: str = log_level_setting("info")
