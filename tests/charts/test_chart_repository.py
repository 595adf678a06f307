"""The guide's own commands, against a repository that is packaged and served here.

`helm install` wants a cluster that knows every kind, even for a dry run: `tests/envtest/test_real_chart.py` has one.
"""

import re

import pytest
import yaml

from charts.helm_runs import (
    CHART,
    DIGEST,
    GUIDE,
    OPENSHIFT,
    PACKAGED,
    PACKAGED_ENGINE,
    REPOSITORY,
    ROOT,
    named,
    objects_in,
    run,
)
from charts.package import CPU_ENGINE, PackageError, image_values, package, with_image
from charts.repository import served


@pytest.fixture
def home(tmp_path):
    """Return the home of a helm that knows the repository `llmkube` and has no other local configuration."""
    folder = tmp_path / "repository"
    folder.mkdir()
    package(folder, PACKAGED, PACKAGED_ENGINE)
    with served(folder) as url:
        run("helm", "repo", "add", "llmkube", url, home=tmp_path)
        yield tmp_path


def test_the_index_names_the_package_and_its_digest(tmp_path):
    """The output of `make chart` can be copied to any web server: the index has no address in it."""
    package(tmp_path, PACKAGED)
    (entry,) = yaml.safe_load((tmp_path / "index.yaml").read_text())["entries"]["llmkube"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert entry["urls"] == [f"llmkube-{chart['version']}.tgz"]
    assert (tmp_path / entry["urls"][0]).is_file()
    assert re.fullmatch(r"[0-9a-f]{64}", entry["digest"])


@pytest.mark.ci
def test_the_repository_s_chart_renders_as_the_folder_does(home):
    """Nothing that the chart needs is left out of the package, and nothing but the image differs."""
    image = f"image.registry=registry.example.com,image.repository={REPOSITORY},image.digest={DIGEST}"
    name, _, digest = PACKAGED_ENGINE.partition("@")
    image += f",workloads.cpuEngine.repository={name.partition('/')[2]},workloads.cpuEngine.digest={digest}"
    packaged = run("helm", "template", *GUIDE, home=home)
    assert objects_in(packaged) == objects_in(run("helm", "template", GUIDE[0], str(CHART), *GUIDE[2:], "--set", image))
    run("helm", "pull", "llmkube/llmkube", "--untar", "-d", str(home), home=home)
    assert (home / "llmkube" / OPENSHIFT.name).read_text() == OPENSHIFT.read_text()


def test_the_guide_s_command_needs_no_value_and_names_the_image_by_digest(home):
    """The controller runs the image that was packaged, has its pods run the same, and CPUs' engines the other one."""
    objects = objects_in(run("helm", "template", *GUIDE, home=home))
    (controller,) = named(objects, "Deployment")["llmkube-controller"]["spec"]["template"]["spec"]["containers"]
    assert controller["image"] == PACKAGED
    assert f"--image={PACKAGED}" in controller["args"]
    assert f"--engine-image=llamacpp-cpu={PACKAGED_ENGINE}" in controller["args"]


def test_a_package_without_an_image_stops_as_the_folder_does(tmp_path):
    """`make chart` alone makes no chart that installs another program."""
    package(tmp_path)
    (made,) = tmp_path.glob("*.tgz")
    assert "LLMKube publishes no image" in run("helm", "template", "llmkube", str(made), code=1)


@pytest.mark.parametrize(
    ("image", "values"),
    [
        ("llmkube", ("", "llmkube", "")),
        ("team/llmkube", ("", "team/llmkube", "")),
        ("localhost:5000/llmkube", ("localhost:5000", "llmkube", "")),
        ("registry:5000/a/b-c/llmkube:v1", ("registry:5000", "a/b-c/llmkube", "v1")),
        ("r.example.com/proxy/team/llmkube", ("r.example.com", "proxy/team/llmkube", "")),
    ],
)
def test_an_image_is_taken_apart_as_container_engines_do(image, values):
    """The part before the first slash is a registry if it has a dot or a port, or is localhost."""
    registry, repository, tag = values
    assert image_values(f"{image}@{DIGEST}") == {
        "registry": registry,
        "repository": repository,
        "tag": tag,
        "digest": DIGEST,
    }


@pytest.mark.parametrize(
    "image", ["r.example.com/llmkube:v1", "r.example.com/llmkube@sha256:12", f"R/llm kube@{DIGEST}", f"@{DIGEST}"]
)
def test_an_image_without_a_digest_is_refused(image, tmp_path):
    """A tag may be another image tomorrow; the message says what prints a digest."""
    with pytest.raises(PackageError, match=r"is not REPOSITORY@sha256.*docker buildx imagetools inspect"):
        package(tmp_path, image)
    with pytest.raises(PackageError, match=r"^CPU_ENGINE=.*is not REPOSITORY@sha256"):
        package(tmp_path, PACKAGED, image)
    assert list(tmp_path.iterdir()) == []


def test_only_the_image_changes_in_the_values():
    """Comments and all other values of the package are those of the tree; each image has its own place."""
    before = (CHART / "values.yaml").read_text()
    after = with_image(before, PACKAGED)
    changed = [line for line in after.splitlines() if line not in before.splitlines()]
    assert changed == ['  registry: "registry.example.com"', f'  repository: "{REPOSITORY}"', f'  digest: "{DIGEST}"']
    assert len(after.splitlines()) == len(before.splitlines())
    with pytest.raises(PackageError, match=r"values\.yaml has no image\.registry"):
        with_image("image: {}\n", PACKAGED)
    both = with_image(after, PACKAGED_ENGINE, CPU_ENGINE)
    assert [line for line in both.splitlines() if line not in after.splitlines()] == [
        '    registry: "registry.example.com"',
        '    repository: "engines/llama"',
        f'    digest: "sha256:{"6" * 64}"',
    ]
    assert yaml.safe_load(both)["image"] == yaml.safe_load(after)["image"]


def test_the_docs_have_the_guide_s_command():
    """docs/guides/helm.md tells the command that is tested here."""
    page = (ROOT / "docs" / "guides" / "helm.md").read_text()
    assert f"helm install {' '.join(GUIDE)}" in page
