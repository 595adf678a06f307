import attrs
import pytest

from llmkube.base.errors import UserError
from llmkube.programs.config.agent_config import AgentConfig
from llmkube.programs.config.up_config import UpConfig
from llmkube.programs.host.memory_options import memory_settings
from llmkube.supervisor.host.pressure_level import Thresholds
from llmkube.supervisor.memory.policy import Mode, Policy


@pytest.mark.parametrize("config", [AgentConfig(), UpConfig()])
def test_the_flags_defaults_are_the_policys(config):
    """Who gives no flag gets the documented defaults of the policy and of the levels, and nothing else."""
    settings = memory_settings(config)
    assert settings["memory_policy"] == Policy()
    assert settings["memory_fraction"] is None
    assert settings["memory_guesses"] is False


def test_every_flag_has_its_effect():
    """What the operator says arrives in the settings of the agent."""
    config = AgentConfig(
        memory_fraction=0.5,
        memory_check="warn",
        memory_pressure_warning=0.2,
        memory_pressure_critical=0.1,
        eviction="dry-run",
        eviction_last_service="evict",
        eviction_soft_seconds=5.0,
        eviction_cooldown_seconds=6.0,
        eviction_return_seconds=7.0,
    )
    settings = memory_settings(config)
    assert (settings["memory_fraction"], settings["memory_guesses"]) == (0.5, True)
    policy = settings["memory_policy"]
    assert (policy.mode, policy.keep_last) == (Mode.DRY_RUN, False)
    assert (policy.soft_seconds, policy.cooldown_seconds, policy.return_seconds) == (5.0, 6.0, 7.0)
    assert policy.thresholds == Thresholds(warning_share=0.2, critical_share=0.1)


def test_critical_has_to_come_after_warning():
    """Two shares in the wrong order are refused by the flag's name."""
    with pytest.raises(UserError, match="--memory-pressure-warning"):
        memory_settings(attrs.evolve(UpConfig(), memory_pressure_critical=0.3))
