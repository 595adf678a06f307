"""The tables of `config.toml`, and how a program's settings are found: flags, then environment, then that file."""

import os
from collections.abc import Mapping
from typing import Any, TypeVar

from llmkube.base.settings import Config, read_config, resolve
from llmkube.programs.config.agent_config import AgentConfig
from llmkube.programs.config.api_server_config import ApiServerConfig
from llmkube.programs.config.controller_config import ControllerConfig
from llmkube.programs.config.router_config import RouterConfig
from llmkube.programs.config.up_config import UpConfig
from llmkube.programs.state_location import Place, check_state_dir, state_dir_of

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
