"""The locks are what pyproject.toml asks for, by digest and of no index, and what is installed here."""

import re
import tomllib
from importlib.metadata import distribution, version

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from supply.lock import FOLDER, LOCKS, PROJECT, PYTHONS, ROOT, entries, merged, pins

PYPROJECT = tomllib.loads(PROJECT.read_text())
RUNTIME = PYPROJECT["project"]["dependencies"]
EXTRAS = PYPROJECT["project"]["optional-dependencies"]
GROUPS = PYPROJECT["dependency-groups"]

HASH = re.compile(r"    --hash=sha256:[0-9a-f]{64}( \\)?")
FIRST = re.compile(r"[a-z0-9-]+==[\w.!+]+( ; [^\\]+)? \\")
ASKED = re.compile(r"(?:# via|#  ) +llmkube \(pyproject\.toml")


def group(name):
    for each in GROUPS[name]:
        yield from group(each["include-group"]) if isinstance(each, dict) else (each,)


ASKS = {
    "dev": [*RUNTIME, *EXTRAS["llama"], *EXTRAS["traces"], *group("dev")],
    "runtime": [*RUNTIME, *EXTRAS["traces"]],
    "llama": [*RUNTIME, *EXTRAS["llama"], *EXTRAS["traces"]],
    "nvidia": [*RUNTIME, *EXTRAS["nvidia"]],
    "traces": [*RUNTIME, *EXTRAS["traces"]],
    "build": list(group("build")),
    "release": list(group("release")),
    "clients": list(group("clients")),
    "lock": list(group("lock")),
    "site": list(group("site")),
}


def lock(name):
    return (FOLDER / f"{name}.txt").read_text()


def test_every_part_of_the_project_has_a_lock():
    """A new extra or group gets a file of its own, or is in one."""
    assert {path.stem for path in FOLDER.iterdir()} == set(LOCKS) == set(ASKS)
    assert set(GROUPS) <= set(LOCKS)
    assert set(EXTRAS) <= set(LOCKS)


@pytest.mark.parametrize("name", LOCKS)
def test_what_pyproject_asks_for_is_pinned_and_nothing_else_is_asked_for(name):
    """If this fails, `make lock` has not been run since pyproject.toml was changed."""
    wanted = {canonicalize_name(Requirement(each).name) for each in ASKS[name]}
    asked = {pin for each in entries(lock(name)) if ASKED.search(each) for pin in pins(each)}
    assert asked == wanted
    for each in map(Requirement, ASKS[name]):
        for pinned in pins(lock(name))[canonicalize_name(each.name)]:
            assert each.specifier.contains(pinned), f"{each} and {pinned}"


@pytest.mark.parametrize("name", LOCKS)
def test_s11_every_line_is_a_version_or_a_digest(name):
    """No entry is without a digest, and no option, URL or index is in the text: any mirror serves it."""
    text = lock(name)
    for each in entries(text):
        first, *rest = each.splitlines()
        digests = [line for line in rest if not line.startswith("    #")]
        assert FIRST.fullmatch(first), first
        assert digests, first
        assert all(HASH.fullmatch(line) for line in digests), each
        assert [line.endswith("\\") for line in digests] == [True] * (len(digests) - 1) + [False], each
    rest_of_text = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    assert rest_of_text.split() == " ".join(entries(text)).split()
    assert "://" not in text


SDKS = re.compile(r"openai|anthropic|litellm|ollama|cohere|mistralai|boto3?(core)?|google-(cloud|genai).*|langchain.*")


@pytest.mark.parametrize("name", ["runtime", "llama"])
def test_no_provider_s_sdk_is_installed_with_a_router(name):
    """Providers are asked over HTTP: LiteLLM's own releases carried a stealer, and SDKs bring hundreds of packages."""
    assert not [package for package in pins(lock(name)) if SDKS.fullmatch(package)]
    assert [package for package in pins(lock("clients")) if SDKS.fullmatch(package)]  # the pattern knows one


def test_no_package_runs_code_at_the_start_of_an_interpreter():
    """As that stealer did by a `.pth`: of all that a release installs, none brings one with a line that is run."""
    runs, seen = [], 0
    for each in entries(lock("llama")):
        first = Requirement(each.splitlines()[0].removesuffix("\\"))
        if first.marker is not None and not first.marker.evaluate():
            continue
        for file in distribution(first.name).files or ():
            seen += 1
            if file.name in ("sitecustomize.py", "usercustomize.py"):
                runs.append(str(file))
            elif file.suffix == ".pth":
                runs += [f"{file}: {line}" for line in file.read_text().splitlines() if line.startswith("import")]
    assert seen > 1000
    assert runs == []


def test_the_first_lock_s_pins_hold_in_all():
    """Tests run with the versions of an image and a release; foreign clients run in an environment of their own."""
    tested = pins(lock("dev"))
    for name in LOCKS.keys() - {"clients"}:
        for package, versions in pins(lock(name)).items():
            assert versions <= tested.get(package, versions), f"{name}: {package}"
    assert pins(lock("runtime")).keys() < pins(lock("llama")).keys() < tested.keys()


def test_what_these_tests_run_with_is_what_the_lock_pins():
    """`make test` installs it; in another environment the tests would prove something about other versions."""
    others = []
    for each in entries(lock("dev")):
        first = Requirement(each.splitlines()[0].removesuffix("\\"))
        if (first.marker is None or first.marker.evaluate()) and not first.specifier.contains(version(first.name)):
            others.append(f"{first.name} {version(first.name)} is installed, and the lock has {first.specifier}")
    assert others == [], "run: rm -f .venv/.installed && make .venv/.installed"


def test_the_build_s_own_requirements_are_locked():
    """`pip install --no-build-isolation` finds what [build-system] asks for."""
    assert PYPROJECT["build-system"]["requires"] == GROUPS["build"]
    assert f">={PYTHONS[0]}" == PYPROJECT["project"]["requires-python"]


def test_s11_the_makefile_installs_nothing_that_is_not_pinned():
    """Every way, uv's and pip's, takes a lock with its digests, and this tree without dependencies."""
    text = (ROOT / "Makefile").read_text()
    assert "PINNED := --require-hashes --only-binary :all:\n" in text
    assert "$(call installed,--requirement requirements/dev.txt," in text
    assert "THIS := --no-deps --no-build-isolation --editable .\n" in text
    installs = re.findall(r"pip install .*", text)
    pinned, this = (True, False), (False, True)
    found = [("$(PINNED)" in each, "$(THIS)" in each) for each in installs]
    assert found == [pinned, this, pinned, this, pinned]
    assert "$(STAMP): pyproject.toml requirements/dev.txt\n" in text


def test_renewing_keeps_the_pins_of_the_first_lock():
    """The resolver starts from what its output pins: entries of the first text win, others are kept as they were."""
    first = "a==1 \\\n    --hash=sha256:00\n    # via x\n"
    second = "# head\na==2 \\\n    --hash=sha256:01\nb==3 ; python_version < '4' \\\n    --hash=sha256:02\n"
    both = merged(first, second)
    assert pins(both) == {"a": {"1"}, "b": {"3"}}
    assert entries(both) == [first.rstrip("\n"), "b==3 ; python_version < '4' \\\n    --hash=sha256:02"]
