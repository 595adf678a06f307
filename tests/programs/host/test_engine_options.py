import pytest
from structlog.testing import capture_logs

from llmkube.base.errors import UserError
from llmkube.base.settings import read_config, resolve
from llmkube.programs.config.agent_config import AgentConfig
from llmkube.programs.config.tables import TABLES
from llmkube.programs.config.up_config import UpConfig
from llmkube.programs.host.engine_options import engine_allowances
from llmkube.runtimes.allowances import Allowances

KINDS = {"agent": AgentConfig, "up": UpConfig}


@pytest.mark.parametrize("kind", KINDS.values())
def test_an_owner_who_says_nothing_allows_nothing(kind):
    """By default no flag and no variable is allowed, and the log is silent about it."""
    with capture_logs() as lines:
        assert engine_allowances(kind()) == Allowances()
    assert lines == []


@pytest.mark.parametrize("table", KINDS)
def test_what_the_owner_writes_in_config_toml_is_allowed_and_said_at_start(table, tmp_path):
    """The host's own file is where it stands; the log names every flag and variable, as a warning."""
    file = tmp_path / "config.toml"
    file.write_text(f'[{table}]\nallow_engine_flag = ["--lora", "-jf"]\nallow_engine_variable = ["OMP_DISPLAY_ENV"]\n')
    config = resolve(KINDS[table], flags={}, environ={}, config=read_config(file, TABLES), table=table)
    with capture_logs() as lines:
        found = engine_allowances(config)
    assert found == Allowances(frozenset({"--lora", "-jf"}), frozenset({"OMP_DISPLAY_ENV"}))
    assert [(line["log_level"], line["flags"], line["variables"]) for line in lines] == [
        ("warning", ["--lora", "-jf"], ["OMP_DISPLAY_ENV"])
    ]


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (AgentConfig(allow_engine_flag=("--port",)), "--allow-engine-flag: --port is written by LLMKube itself"),
        (AgentConfig(allow_engine_flag=("--api-*",)), "--allow-engine-flag: '--api-"),
        (UpConfig(allow_engine_variable=("OMP_*",)), "--allow-engine-variable: 'OMP_"),
    ],
)
def test_what_cannot_be_allowed_stops_the_start(config, says):
    """A pattern, or a flag of LLMKube's own, is refused with the setting before anything runs."""
    with pytest.raises(UserError) as caught:
        engine_allowances(config)
    assert str(caught.value).startswith(says)
