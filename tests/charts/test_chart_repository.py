"""The guide's own commands, against a repository that is packaged and served here.

`helm install` wants a cluster that knows every kind, also for a dry run: `tests/envtest/test_real_chart.py` has one.
"""

import re

import pytest
import yaml

from charts.helm_runs import CHART, GUIDE, OPENSHIFT, ROOT, objects_in, run
from charts.repository import package, served


@pytest.fixture
def home(tmp_path):
    """A helm that knows the repository `llmkube`, and nothing of this machine's own."""
    folder = tmp_path / "repository"
    folder.mkdir()
    package(folder)
    with served(folder) as url:
        run("helm", "repo", "add", "llmkube", url, home=tmp_path)
        yield tmp_path


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
    run("helm", "pull", "llmkube/llmkube", "--untar", "-d", str(home), home=home)
    assert (home / "llmkube" / OPENSHIFT.name).read_text() == OPENSHIFT.read_text()


def test_the_docs_have_the_guide_s_command():
    """docs/helm.md tells the command that is tested here."""
    page = (ROOT / "docs" / "helm.md").read_text()
    assert f"helm install {' '.join(GUIDE)}" in page
