import pytest
import yaml
from click.testing import CliRunner

from llmkube.cli.main import cli


@pytest.mark.parametrize("program", ["agent", "controller"])
def test_the_manifests_can_be_applied(program):
    """Each program's rights are printed as whole objects: an account, its roles, and a binding for each role."""
    done = CliRunner().invoke(cli, ["rbac", program])
    assert done.exit_code == 0
    kinds = [one["kind"] for one in yaml.safe_load_all(done.output)]
    assert {"Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"} == set(kinds)


def test_one_namespace_needs_no_cluster_role():
    """An agent of one namespace gets no right outside of it and of the Leases' namespace."""
    done = CliRunner().invoke(cli, ["rbac", "agent", "-n", "ml"])
    assert "ClusterRole" not in {one["kind"] for one in yaml.safe_load_all(done.output)}
