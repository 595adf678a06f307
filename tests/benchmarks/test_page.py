"""The page of benchmarks is put together from sections, each of which only its own benchmark replaces."""

import importlib.util
from pathlib import Path

import pytest

HARNESS = Path(__file__).resolve().parents[2] / "benchmarks" / "harness.py"


@pytest.fixture(scope="module")
def harness():
    spec = importlib.util.spec_from_file_location("benchmark_harness", HARNESS)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def report(harness):
    conditions = harness.Conditions("today", "3.11", "Linux", "fast", 2, 0.5, 0.6, 1, {"llmkube": "0.1.0"})

    def make(name, figure, *, met=True):
        table = harness.Table(["what", "figure"], [["it", figure]])
        return harness.Report(
            name, f"About {name}", "Text.", [table], conditions, [harness.Aim(f"{name} aim", "5", figure, met)]
        )

    return make


def test_a_run_replaces_its_own_section_only(harness, report):
    """The section of another benchmark stays as it is, byte for byte, and a new one finds its place."""
    both = harness.page("", [report("reaction", "1"), report("gguf_header", "2")])
    again = harness.page(both, [report("gguf_header", "3")])
    assert again == both.replace("| it   |      2 |", "| it   |      3 |").replace(
        "|        2 | yes |", "|        3 | yes |"
    )
    more = harness.page(again, [report("version", "4"), report("unheard_of", "5")])
    titles = [line.removeprefix("## About ") for line in more.splitlines() if line.startswith("## ")]
    assert titles == ["reaction", "version", "gguf_header", "unheard_of"]


def test_writing_it_twice_changes_nothing(harness, report):
    """The same results make the same page, from whatever page was there."""
    once = harness.page("", [report("reaction", "1", met=False)])
    assert harness.page(once, [report("reaction", "1", met=False)]) == once
    assert harness.page(once, []) == once


def test_missed_aims_stand_at_the_top(harness, report):
    """A missed aim is listed before the first section until a run meets it, also when another benchmark has run."""
    missed = harness.page("", [report("reaction", "9 ms", met=False), report("version", "1")])
    top = missed.partition("<!--")[0]
    assert "not reached:\n\n* reaction aim: 5 wanted, 9 ms measured\n" in top
    assert "version" not in top
    assert "* reaction aim" in harness.page(missed, [report("version", "2")])
    assert "Every aim is reached." in harness.page(missed, [report("reaction", "1 ms")])


@pytest.mark.parametrize(("percent", "expected"), [(0, 1), (50, 100), (99, 198), (99.5, 199), (100, 200)])
def test_percentiles_are_samples(harness, percent, expected):
    """The 99th percentile of 200 samples is the 198th: at least that many per cent are not above it."""
    assert harness.percentile(range(200, 0, -1), percent) == expected


def test_contenders_take_turns(harness):
    """Each contender has one sample per round, and no round begins before the last one has ended."""
    import random

    calls = []
    samples = harness.interleaved({name: lambda name=name: calls.append(name) for name in "abc"}, 4, random.Random(1))
    assert {name: len(found) for name, found in samples.items()} == dict.fromkeys("abc", 4)
    assert [sorted(calls[at : at + 3]) for at in range(0, 12, 3)] == [["a", "b", "c"]] * 4


def test_a_run_draws_another_number_each_time_and_the_same_ones_for_the_same_seed(harness):
    """Who asks a run for two pauses gets two different ones; the same seed gives the same two again."""
    one, again = (harness.Run("any", (), seed=1) for _ in range(2))
    drawn = [one.rng.random(), one.rng.random()]
    assert drawn[0] != drawn[1]
    assert [again.rng.random(), again.rng.random()] == drawn
