"""The script: every chapter, and the kinds that they need; each chapter has a namespace of its own."""

from collections.abc import Sequence
from types import ModuleType
from typing import Any, Final

from contracts import (
    script_apply,
    script_ends,
    script_kinds,
    script_network,
    script_objects,
    script_reads,
    script_writes,
)
from contracts.gadgets import gadget_crd
from contracts.nouns import Chapter
from contracts.widgets import widget_crd
from llmkube.k8s.crd.definitions import all_crds

_ROOMS: Final[Sequence[ModuleType]] = (
    script_objects,
    script_writes,
    script_apply,
    script_reads,
    script_ends,
    script_network,
    script_kinds,
)

CHAPTERS: Final[Sequence[Chapter]] = tuple(
    chapter for room in _ROOMS for name, chapter in vars(room).items() if name.startswith("chapter_")
)
"""Every chapter, in the order written."""


def crds() -> Sequence[dict[str, Any]]:
    """Return the definitions of the kinds that the script uses."""
    return widget_crd(), gadget_crd(), *all_crds()
