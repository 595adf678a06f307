"""The guide's own commands, against a repository that is packaged and served here."""

import re

import pytest
import yaml

from charts.helm_runs import CHART, OPENSHIFT, ROOT, named, objects_in, run
from charts.repository import package, served
from e2e.up_process import open_program
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model


@pytest.fixture
def home(tmp_path):
    """A helm that knows the repository `llmkube`, and nothing of this machine's own."""
    folder = tmp_path / "repository"
    folder.mkdir()
    package(folder)
    with served(folder) as url:
        run("helm", "repo", "add", "llmkube", url, home=tmp_path)
        yield tmp_path


GUIDE = ("llmkube", "llmkube/llmkube", "-n", "llmkube-system", "--create-namespace")


def test_the_index_names_the_package_and_its_digest(tmp_path):
    """What `make chart` writes can be copied to any web server: the index has no address in it."""
    package(tmp_path)
    (entry,) = yaml.safe_load((tmp_path / "index.yaml").read_text())["entries"]["llmkube"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert entry["urls"] == [f"llmkube-{chart['version']}.tgz"]
    assert (tmp_path / entry["urls"][0]).is_file()
    assert re.fullmatch(r"[0-9a-f]{64}", entry["digest"])


def test_the_repository_s_chart_renders_as_the_folder_does(home):
    """Nothing that the chart needs is left out of the package."""
    packaged = run("helm", "template", *GUIDE, home=home)
    assert objects_in(packaged) == objects_in(run("helm", "template", GUIDE[0], str(CHART), *GUIDE[2:]))
    assert "values-openshift.yaml" in run("helm", "pull", "llmkube/llmkube", "--untar", "-d", str(home), home=home) or (
        home / "llmkube" / "values-openshift.yaml"
    ).read_text() == OPENSHIFT.read_text()


@pytest.mark.e2e
async def test_the_guide_s_command_installs(home):
    """`helm install …` as the guide has it gets through against a running API server, and its notes are true.

    A dry run: the embedded API server stands for the cluster that helm wants to see. `tests/envtest` installs for real.
    """
    async with open_program(home, "apiserver", "--state-dir", str(home / "state"), "--port", "0") as program:
        await program.wait_for("err", "kubeconfig")
        kubeconfig = str(home / "state" / "kubeconfig")
        said = run("helm", "install", *GUIDE, "--dry-run=client", home=home, KUBECONFIG=kubeconfig)
    _, _, rest = said.partition("MANIFEST:\n")
    manifest, _, notes = rest.partition("\nNOTES:\n")
    objects = objects_in(manifest)
    assert "llmkube-controller" in named(objects, "Deployment")
    (account,) = re.findall(r"create token (\S+) ", notes)
    assert account in named(objects, "ServiceAccount")
    (deployment,) = re.findall(r"rollout status deployment/(\S+)", notes)
    assert deployment in named(objects, "Deployment")
    model, service = yaml.safe_load_all(notes.partition("<<EOF\n")[2].partition("    EOF\n")[0])
    assert decode(InferenceService, service).spec.model_ref == decode(Model, model).metadata.name


def test_the_docs_have_the_guide_s_command():
    """docs/helm.md tells the command that is tested here."""
    page = (ROOT / "docs" / "helm.md").read_text()
    assert f"helm install {' '.join(GUIDE)}" in page
