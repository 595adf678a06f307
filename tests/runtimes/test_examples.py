from pathlib import Path

import pytest
import yaml

from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.runtimes.plan import EngineInfo
from llmkube.runtimes.process.plan_inputs import PlanInputs
from llmkube.runtimes.registry import check, plan_for
from llmkube.weights.formats.shape import GGUFFacts
from llmkube.weights.source import parse_source
from llmkube.weights.store.blobs import WeightsFile

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_example_can_be_planned(path):
    """No field of an example manifest is refused, and none is without effect."""
    by_kind = {data["kind"]: data for data in yaml.safe_load_all(path.read_text())}
    service, model = decode(InferenceService, by_kind["InferenceService"]), decode(Model, by_kind["Model"])
    assert service.spec.model_ref == model.metadata.name
    parse_source(model.spec.source)
    check(service, model)
    facts = GGUFFacts(architecture="llama", file_version=3, tensor_count=1, size_bytes=1)
    engine = EngineInfo("llama-server", "1", frozenset(["--threads", "--jinja"]))
    plan = plan_for(PlanInputs(service, model, WeightsFile(Path("/m"), 1, None, "i"), facts, engine, alias="x"))
    assert plan.not_honoured == ()
