"""The settings of `llmkube cache`, which reads the agent's table: it is the agent's store that it looks at."""

from pathlib import Path

import attrs

from llmkube.programs.config.common_settings import CONTEXT, HF_TOKEN_FILE, HUB_ENDPOINT, KUBECONFIG, MODEL_STORE
from llmkube.programs.state_location import STATE_DIR


@attrs.frozen
class CacheConfig:
    """The settings of `llmkube cache`; it reads the agent's table, for it is the agent's store that it looks at."""

    model_store: Path | None = MODEL_STORE
    state_dir: Path | None = STATE_DIR


@attrs.frozen
class PruneConfig:
    """Those of `llmkube cache prune`: the agent's cluster says which Models are in use."""

    kubeconfig: Path | None = KUBECONFIG
    context: str | None = CONTEXT
    model_store: Path | None = MODEL_STORE
    state_dir: Path | None = STATE_DIR


@attrs.frozen
class PreloadConfig:
    """Those of `llmkube cache preload`."""

    model_store: Path | None = MODEL_STORE
    hf_token_file: Path | None = HF_TOKEN_FILE
    hub_endpoint: str = HUB_ENDPOINT
    state_dir: Path | None = STATE_DIR
