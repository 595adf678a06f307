from pathlib import Path

import attrs
import pytest

from llmkube.base.settings import Config, SettingError, read_config, removed_setting, resolve, setting, settings_of


@attrs.frozen
class Serve:
    state_dir: Path | None = setting(None, help="folder", in_file=False)
    api_port: int = setting(7443, help="port", minimum=0, maximum=65535)
    wait: float = setting(1.5, help="seconds", minimum=0)
    ephemeral: bool = setting(False, help="forget")
    level: str = setting("info", help="level", choices=("debug", "info"))
    accelerator: tuple[str, ...] = setting(("cpu",), help="what to serve", choices=("cpu", "metal"))
    program: Path | None = setting(None, help="engine")
    other: str = "not a setting"


@attrs.frozen
class Agent:
    namespace: str | None = setting(None, help="where")


def made(flags=None, environ=None, config=None):
    return resolve(Serve, flags=flags or {}, environ=environ or {}, config=config, table="up")


def config(tmp_path, text):
    path = tmp_path / "config.toml"
    path.write_text(text)
    return read_config(path, {"up": Serve, "agent": Agent})


def test_defaults_apply_without_another_source():
    """Without flags, variables and file, every setting is its default."""
    assert made() == Serve()


def test_sources_are_ranked(tmp_path):
    """The order is flag, environment, the program's table in the file, its common part."""
    file = config(tmp_path, "api_port = 1\n[up]\napi_port = 2")
    environ = {"LLMKUBE_API_PORT": "3"}
    assert made({"api_port": "4"}, environ, file).api_port == 4
    assert made({"api_port": None}, environ, file).api_port == 3
    assert made({}, {}, file).api_port == 2
    assert made({}, {}, config(tmp_path, "api_port = 1")).api_port == 1


def test_another_programs_table_is_ignored(tmp_path):
    """A key in the agent's table, or a common key of the agent alone, does not affect `up`."""
    assert made(config=config(tmp_path, 'namespace = "a"\n[agent]\nnamespace = "b"')) == Serve()


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("api_port", " 80 ", 80),
        ("wait", "2", 2.0),
        ("ephemeral", "yes", True),
        ("ephemeral", "off", False),
        ("level", "debug", "debug"),
        ("accelerator", "cpu, metal,", ("cpu", "metal")),
        ("program", "/opt/x", Path("/opt/x")),
        ("program", "~/x", Path("~/x").expanduser()),
    ],
)
def test_variables_are_read_as_their_type(name, text, value):
    """The environment has only texts; each becomes the type that its setting declares."""
    assert getattr(made(environ={f"LLMKUBE_{name.upper()}": text}), name) == value


def test_an_empty_variable_is_not_set():
    """`LLMKUBE_API_PORT=` in an environment file keeps the default."""
    assert made(environ={"LLMKUBE_API_PORT": " "}).api_port == 7443


def test_a_flag_of_false_is_not_an_absent_flag():
    """False on the command line overrides true in the environment."""
    assert made({"ephemeral": False}, {"LLMKUBE_EPHEMERAL": "true"}).ephemeral is False


def test_an_absent_repeatable_flag_does_not_hide_others():
    """An empty tuple, the value of an absent repeatable flag, does not hide the environment."""
    assert made({"accelerator": ()}, {"LLMKUBE_ACCELERATOR": "metal"}).accelerator == ("metal",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("abc", '"abc" is not a whole number from 0 to 65535'),
        ("1.5", '"1.5" is not a whole number from 0 to 65535'),
        ("70000", "70000 is not a whole number from 0 to 65535"),
        ("-1", "-1 is not a whole number from 0 to 65535"),
    ],
)
def test_a_bad_number_names_source_value_and_range(text, message):
    """The message starts with the source of the value, and names the valid range."""
    with pytest.raises(SettingError) as caught:
        made({"api_port": text})
    assert str(caught.value) == f"--api-port: {message}"
    with pytest.raises(SettingError) as caught:
        made(environ={"LLMKUBE_API_PORT": text})
    assert str(caught.value) == f"LLMKUBE_API_PORT: {message}"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"wait": "nan"}, "--wait: nan is not a number of at least 0"),
        ({"wait": "inf"}, "--wait: inf is not a number of at least 0"),
        ({"level": "inof"}, '--level: "inof" is not one of debug, info; did you mean info?'),
        ({"accelerator": ("cpu", "gpu")}, '--accelerator: "gpu" is not one of cpu, metal'),
        ({"ephemeral": "maybe"}, '--ephemeral: "maybe" is neither true nor false'),
    ],
)
def test_values_out_of_bounds_are_refused(flags, message):
    """A value that the setting does not admit is refused and not clamped."""
    with pytest.raises(SettingError) as caught:
        made(flags)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("api_prot = 1", "config.toml: api_prot: there is no such setting; did you mean api_port?"),
        ("[up]\napi-port = 1", "config.toml: up.api-port: there is no such setting; did you mean api_port?"),
        ("[upp]\napi_port = 1", "config.toml: upp: there is no such setting"),
        ('state_dir = "/x"', "config.toml: state_dir: cannot be set here; use --state-dir or LLMKUBE_STATE_DIR"),
        ("api_port = true", "config.toml: api_port: True is not a whole number from 0 to 65535"),
        ('api_port = "80"', "config.toml: api_port: '80' is not a whole number from 0 to 65535"),
        ("[up]\naccelerator = 'cpu'", "config.toml: up.accelerator: 'cpu' is not a list of texts"),
        ("[up]\nprogram = 3", "config.toml: up.program: 3 is not a path in quotes"),
        ("api_port =", "config.toml: is not TOML: "),
    ],
)
def test_a_bad_file_names_file_key_and_fix(tmp_path, text, message):
    """An error in the file names the file and the key, with the nearest valid name if there is one."""
    with pytest.raises(SettingError) as caught:
        made(config=config(tmp_path, text))
    assert str(caught.value).removeprefix(f"{tmp_path}/").startswith(message)


def test_a_missing_file_has_no_settings(tmp_path):
    """A config.toml is optional."""
    assert read_config(tmp_path / "config.toml", {}) == Config(tmp_path / "config.toml")


def test_an_unreadable_file_is_an_error(tmp_path):
    """A config.toml that exists and cannot be read is never silently ignored."""
    with pytest.raises(SettingError, match="cannot be read"):
        read_config(tmp_path, {})
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(SettingError, match="not UTF-8"):
        read_config(tmp_path / "bad.toml", {})


def test_relative_paths_in_the_file_start_at_the_file(tmp_path):
    """The program's working directory does not change the meaning of config.toml."""
    assert made(config=config(tmp_path, 'program = "bin/engine"')).program == tmp_path / "bin/engine"


def test_whole_numbers_in_the_file_are_numbers_too(tmp_path):
    """`wait = 2` sets a setting of fractional seconds."""
    assert made(config=config(tmp_path, "wait = 2")).wait == 2.0


def test_a_setting_knows_its_other_names():
    """Flag, variable, type and default of a setting all follow from its declaration."""
    state_dir, api_port, *_ = settings_of(Serve)
    assert (api_port.flag, api_port.variable, api_port.type) == ("--api-port", "LLMKUBE_API_PORT", int)
    assert (state_dir.type, state_dir.default) == (Path, None)
    assert "other" not in {each.name for each in settings_of(Serve)}


def test_a_setting_of_two_types_is_a_mistake_in_the_program():
    """An annotation that the resolver cannot read fails loudly at once."""

    @attrs.frozen
    class Odd:
        value: int | str = setting(1, help="")

    with pytest.raises(TypeError, match="one type"):
        settings_of(Odd)


@attrs.frozen
class Shrunk:
    workers: str | None = removed_setting("run replicas instead")


@pytest.mark.parametrize(
    ("flag", "variable", "file", "where"),
    [
        ("2", "", "", "--workers: '2'"),
        (None, "2", "", "LLMKUBE_WORKERS: '2'"),
        (None, "", "[router]\nworkers = 1", "router.workers: 1"),
        (None, "", "workers = 1", "config.toml: workers: 1"),
    ],
)
def test_a_removed_setting_is_refused_wherever_it_is_set(tmp_path, flag, variable, file, where):
    """The error has its name and the alternative; if no source sets it, there is none."""
    path = tmp_path / "config.toml"
    path.write_text(file)
    with pytest.raises(SettingError, match=f"{where} .*run replicas instead"):
        resolve(
            Shrunk,
            flags={"workers": flag},
            environ={"LLMKUBE_WORKERS": variable},
            config=read_config(path, {"router": Shrunk}),
            table="router",
        )
    assert resolve(Shrunk, flags={}, environ={}) == Shrunk()
