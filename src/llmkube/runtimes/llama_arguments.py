"""What extraArgs say to llama.cpp's server becomes the fields that say the same, so that every reader reads one place.

Manifests of other origins write `--ctx-size 8192` where a field says it as well. An argument is read as its field if
that is unset or says the same. What says something else is refused: the field is what `llmkube list` shows.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from llmkube.k8s.crd.inferenceservice import InferenceService, InferenceServiceSpec
from llmkube.k8s.crd.model import Model
from llmkube.k8s.crd.placement import GPU
from llmkube.runtimes.arguments import EXTRA_ARGS, flag_of
from llmkube.runtimes.llama_flags import Said, take
from llmkube.runtimes.llama_verdicts import spellings_of
from llmkube.runtimes.plan import PlanError

TRAINED_CONTEXT: Final = 0
"""What `--ctx-size 0` says: all that the model was trained for. No field can say it."""

_MOST_CONTEXT: Final = 2097152
_MOST_SLOTS: Final = 64
_ALL_LAYERS: Final = -1
_FLASH: Final[Mapping[str, bool | None]] = {"on": True, "1": True, "off": False, "0": False, "auto": None}


def read_as_fields(service: InferenceService, model: Model) -> tuple[InferenceService, Model]:
    """Return a service and its Model with what extraArgs say of context, slots, flash attention and layers as fields.

    The arguments that were read are left out of `spec.extraArgs`; of one that is there twice the last counts, as to the
    engine. The objects themselves come back where there is nothing to read.

    Raises:
        PlanError: An argument has no value that its field could have, or the field says something else.
    """
    said, rest = take(tuple(_with_flash_value(service.spec.extra_args)), _FIELD_OF.keys())
    if not said:
        return service, model
    spec, hardware = attrs.evolve(service.spec, extra_args=rest), model.spec.hardware
    for flag, text in _texts(said).items():
        if flag == "--n-gpu-layers":
            gpu = hardware.gpu or GPU()
            layers = _merged(flag, "the Model's spec.hardware.gpu.layers", _layers(flag, text), gpu.layers, None)
            hardware = attrs.evolve(hardware, gpu=attrs.evolve(gpu, layers=layers))
        else:
            spec = _READERS[flag](spec, flag, text)
    service = attrs.evolve(service, spec=spec)
    return service, attrs.evolve(model, spec=attrs.evolve(model.spec, hardware=hardware))


def _texts(said: Iterable[Said]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for each in said:
        if not each.values:
            raise PlanError(f"{each.flag} needs a value: write it as the next word", field=EXTRA_ARGS)
        texts[_FIELD_OF[each.flag]] = each.values[0]
    return texts


def _with_flash_value(args: Sequence[str]) -> Iterator[str]:
    """Yield the words; to builds from before it took a value `--flash-attn` was a switch."""
    for word, following in itertools.zip_longest(args, args[1:]):
        bare = flag_of(word) in _FLASH_FLAGS and "=" not in word and following not in _FLASH
        yield f"{word}=on" if bare else word


def _context(spec: InferenceServiceSpec, flag: str, text: str) -> InferenceServiceSpec:
    tokens = _number(flag, text)
    if tokens != TRAINED_CONTEXT and not 128 <= tokens <= _MOST_CONTEXT:
        raise _unlikely(flag, text, f"write 0 (all that the model was trained for), or 128 to {_MOST_CONTEXT}")
    return attrs.evolve(spec, context_size=_merged(flag, "spec.contextSize", tokens, spec.context_size, None))


def _slots(spec: InferenceServiceSpec, flag: str, text: str) -> InferenceServiceSpec:
    slots = _number(flag, text)
    if not 1 <= slots <= _MOST_SLOTS:
        raise _unlikely(flag, text, f"write 1 to {_MOST_SLOTS}: memory is reserved for so many")
    # the schema fills in 1, so 1 may not be what the user has written
    return attrs.evolve(spec, parallel_slots=_merged(flag, "spec.parallelSlots", slots, spec.parallel_slots, 1))


def _flash(spec: InferenceServiceSpec, flag: str, text: str) -> InferenceServiceSpec:
    if text not in _FLASH:
        raise _unlikely(flag, text, "write on, off or auto")
    return attrs.evolve(
        spec, flash_attention=_merged(flag, "spec.flashAttention", _FLASH[text], spec.flash_attention, None)
    )


def _layers(flag: str, text: str) -> int:
    if text in ("all", "auto"):
        return _ALL_LAYERS
    layers = _number(flag, text)
    if layers < _ALL_LAYERS:
        raise _unlikely(flag, text, "write a number of layers, or -1 for all")
    return layers


def _merged(flag: str, path: str, said: Any, field: Any, unset: Any) -> Any:
    if field not in (unset, said):
        raise PlanError(f"{flag} says {said} and {path} says {field}: leave one of the two out", field=EXTRA_ARGS)
    return said


def _number(flag: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise _unlikely(flag, text, "write a whole number") from None


def _unlikely(flag: str, text: str, advice: str) -> PlanError:
    return PlanError(f"{flag} is {text[:64]!r}: {advice}", field=EXTRA_ARGS)


_FLASH_FLAGS: Final = frozenset(spellings_of("--flash-attn"))
_Reader = Callable[[InferenceServiceSpec, str, str], InferenceServiceSpec]

_READERS: Final[Mapping[str, _Reader]] = {"--ctx-size": _context, "--parallel": _slots, "--flash-attn": _flash}
_FIELD_OF: Final[Mapping[str, str]] = {
    spelling: flag for flag in (*_READERS, "--n-gpu-layers") for spelling in spellings_of(flag)
}
