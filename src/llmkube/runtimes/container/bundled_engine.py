"""Which pods llama.cpp can serve as it comes in an image of ours: those on CPUs, by the flags that it honours. Pure.

The engine is `llmkube-llama-server`; it refuses every flag that it does not honour. What a service asks beyond them is
served by llama.cpp's own image, as is everything on GPUs.
"""

import itertools
from collections.abc import Sequence
from typing import Final

from llmkube.k8s.crd.inferenceservice import InferenceServiceSpec
from llmkube.k8s.crd.model import ModelSpec
from llmkube.runtimes.arguments import flag_of
from llmkube.runtimes.container.container_plan import Resources

_WORDS: Final = """
--alias --api-key-file --api-prefix --batch-size --cache-prompt --cache-ram --cache-reuse --cache-type-k
--cache-type-v --chat-template --chat-template-file --chat-template-kwargs --check-tensors --cont-batching
--context-shift --cors-origins --cpu-moe --ctx-checkpoints --ctx-size --embd-normalize --embedding --embeddings
--fit --flash-attn --gpu-layers --host --jinja --kv-offload --kv-unified --lazy-mode --load-mode --log-verbose
--log-verbosity --main-gpu --metrics --min-p --model --model-draft --n-cpu-moe --n-gpu-layers --n-predict
--no-cache-prompt --no-cont-batching --no-context-shift --no-host --no-jinja --no-kv-offload --no-op-offload
--no-repack --no-slots --no-ui --no-warmup --no-webui --override-tensor --parallel --pooling --port --predict
--props --reasoning --reasoning-budget --reasoning-budget-message --reasoning-format --repeat-penalty --rerank
--reranking --reuse-port --rope-freq-base --rope-freq-scale --rope-scale --rope-scaling --seed --sleep-idle-seconds
--slot-prompt-similarity --slots --spec-draft-model --spec-draft-n-max --spec-draft-n-min --spec-draft-ngl
--spec-draft-p-min --spec-type --split-mode --sse-ping-interval --swa-full --temp --tensor-split --threads
--threads-batch --threads-http --timeout --top-k --top-p --ubatch-size --ui --verbose --verbosity --warmup --webui
--yarn-attn-factor --yarn-beta-fast --yarn-beta-slow --yarn-ext-factor --yarn-orig-ctx -a -b -c -cb -cmoe -cram -ctk
-ctv -ctxcp -fa -fit -kvo -kvu -lm -lv -lzm -m -md -mg -n -ncmoe -ngl -ngld -nkvo -nocb -np -nr -ot -rea -s -sm -sps
-t -tb -to -ts -ub -v
"""

FLAGS: Final = frozenset(_WORDS.split())
"""Every flag that it honours (`cli.bundled_engine.llama_params`)."""

_CPU: Final = "cpu"
_LAYERS: Final = "--n-gpu-layers"
_ARGUMENT_VARIABLE: Final = "LLAMA_ARG_"
"""llama.cpp's own server reads flags from variables of that name, and ours does not."""


def can_serve(spec: InferenceServiceSpec, model: ModelSpec, resources: Resources, argv: Sequence[str]) -> bool:
    """Whether the bundled engine does what a service asks: on CPUs, by its own flags, with nothing of another image.

    A pod may have a GPU that its resources do not tell of: one with a RuntimeClass, or with layers for a GPU.
    """
    gpu = model.hardware.gpu
    on_gpu = resources.on_gpu or model.hardware.accelerator != _CPU or bool(gpu and gpu.enabled)
    layers = {value for flag, value in itertools.pairwise(argv) if flag == _LAYERS}
    if on_gpu or layers != {"0"} or spec.runtime_class_name or spec.command:
        return False
    if any(variable.name.startswith(_ARGUMENT_VARIABLE) for variable in spec.env):
        return False
    probes = spec.probe_overrides
    given = (probes.startup, probes.liveness, probes.readiness) if probes else ()
    if any("exec" in probe for probe in given if probe):
        return False
    return all(word.partition("=")[0] in FLAGS for word in argv if flag_of(word))
