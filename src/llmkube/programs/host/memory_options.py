"""What the user may say about memory, checked before anything starts."""

from typing import TypedDict

from llmkube.base.errors import UserError
from llmkube.programs.config.host_config import HostConfig
from llmkube.supervisor.host.pressure_level import Thresholds
from llmkube.supervisor.memory.policy import Mode, Policy


class MemorySettings(TypedDict):
    """The same, as `AgentSettings` takes it."""

    memory_fraction: float | None
    memory_guesses: bool
    memory_policy: Policy


def memory_settings(config: HostConfig) -> MemorySettings:
    """Read the settings.

    Raises:
        UserError: Two of them contradict each other.
    """
    warning, critical = config.memory_pressure_warning, config.memory_pressure_critical
    if critical > warning:
        problem = f"{critical:g} is above --memory-pressure-warning ({warning:g}); give less"
        raise UserError(f"{problem}; give less", field="--memory-pressure-critical")
    return MemorySettings(
        memory_fraction=config.memory_fraction or None,
        memory_guesses=config.memory_check == "warn",
        memory_policy=Policy(
            mode=Mode(config.eviction),
            keep_last=config.eviction_last_service == "keep",
            thresholds=Thresholds(warning_share=warning, critical_share=critical),
            soft_seconds=config.eviction_soft_seconds,
            cooldown_seconds=config.eviction_cooldown_seconds,
            return_seconds=config.eviction_return_seconds,
        ),
    )
