"""The `[engines.NAME]` tables of `config.toml`."""

import pytest

from llmkube.base.errors import UserError
from llmkube.base.settings import SettingError
from llmkube.programs.config import UpConfig, load
from llmkube.programs.host_settings import configured_programs, engine_allowances

SPEECH = """
[engines.speech]
program = "speechd"
args = ["--port={port}", "--host", "{host}", "--model", "{model}", "-t", "{options.threads}"]
options.threads = ["2", "4"]
env = {LANG = "C"}
memory = "2Gi"
ready_pattern = 'listening on \\d+'
"""


def loaded(folder, text):
    (folder / "state").mkdir(mode=0o700, exist_ok=True)
    (folder / "state" / "config.toml").write_text(text)
    return load("up", UpConfig, {"state_dir": str(folder / "state")}, {})


def test_an_engine_of_the_owners_is_allowed_and_found_on_path(tmp_path, monkeypatch):
    """Its program is found when LLMKube starts."""
    (tmp_path / "speechd").write_text("#!/bin/sh\n")
    (tmp_path / "speechd").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    config = loaded(tmp_path, SPEECH)
    assert configured_programs(config) == {"generic/speech": str(tmp_path / "speechd")}
    engine = engine_allowances(config).engines["speech"]
    assert (engine.options, engine.memory_bytes, engine.formats) == ({"threads": ("2", "4")}, 2 << 30, ("custom",))
    (tmp_path / "speechd").chmod(0o777)
    with pytest.raises(UserError, match=r"engines\.speech\.program: .* every user may write to .*speechd; run chmod"):
        configured_programs(config)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UserError, match=r"engines\.speech\.program: speechd does not exist; specify the path"):
        configured_programs(config)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('program = "speechd"', 'program = "./speechd"', r"speech\.program: './speechd' is not a program; set its abs"),
        ('program = "speechd"', "", r"speech\.program: '' is not a program"),
        ('"--port={port}", ', "", r"speech\.args: no argument has \{port\}"),
        ('"{host}"', '"0.0.0.0"', r"speech\.args: no argument has \{host\}"),
        ("{model}", "{modle}", r"speech\.args: \{modle\} is not a placeholder; use .*\{model\}"),
        (
            "{options.threads}",
            "{options.t}",
            r"speech\.args: \{options.t\} is not a placeholder; .*\{options.threads\}",
        ),
        ('"--model"', r'"a\nb"', r"speech\.args: an argument has a control character"),
        ('["2", "4"]', "[]", r"speech\.options\.threads: \(\) is no list of texts"),
        ('["2", "4"]', '["2", "{port}"]', r"speech\.options\.threads: .* without placeholders"),
        ('LANG = "C"', 'PORT = "{port}"', r"speech\.env: PORT = '\{port\}' is not a variable"),
        ('LANG = "C"', "N = 1", r"speech\.env: N = 1 is not a variable"),
        ('"2Gi"', '"2 GB"', r'speech\.memory: "2 GB" is not a quantity'),
        ('memory = "2Gi"', "", r"speech\.memory: "),
        (r"\d+'", "(?=x)'", r"speech\.ready_pattern: .* regular expression of RE2"),
        ('memory = "2Gi"', 'memory = "2Gi"\nformats = ["gguff"]', r'speech\.formats: "gguff" is not one of'),
        ('memory = "2Gi"', 'memory = "2Gi"\nhealth = "x"', r"speech\.health: 'x' is not a path"),
        ('memory = "2Gi"', 'memori = "2Gi"', r"speech\.memori: there is no such setting; did you mean memory\?"),
        ("[engines.speech]", '[engines."a b"]', r"engines\.a b: 'a b' is not a name"),
        ("[engines.speech]", "[engines]", r"engines\.program: 'speechd' is not a table; write it as \[engines\.NAME\]"),
    ],
)
def test_a_wrong_value_is_refused_with_its_key_and_a_fix(tmp_path, old, new, message):
    """When LLMKube starts, and not when a service needs the engine."""
    assert old in SPEECH
    with pytest.raises(SettingError, match=message) as caught:
        loaded(tmp_path, SPEECH.replace(old, new, 1))
    assert str(caught.value).startswith(f"{tmp_path}/state/config.toml: engines.")
