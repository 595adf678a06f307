import pytest
import yaml
from click.testing import CliRunner

from llmkube.cli.main import cli


@pytest.mark.parametrize("program", ["agent", "controller"])
def test_the_manifests_can_be_applied(program):
    """Each program's rights are complete objects: account, roles and bindings."""
    done = CliRunner().invoke(cli, ["rbac", program, "-A"])
    assert done.exit_code == 0
    kinds = [one["kind"] for one in yaml.safe_load_all(done.output)]
    assert {"Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"} == set(kinds)


def printed(*args):
    done = CliRunner().invoke(cli, ["rbac", *args])
    assert done.exit_code == 0, done.output
    return list(yaml.safe_load_all(done.output))


def secret_rules(manifests):
    return [
        (one["kind"], rule) for one in manifests for rule in one.get("rules", []) if rule["resources"] == ["secrets"]
    ]


def test_s2_an_agent_is_of_one_namespace_and_reads_no_secret_unless_asked():
    """S2: by default no ClusterRole and no Secret; an administrator names Secrets, or all of one namespace."""
    assert "ClusterRole" not in {one["kind"] for one in printed("agent")}
    for args in ((), ("-A",), ("-n", "ml"), ("--host", "box", "--network", "192.168.1.20/32")):
        assert not secret_rules(printed("agent", *args))
    rule = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}
    named = {**rule, "resourceNames": ["a", "b"]}
    assert secret_rules(printed("agent", "--secret", "b", "--secret", "a")) == [("Role", named)]
    assert secret_rules(printed("agent", "-A", "--secret", "a", "--secret", "b")) == [("ClusterRole", named)]
    assert secret_rules(printed("agent", "--secret", "*")) == [("Role", rule)]


def test_a_host_has_an_account_that_renews_its_own_token_and_names_its_networks():
    """The account is named after the host, carries its networks, and may request tokens only for itself."""
    found = printed("agent", "--host", "box", "--network", "192.168.1.0/24", "--network", "fd00::/64")
    (account,) = (one for one in found if one["kind"] == "ServiceAccount")
    assert account["metadata"]["name"] == "llmkube-agent-box"
    assert account["metadata"]["annotations"] == {"inference.llmkube.dev/addresses": "192.168.1.0/24,fd00::/64"}
    rules = [rule for one in found for rule in one.get("rules", []) if "serviceaccounts/token" in rule["resources"]]
    assert rules == [
        {
            "apiGroups": [""],
            "resources": ["serviceaccounts/token"],
            "resourceNames": ["llmkube-agent-box"],
            "verbs": ["create"],
        }
    ]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("agent", "-A", "--secret", "*"), "every Secret of the cluster"),
        (("agent", "-A", "-n", "ml"), "exclude each other"),
        (("agent", "--host", "box"), "--network"),
        (("agent", "--network", "10.0.0.0/8"), "--host"),
        (("agent", "--host", "Ann's Mac", "--network", "10.0.0.0/8"), "use ann-s-mac-"),
        (("agent", "--host", "box", "--network", "10.0.0.1/8"), "host bits"),
        (("controller", "--secret", "a"), "for `llmkube rbac agent`"),
        (("policies", "-n", "ml"), "for all hosts"),
    ],
)
def test_invalid_flags_are_refused(args, message):
    """The error names the option, and no manifest is printed."""
    done = CliRunner().invoke(cli, ["rbac", *args])
    assert done.exit_code != 0
    assert message in done.output
    assert "apiVersion" not in done.output
