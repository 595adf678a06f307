"""The catalog: its entries, each of which can be deployed unchanged."""

import re

import pytest

from llmkube.cli.catalog.entries import CHECKS, entries, find, hint_for
from llmkube.weights.source import parse_source

SEEDS = ("llama-3.1-8b", "llama-3.2-3b", "phi-4-mini", "qwen3-8b", "qwen3-32b", "qwen3-30b", "qwen3-30b-a3b",
         "tinyllama-1b")  # fmt: skip


@pytest.mark.parametrize("name", SEEDS)
def test_models_of_the_guides_are_found(name):
    """Models that the guides deploy are found by name, in any case."""
    assert find(name) is not None
    assert find(name.upper()) is find(name)


@pytest.mark.parametrize("entry", entries().values(), ids=lambda each: each.name)
def test_an_entry_can_be_deployed(entry):
    """Its source is one GGUF file, and its digest and revision are complete or absent."""
    assert parse_source(entry.source)
    assert entry.source.partition("@")[0].endswith(".gguf")
    assert entry.sha256 == "" or re.fullmatch(r"[0-9a-f]{64}", entry.sha256)
    assert (entry.checked == "none") == (entry.sha256 == "")
    assert entry.checked in CHECKS
    assert re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", entry.name)
    revision = entry.source.partition("@")[2]
    assert revision == "" or re.fullmatch(r"[0-9a-f]{40}", revision)


def test_names_are_unique():
    names = [name for each in entries().values() for name in (each.name, *each.aliases)]
    assert len(names) == len(set(names))
    assert len(entries()) >= 20


def test_a_mistyped_name_is_guessed():
    """A mistyped name suggests similar ones; an unrelated name suggests none."""
    assert hint_for("lama-3.1-8b").startswith("did you mean llama-3.1-8b")
    assert hint_for("xyz") == "see `llmkube catalog list`"
    assert find("nothing") is None
