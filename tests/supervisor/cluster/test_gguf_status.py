import attrs

from llmkube.k8s.codec import decode, encode
from llmkube.k8s.crd.model import GGUFStatus, Model
from llmkube.supervisor.cluster.status import gguf_status
from llmkube.weights.formats.shape import GGUFFacts

FACTS = GGUFFacts(
    architecture="llama",
    file_version=3,
    tensor_count=5,
    size_bytes=6,
    name="n",
    license="mit",
    quantization="F32",
    context_length=1,
    layer_count=2,
    embedding_size=7,
    head_count=8,
)


def test_each_field_of_the_status_is_filled():
    """A header that says everything fills every field that `status.gguf` has, under the names of the API."""
    status = gguf_status(FACTS)
    metadata = {"name": "m", "namespace": "default"}
    data = {"apiVersion": Model.RESOURCE.api_version, "kind": "Model", "metadata": metadata, "spec": {"source": "/m"}}
    model = decode(Model, data | {"status": {"gguf": status}})
    filled = model.status.gguf
    names = {field.name for field in attrs.fields(GGUFStatus)} - {"wire"}
    assert {name for name in names if getattr(filled, name) in (None, "")} == set()
    assert encode(model)["status"]["gguf"] == status
    assert len(status) == len(names)
