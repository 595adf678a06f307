"""Which image serves a runtime on which kind of GPU: pinned, so that a restart never brings another engine.

An operator may name others by the same keys, and may put a registry of his own before ours (air-gapped clusters).
A user's `spec.image` wins over both and is taken as it is.
"""

from collections.abc import Mapping
from typing import Final

import attrs

from llmkube.base.errors import UserError
from llmkube.runtimes.plan import PlanError

_LLAMA: Final = "ghcr.io/ggml-org/llama.cpp:server"
_LLAMA_BUILD: Final = "b9445"
_VLLM: Final = "vllm/vllm-openai:v0.25.1"
_TGI: Final = "ghcr.io/huggingface/text-generation-inference:3.3.7"
_SGLANG: Final = "lmsysorg/sglang:v0.5.15.post1-cu129"
_TRITON: Final = "nvcr.io/nvidia/tritonserver:25.10-py3"
_OLLAMA: Final = "ollama/ollama:0.24.0"

PINNED: Final[Mapping[str, str]] = {
    "llamacpp": f"{_LLAMA}-{_LLAMA_BUILD}",
    "llamacpp-cpu": f"{_LLAMA}-{_LLAMA_BUILD}",  # the chart names our own image here (`bundled_engine`)
    "llamacpp-cuda": f"{_LLAMA}-cuda13-{_LLAMA_BUILD}",
    "llamacpp-rocm": f"{_LLAMA}-rocm-{_LLAMA_BUILD}",
    "llamacpp-vulkan": f"{_LLAMA}-vulkan-{_LLAMA_BUILD}",
    "llamacpp-intel": f"{_LLAMA}-intel-{_LLAMA_BUILD}",
    # engines that need a GPU: where none is asked for, the cluster may hand one out by other means (runtimeClassName)
    "vllm": _VLLM,
    "vllm-cuda": _VLLM,
    "tgi": _TGI,
    "tgi-cuda": _TGI,
    "sglang": _SGLANG,
    "sglang-cuda": _SGLANG,
    "sglang-rocm": "lmsysorg/sglang:v0.5.15-rocm720-mi30x",
    "triton": _TRITON,
    "triton-cuda": _TRITON,
    "ollama": _OLLAMA,
    "ollama-cuda": _OLLAMA,
    "ollama-rocm": f"{_OLLAMA}-rocm",
}
"""By runtime and compute stack (`cuda`, `rocm`, `vulkan`, `intel`); nothing where no GPU is asked for.

`llamacpp-cpu` is for pods of which it is known that the bundled engine serves them.
"""

CPU: Final = "cpu"
"""The compute stack of those."""

_WITHOUT_IMAGE: Final = frozenset({"personaplex", "generic"})
"""Runtimes of which we know no image."""

_FIXED: Final = "spec.image"


def parse_overrides(given: Mapping[str, str]) -> Mapping[str, str]:
    """Return an operator's images by the keys of `PINNED`, or by a runtime's name for all of its stacks.

    Raises:
        UserError: A key is neither.
    """
    for key in given:
        if key not in PINNED and key not in _WITHOUT_IMAGE:
            known = ", ".join(sorted({*PINNED, *_WITHOUT_IMAGE}))
            raise UserError(f"{key!r} is no engine of ours: use one of {known}", field="--engine-image")
    return dict(given)


@attrs.frozen
class Images:
    """What an operator has to say about images.

    Attributes:
        overrides: Images by the keys of `PINNED`; a bare runtime's name stands for all of its stacks.
        registry: Takes the place of the registry in every pinned image, such as `registry.local:5000/mirror`.
    """

    overrides: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    registry: str = ""

    def choose(self, runtime: str, stack: str, *, default: str = "") -> str:
        """Return the image of a runtime.

        Args:
            runtime: Its name, or that of the one whose image it uses.
            stack: `cuda`, `rocm`, `vulkan`, `intel`, `cpu`, or empty where no GPU is asked for.
            default: What a runtime that is not pinned here brings itself.

        Raises:
            PlanError: There is none: the user has to name one.
        """
        key = f"{runtime}-{stack}" if stack else runtime
        for name in (key, runtime):
            if name in self.overrides:
                return self.overrides[name]
        image = default or PINNED.get(key, "")
        if not image:
            on = f" on {stack}" if stack else ""
            raise PlanError(f"there is no image of ours for {runtime}{on}: name one", field=_FIXED)
        return self._mirrored(image)

    def before(self, runtime: str, stack: str) -> str:
        """Return the image that pods have had if the one for their stack was named later; empty where it is the same.

        What serves with it need not be replaced for that alone.

        Args:
            runtime: As for `choose`.
            stack: As for `choose`.
        """
        key = f"{runtime}-{stack}"
        others = {name: image for name, image in self.overrides.items() if name != key}
        return "" if key not in self.overrides else attrs.evolve(self, overrides=others).choose(runtime, stack)

    def _mirrored(self, image: str) -> str:
        if not self.registry:
            return image
        host, slash, path = image.partition("/")
        is_registry = bool(slash) and ("." in host or ":" in host or host == "localhost")
        return f"{self.registry.rstrip('/')}/{path if is_registry else image}"
