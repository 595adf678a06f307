import sys
from pathlib import Path

import pytest

from llmkube.base.errors import UserError
from llmkube.base.settings import resolve, settings_of
from llmkube.cli.commands.programs.agent import agent_settings
from llmkube.cli.commands.programs.controller import workload_settings
from llmkube.controller.settings import Allowance
from llmkube.programs.config import ALLOWANCES, TABLES, AgentConfig, ControllerConfig, EgressConfig, UpConfig, load
from llmkube.programs.host_settings import download_settings
from llmkube.programs.state_location import state_dir_of


def test_the_state_directory_is_the_platforms(monkeypatch, tmp_path):
    """Without a flag the state lies where the platform keeps a user's data."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    assert state_dir_of(None) == tmp_path / ".local" / "share" / "llmkube"
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert state_dir_of(None) == Path("/data/llmkube")
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    assert state_dir_of(None) == tmp_path / ".local" / "share" / "llmkube"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert state_dir_of(None) == tmp_path / "Library" / "Application Support" / "llmkube"


def test_the_config_file_of_the_chosen_directory_is_read(tmp_path):
    """Flag and variable choose the directory of config.toml, and the flag wins."""
    for name, port in (("flag", 1), ("variable", 2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.toml").write_text(f"[up]\ngateway_port = {port}\n")
    environ = {"LLMKUBE_STATE_DIR": str(tmp_path / "variable")}
    config = load("up", UpConfig, {}, environ)
    assert (config.state_dir, config.gateway_port) == (tmp_path / "variable", 2)
    config = load("up", UpConfig, {"state_dir": str(tmp_path / "flag")}, environ)
    assert (config.state_dir, config.gateway_port) == (tmp_path / "flag", 1)


def test_s14_no_setting_is_read_where_others_may_write(tmp_path):
    """A state directory that other users may write to is refused before its config.toml is read."""
    state = tmp_path / "state"
    state.mkdir()
    (state / "config.toml").write_text("this is no TOML")
    state.chmod(0o777)
    with pytest.raises(UserError, match=r"state is not safe to use: users other .* chmod 700 on it.*--state-dir"):
        load("up", UpConfig, {"state_dir": str(state)}, {})
    tmp_path.chmod(0o777)
    missing = load("up", UpConfig, {"state_dir": str(tmp_path / "none")}, {})  # nothing is read, and nothing made
    assert missing.state_dir == tmp_path / "none"


def test_the_guides_flags_exist():
    """Every flag of the agent that the guide and the issue name is a setting with that flag."""
    flags = {each.flag for each in settings_of(AgentConfig)}
    guide = "--host-ip --namespace --model-store --llama-server --port --log-level --kubeconfig"
    assert flags >= set(guide.split())


@pytest.mark.parametrize("kind", TABLES.values())
def test_every_setting_has_help(kind):
    """No flag appears in --help without a sentence."""
    assert all(each.help.endswith(".") for each in settings_of(kind))


def test_an_agent_on_its_servers_machine_starts_without_an_address(tmp_path):
    """The API server's loopback address gives none; the agent detects one later with the API server's URL."""
    settings = agent_settings(AgentConfig(state_dir=tmp_path), "https://127.0.0.1:6443", Path("/bin/engine"))
    assert (settings.advertise_address, settings.bind_address) == (None, "127.0.0.1")
    assert settings.api_server == "https://127.0.0.1:6443"
    assert settings.host_ip is None
    assert settings.accelerators == {"metal"}
    assert settings.store_dir == tmp_path / "store"


def test_an_invalid_selector_names_its_flag(tmp_path):
    config = AgentConfig(state_dir=tmp_path, selector="team in ml")
    with pytest.raises(UserError, match=r"--selector: .*team in ml"):
        agent_settings(config, "https://127.0.0.1:6443", Path("/bin/engine"))
    config = AgentConfig(state_dir=tmp_path, selector="team=ml")
    settings = agent_settings(config, "https://127.0.0.1:6443", Path("/bin/engine"))
    assert settings.selector.matches({"team": "ml"})
    assert not settings.selector.matches({})


def test_an_agents_flags_reach_it(tmp_path):
    """Name, namespace, store, endpoints API and Lease namespace are those of the flags."""
    config = AgentConfig(
        state_dir=tmp_path,
        host_name="studio",
        namespace="team",
        model_store=tmp_path / "models",
        endpoints_api="endpoints",
        lease_namespace="leases",
        accelerator=("cpu", "metal"),
    )
    settings = agent_settings(config, "https://127.0.0.1:6443", Path("/bin/engine"))
    assert (settings.host_name, settings.namespace, settings.endpoints_api) == ("studio", "team", "endpoints")
    assert (settings.store_dir, settings.lease_namespace) == (tmp_path / "models", "leases")
    assert settings.accelerators == {"cpu", "metal"}


def test_labels_are_given_as_pairs():
    """KEY=VALUE becomes a label, also with an empty value; other forms are refused with the flag."""
    given = ControllerConfig(image="x", monitor_label=("release=prometheus", "a="), shared_gpu_node=("gpu=shared",))
    settings = workload_settings(given)
    assert settings.monitor_labels == {"release": "prometheus", "a": ""}
    assert settings.shared_gpu_selector == {"gpu": "shared"}
    with pytest.raises(UserError, match="--monitor-label takes KEY=VALUE, not 'release'"):
        workload_settings(ControllerConfig(image="x", monitor_label=("release",)))


def test_allowances_for_editors_reach_the_controller(tmp_path):
    """S3: each `--allow` is a member of the settings; none is set by default, and an unknown one is refused."""
    assert workload_settings(ControllerConfig(image="x")).allow == frozenset()
    flags = {"state_dir": tmp_path, "image": "x", "allow": ALLOWANCES, "allow_priority_class": ("gpu-*",)}
    settings = workload_settings(load("controller", ControllerConfig, flags, {}))
    assert settings.allow == frozenset(Allowance)
    assert settings.priority_classes == ("gpu-*",)
    with pytest.raises(UserError, match='"everything" is not one of foreignVolumes, tokens'):
        load("controller", ControllerConfig, {**flags, "allow": ("everything",)}, {})


def test_pods_get_the_proxies_of_the_controller(monkeypatch):
    """Those of its environment and of the setting; one with a password, or one that cannot be used, is refused."""
    for name in ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    assert workload_settings(ControllerConfig(image="x")).proxies == {}
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", ".svc,10.0.0.0/8")
    rules = ("a.example=direct", "b.example=http://b:1")
    settings = workload_settings(ControllerConfig(image="x", proxy=rules))
    pods = {"HTTPS_PROXY": "http://proxy:3128", "no_proxy": ".svc,10.0.0.0/8", "LLMKUBE_PROXY": ",".join(rules)}
    assert settings.proxies == pods
    assert resolve(EgressConfig, flags={}, environ=pods).egress(pods) == settings.egress
    for proxy, words in (
        ("b.example=http://me:secret@b:1", "password of a proxy"),
        ("b.example", "--proxy: b.example is not"),
    ):
        with pytest.raises(UserError, match=words) as refused:
            workload_settings(ControllerConfig(image="x", proxy=(proxy,)))
        assert "secret" not in str(refused.value)
    monkeypatch.setenv("HTTPS_PROXY", "socks5://p")
    with pytest.raises(UserError, match="HTTPS_PROXY: socks5://p is not a proxy"):
        workload_settings(ControllerConfig(image="x"))


def test_a_password_in_a_value_of_the_wrong_type_is_not_shown(tmp_path):
    (tmp_path / "config.toml").write_text('[up]\nproxy = "http://me:s3cret@p:1"\n')
    with pytest.raises(UserError, match=r"up\.proxy: 'http://p:1' is not a list of texts"):
        load("up", UpConfig, {"state_dir": tmp_path}, {})


def test_a_file_of_certificates_is_read_at_the_start(tmp_path):
    """An agent would otherwise report it at the first download."""
    (tmp_path / "ca.pem").write_text("nothing")
    with pytest.raises(UserError, match="--ca-file: cannot read certificates from"):
        download_settings(UpConfig(ca_file=tmp_path / "ca.pem"))
    assert download_settings(UpConfig(proxy=("*=direct",)))["egress"].rules[0][1] == ""


@pytest.mark.parametrize(
    ("program", "flags", "words"),
    [
        ("up", {"gateway_port": 7443}, "--gateway-port: 7443 is also the port of --api-port; set one of them to an"),
        ("up", {"probe_port": 8080}, "--probe-port: 8080 is also the port of --gateway-port"),
        ("up", {"gateway_port": 8001, "omlx_port": 8001}, "--gateway-port: 8001 is also the port of --omlx-port"),
        ("agent", {"port": 8001, "omlx_port": 8001}, "--port: 8001 is also the port of --omlx-port"),
        ("router", {"admin_port": 8080}, "--admin-port: 8080 is also the port of --port"),
        ("router", {"admin_port": 8080, "host": "::"}, "--admin-port: 8080 is also the port of --port"),
        ("up", {"gateway_port": 8000, "api_port": 0, "probe_port": 0}, ""),
        ("router", {"admin_port": 8080, "host": "10.0.0.1"}, ""),
    ],
)
@pytest.mark.parametrize("source", ["flags", "variables", "file"])
def test_two_equal_ports_are_refused(tmp_path, program, flags, words, source):
    """Those of other addresses and free ones are not, nor is the default port of an oMLX, which may not run."""
    environ = {f"LLMKUBE_{name.upper()}": str(each) for name, each in flags.items()} if source == "variables" else {}
    if source == "file":
        lines = (f"{name} = {each!r}" for name, each in flags.items())
        (tmp_path / "config.toml").write_text("\n".join([f"[{program}]", *lines]))
    given = {"state_dir": tmp_path} | (flags if source == "flags" else {})
    if words:
        with pytest.raises(UserError, match=words):
            load(program, TABLES[program], given, environ)
    else:
        load(program, TABLES[program], given, environ)
