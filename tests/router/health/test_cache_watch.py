"""The KV cache gauge is the engine's current value: absent if unknown, removed with its engine, 0 while idle."""

import json

import attrs
import pytest
import trio

from llmkube.router.health import engine_watch
from llmkube.router.health.engine_watch import CacheWatch
from llmkube.router.health.health_state import CacheUse
from router.health.test_health_state import BUSY, IDLE
from router.proxy.router_lab import WHOLE_STREAM, Player, answer, cloud, config_of, local, open_lab, saying, stream

LLAMA = [b"Server: llama.cpp"]
RATIO, OF_PICKER = "llmkube_router_kv_cache_usage_ratio", "vllm:kv_cache_usage_perc"
LONG = saying(b"", stream(WHOLE_STREAM), seconds=60)


def slots(*each, server=LLAMA):
    return answer(200, json.dumps(each).encode(), server)


def engine(health, script=LONG):
    return Player((script,), health)


def figures(lab, *names):
    return [lab.metric(RATIO, backend=name) for name in names], lab.registry.get_sample_value(OF_PICKER)


def mac(name="a", **changes):
    return local(name, **{"slots": 2, "splits_cache": True} | changes)


async def _lives_and_dies():
    """Run an engine that computes, finishes, is idle, computes again and is killed."""
    there, seen = {"a": engine(slots(BUSY, IDLE))}, []
    async with open_lab(config_of(mac()), there) as lab, trio.open_nursery() as nursery:

        async def look(seconds):
            await trio.sleep(seconds)
            (share,), of_all = figures(lab, "a")
            asked = {path for at, path in there["a"].probed if at > trio.current_time() - 6}
            seen.append((share, of_all, asked))

        await look(30)  # no request yet
        nursery.start_soon(lab.read)
        await look(8)
        there["a"].health = slots(BUSY, BUSY)
        await look(6)
        await look(60)  # a sleeping engine is not woken
        nursery.start_soon(lab.read)
        await look(8)
        there["a"].health = None  # no longer answers
        await look(8)
        nursery.cancel_scope.cancel()
    shares = [None, 464 / 1024, 928 / 1024, 0, 928 / 1024, None]
    assert [each[:2] for each in seen] == [(share, share) for share in shares]
    assert (seen[0][2], seen[3][2]) == (set(), {"/health"})


async def test_the_gauge_lives_and_dies_with_its_engine(autojump_clock):
    """It follows within 7 seconds."""
    await _lives_and_dies()


async def test_a_stopped_idle_engine_has_no_gauge(autojump_clock):
    """An engine that was replaced by another server has none, either."""
    for health in (None, answer(200, b"{}"), answer(503, b"{}", LLAMA)):
        there = {"a": engine(slots(BUSY), stream(WHOLE_STREAM))}
        async with open_lab(config_of(mac()), there) as lab:
            with trio.move_on_after(8):
                there["a"].scripts = (LONG,)
                await lab.read()
            await trio.sleep(5)
            assert figures(lab, "a") == ([0], 0)
            there["a"].health = health
            await trio.sleep(8)
            assert figures(lab, "a") == ([None], None)


async def test_engines_are_summed_for_the_picker_and_unknown_ones_are_omitted(autojump_clock):
    """A shared cache counts once; others are absent, not 0."""
    backends = {
        "a": (mac("a"), slots(BUSY, IDLE)),
        "b": (mac("b", splits_cache=False), slots(BUSY, IDLE)),
        "unclear": (mac("unclear", splits_cache=None), slots(BUSY, IDLE)),
        "closed": (mac("closed"), answer(501, b"{}", LLAMA)),
        "vllm": (mac("vllm"), slots(BUSY, server=[])),
        "several": (mac("several", is_replicated=True), slots(BUSY)),
        "cloud": (cloud("cloud"), slots(BUSY)),
    }
    config = config_of(*(backend for backend, _ in backends.values()))
    config = attrs.evolve(config, rules=(attrs.evolve(config.rules[0], strategy="least-loaded"),))
    there = {name: engine(health) for name, (_, health) in backends.items()}
    async with open_lab(config, there) as lab, trio.open_nursery() as nursery:
        for _ in range(7):
            nursery.start_soon(lab.read)
        await trio.sleep(8)
        assert [len(each.asked) for each in there.values()] == [1] * 7
        found = figures(lab, *backends)
        nursery.cancel_scope.cancel()
    assert found == ([464 / 1024, 464 / 512, None, None, None, None, None], 928 / 1536)
    assert [name for name, each in there.items() if "/slots" in {path for _, path in each.probed}] == [
        *("a", "b", "unclear", "closed")
    ]


# -- deliberate bugs --------------------------------------------------------------------------------------------------


def _retains_stale_uses(patch):
    class Sticky(dict):
        def pop(self, *_):
            return None

    plain = CacheWatch.__init__
    patch.setattr(
        CacheWatch, "__init__", lambda self, *given: (plain(self, *given), setattr(self, "_uses", Sticky()))[0]
    )


MUTANTS = {
    "an idle slot counts": (engine_watch, "cache_use", lambda body, splits: CacheUse(1024, 1024)),
    "an idle engine is asked for its slots": (engine_watch, "HEALTH_PATH", "/slots"),
    "no engine is asked": (engine_watch, "_has_single_engine", lambda backend: False),
    "what it calls itself is not read": (engine_watch, "LLAMA_SERVER", ""),
}


@pytest.mark.soak
@pytest.mark.parametrize("name", MUTANTS)
async def test_each_deliberate_bug_is_seen(name, monkeypatch, autojump_clock):
    """If a bug passed, the timeline would prove nothing."""
    monkeypatch.setattr(*MUTANTS[name])
    with pytest.raises(AssertionError):
        await _lives_and_dies()


async def test_a_figure_that_outlives_its_engine_is_seen(monkeypatch, autojump_clock):
    """The gauge would keep its last value."""
    _retains_stale_uses(monkeypatch)
    with pytest.raises(AssertionError):
        await _lives_and_dies()
