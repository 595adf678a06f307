"""The workflows call what exists, with no right that they do not need; `make check` has actionlint read them."""

import os
import re
import subprocess
import tomllib

import pytest
import yaml

import llmkube
from supply.lock import ROOT

WORKFLOWS = {
    path.stem: yaml.load(path.read_text(), yaml.BaseLoader) for path in (ROOT / ".github" / "workflows").iterdir()
}
JOBS = [(f"{name}.{job}", spec) for name, flow in WORKFLOWS.items() for job, spec in flow["jobs"].items()]
STEPS = [(job, step) for job, spec in JOBS for step in spec.get("steps", ())]
TEXTS = "\n".join(path.read_text() for path in (ROOT / ".github" / "workflows").iterdir())
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

RIGHTS = {
    "ci.ci": {"contents": "read"},
    "release.ci": {"contents": "read"},
    "release.files": {"contents": "read"},
    "release.images": {"contents": "read", "packages": "write"},
    "release.release": {"contents": "write", "packages": "write", "id-token": "write"},
    "release.index": {"contents": "read", "id-token": "write"},
    "release.docs": {"contents": "write"},
}
"""All rights of each job; a new one is reviewed here."""


def test_each_job_has_the_rights_of_this_table_and_ends():
    """A workflow's own `permissions` is empty, so that a job without an entry has none."""
    assert {job: spec["permissions"] for job, spec in JOBS} == RIGHTS
    for name, flow in WORKFLOWS.items():
        assert flow["permissions"] == {}, name
    assert all(int(spec["timeout-minutes"]) <= 120 for _, spec in JOBS if "uses" not in spec)


def test_only_a_push_of_a_tag_sees_secrets():
    """`pull_request_target` and `workflow_run` would run a stranger's change with them."""
    assert set(WORKFLOWS["ci"]["on"]) == {"push", "pull_request", "workflow_call"}
    assert WORKFLOWS["release"]["on"] == {"push": {"tags": ["v[0-9]+.[0-9]+.[0-9]+"]}}
    seen = {job for job, step in STEPS if re.search(r"secrets\.|github\.token", str(step))}
    assert {job.partition(".")[0] for job in seen} == {"release"}
    assert set(re.findall(r"secrets\.(\w+)", TEXTS)) == {"REGISTRY_TOKEN", "PYPI_TOKEN"}
    for secret in ("REGISTRY_TOKEN", "PYPI_TOKEN"):
        assert f"`{secret}`" in (ROOT / "docs" / "guides" / "release.md").read_text()


def test_no_expression_is_pasted_into_a_script():
    """A shell reads the values of expressions as variables, so that a name cannot become a command."""
    assert [job for job, step in STEPS if "${{" in step.get("run", "")] == []


def test_actions_are_pinned_by_commit_and_keep_no_credentials():
    for job, step in STEPS:
        if action := step.get("uses"):
            assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", action), f"{job}: {action}"
            assert "checkout" not in action or step["with"]["persist-credentials"] == "false"


def test_the_scripts_call_programs_and_targets_that_exist():
    """Make's targets, .ci/run, and the few commands that only a runner can run."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    called = set()
    for job, script in ((job, step["run"]) for job, step in STEPS if "run" in step):
        for command in script.split(" && "):
            first, *words = command.split()
            if first == "make":
                called.add(words[0])
            elif first == ".ci/run":
                assert os.access(ROOT / first, os.X_OK)
            else:
                assert (first, words[0]) in {
                    ("sudo", "apt-get"), ("docker", "login"), ("gh", "auth"), ("gh", "release")
                }, f"{job}: {command}"  # fmt: skip
    assert called == {"tagged", "dist", "site", "push", "sign", "publish", "publish-site"}
    assert called <= targets


def test_the_version_is_the_same_everywhere():
    """`make tagged` compares the tag with the first of them only."""
    chart = yaml.safe_load((ROOT / "charts" / "llmkube" / "Chart.yaml").read_text())
    assert {llmkube.__version__, chart["version"], chart["appVersion"]} == {VERSION}
    assert VERSION in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("tag", [f"v{VERSION}", VERSION, "v0.0.0", "v$(shell echo 1 >&2)", "v`id`", 'v"', ""])
def test_a_tag_that_is_not_the_version_ends_the_release(tag):
    """The tag is text of a stranger to make and to the shell: it is compared, never run."""
    env = {**os.environ, "GITHUB_REF_NAME": tag}
    done = subprocess.run(["make", "tagged"], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == (tag == f"v{VERSION}")
    if tag != f"v{VERSION}":
        assert f"the tag {tag} is not v{VERSION}, the version of pyproject.toml" in done.stderr
