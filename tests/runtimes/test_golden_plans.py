import pytest
import yaml

from llmkube.runtimes.registry import BUILT_IN
from runtimes.golden_plans import FOLDER, planned

CASES = [
    (path.stem, document) for path in sorted(FOLDER.glob("*.yaml")) for document in yaml.safe_load_all(path.read_text())
]


@pytest.mark.parametrize(("name", "document"), CASES, ids=[f"{name}: {case['feature']}" for name, case in CASES])
def test_a_plan_equals_its_golden_file(name, document):
    """Each feature of each runtime makes the reviewed arguments, variables and probes."""
    assert document["service"].get("runtime", "llamacpp") == name
    assert planned(document) == document["plan"]


def test_every_runtime_has_golden_files():
    """Every runtime that runs in pods has one."""
    assert {name for name, _ in CASES} == set(BUILT_IN)
