import pytest

from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.runtimes.llama_arguments import read_as_fields
from llmkube.runtimes.plan import PlanError


def read(*args, gpu=None, **spec):
    """What is said of context, slots, flash attention and layers, and the arguments that are left."""
    body = {"metadata": {"name": "chat"}, "spec": {"modelRef": "m", "extraArgs": list(args), **spec}}
    model = {"metadata": {"name": "m"}, "spec": {"source": "/m", "hardware": {"gpu": gpu} if gpu else {}}}
    service, found = read_as_fields(decode(InferenceService, body), decode(Model, model))
    layers = found.spec.hardware.gpu.layers if found.spec.hardware.gpu else None
    said = service.spec
    return (said.context_size, said.parallel_slots, said.flash_attention, layers), said.extra_args


@pytest.mark.parametrize(
    ("args", "said", "rest"),
    [
        ([], (None, 1, None, None), ()),
        (["-c", "8192", "--mlock"], (8192, 1, None, None), ("--mlock",)),
        (["--ctx-size=8192"], (8192, 1, None, None), ()),
        (["--ctx_size", "0"], (0, 1, None, None), ()),
        (["-c", "1024", "-c", "2048"], (2048, 1, None, None), ()),
        (["-np", "4", "--temp", "-1"], (None, 4, None, None), ("--temp", "-1")),
        (["-fa", "--jinja"], (None, 1, True, None), ("--jinja",)),
        (["-fa"], (None, 1, True, None), ()),
        (["--flash-attn", "off"], (None, 1, False, None), ()),
        (["-ngl", "20"], (None, 1, None, 20), ()),
        (["--gpu-layers", "all"], (None, 1, None, -1), ()),
        (["--chat-template", "-c", "-t", "2"], (None, 1, None, None), ("--chat-template", "-c", "-t", "2")),
    ],
)  # fmt: skip
def test_what_an_argument_says_becomes_its_field(args, said, rest):
    """By every name and form of a flag, the last one counting; what is a value stays one."""
    assert read(*args) == (said, rest)


def test_an_argument_that_says_what_its_field_says_is_no_contradiction():
    """Both are read as one."""
    assert read("-c", "8192", "-np", "2", contextSize=8192, parallelSlots=2) == ((8192, 2, None, None), ())
    assert read("-ngl", "99", gpu={"layers": 99}) == ((None, 1, None, 99), ())


@pytest.mark.parametrize(
    ("args", "spec", "words"),
    [
        (["-c", "8192"], {"contextSize": 4096}, "--ctx-size says 8192 and spec.contextSize says 4096"),
        (["-np", "4"], {"parallelSlots": 2}, "--parallel says 4 and spec.parallelSlots says 2"),
        (["-fa", "off"], {"flashAttention": True}, "--flash-attn says False and spec.flashAttention says True"),
        (["-ngl", "20"], {"gpu": {"layers": 99}}, "--n-gpu-layers says 20 and the Model's"),
        (["-c", "many"], {}, "--ctx-size is 'many': write a whole number"),
        (["-c", "-5"], {}, "--ctx-size is '-5': write 0"),
        (["-np", "-1"], {}, "--parallel is '-1': write 1 to 64"),
        (["-c"], {}, "-c needs a value"),
    ],
)
def test_what_no_field_can_say_or_another_says_is_refused(args, spec, words):
    """The message names the flag, the field and both values."""
    with pytest.raises(PlanError) as caught:
        read(*args, **spec)
    assert words in str(caught.value)
    assert caught.value.field == "spec.extraArgs"
