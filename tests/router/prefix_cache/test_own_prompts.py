"""A tenant is told where its prompt leaves its own earlier ones, and nothing that depends on anybody else's."""

import json
import random
import sys

import attrs
import pytest

from llmkube.router.config.routing_config import Auth
from llmkube.router.prefix_cache import own_prompts
from llmkube.router.prefix_cache.own_prompts import MOST_PROMPTS, MOST_TENANTS, Divergence, OwnPrompts
from llmkube.router.prefix_cache.prompt_marks import PLACES, prompt_text
from llmkube.router.prefix_cache.warm_prefixes import WarmPrefixes
from router.proxy.router_lab import ANSWER, answer, config_of, local, open_lab

PATH = "/completions"
START = len(b'["')  # what stands before a prompt in its text


class Told:
    """What tenants are told of texts."""

    def __init__(self):
        self.prefixes, self.own = WarmPrefixes(b"secret"), OwnPrompts()

    def __call__(self, text, tenant="t", *, share=0.0, model="m"):
        prompt = self.prefixes.prompt(tenant, PATH, {"model": model, "prompt": text}, len(text) + 30)
        return self.own.answered(tenant, prompt, cached=round(1000 * share), tokens=1000)


ONE, TWO = "a" * 3000, "b" * 3000


def test_a_prompt_that_leaves_an_earlier_one_is_told_where():
    """Between two places of which the text is known by its hashes."""
    told = Told()
    assert told(ONE) is None  # the first
    assert told(ONE + TWO) is None  # it goes on
    assert told(ONE[:1500]) is None  # its beginning
    assert told(ONE + TWO) is None  # the same again
    assert told(ONE[:1000] + TWO) == Divergence(768, 1024)
    assert told("c" * 400) == Divergence(0, 256)


def test_of_several_the_nearest_counts():
    """Whatever came after it."""
    told = Told()
    told(ONE + TWO)
    told(ONE + "c" * 3000)
    told("d" * 3000)
    assert told(ONE + "c" * 1000 + TWO) == Divergence(3840, 4096)


def test_more_in_the_cache_than_that_says_that_another_one_is_nearer():
    """One that is not remembered any more; then nothing is said, nor where no tokens are reported."""
    told = Told()
    told(ONE)
    assert told(ONE[:1000] + TWO, share=0.1) == Divergence(768, 1024)
    assert told(ONE[:1000] + "c" * 3000, share=0.9) is None
    prompt = told.prefixes.prompt("t", PATH, {"model": "m", "prompt": "e" * 999}, 1000)
    assert told.own.answered("t", prompt, cached=0, tokens=0) is None


def test_it_is_told_in_characters():
    """A text of others than ASCII has more bytes."""
    text = prompt_text(PATH, {"prompt": "ö" * 600}, 1300)
    assert Divergence(256, 512).said(text) == "129-257"
    assert Divergence(256, 512).said(b"a" * 600) == "256-512"


@pytest.mark.parametrize("seed", range(20))
def test_the_first_character_that_differs_is_in_between(seed):
    """Of drawn prompts, against their texts."""
    rng, told, texts = random.Random(seed), Told(), []
    for _ in range(MOST_PROMPTS):
        before = rng.choice(texts) if texts else ""
        text = before[: rng.randrange(len(before) + 1)] + "".join(rng.choices("ab", k=rng.randrange(300, 9000)))
        found, alike = told(text), [_alike(text, each) for each in texts]
        texts.append(text)
        if found is not None:
            assert found.same <= START + max(alike) < found.differs
        else:  # it goes on from an earlier one, or is one's beginning, as far as places tell
            short = [min(len(text), len(each)) for each in texts[:-1]]
            assert not texts[:-1] or any(START + length - max(alike) < PLACES[-1] - PLACES[-2] for length in short)


def _alike(one, other):
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def test_what_is_remembered_is_bounded():
    """Of each tenant, and of all; what a tenant used last stays."""
    told = Told()
    for number in range(MOST_PROMPTS + 5):
        told(f"{number:04}" * 100)
    assert told("0000" * 70 + ONE) == Divergence(0, 256)  # forgotten
    for number in range(MOST_TENANTS + 5):
        told(ONE, f"t{number}")
    assert (len(told.own._of), max(map(len, told.own._of.values()))) == (MOST_TENANTS, 1)
    assert told(TWO) is None  # the first again


# -- other tenants ----------------------------------------------------------------------------------------------------


def _work(act):
    """What something returns, and how many calls that took."""
    calls = 0

    def count(_frame, event, _argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        found = act()
    finally:
        sys.setprofile(None)
    return found, calls


def _history(seed, others):
    """What one tenant is told of its prompts, and how much is done for that, while others ask as well."""
    rng, crowd, told, found, texts = random.Random(seed), random.Random(seed + 1), Told(), [], []
    for _ in range(30):
        before = rng.choice(texts) if texts else ""
        text = before[: rng.randrange(len(before) + 1)] + "".join(rng.choices("ab", k=rng.randrange(300, 3000)))
        texts.append(text)
        for _ in range(others):  # the very same prompts, what goes on from them, what leaves them, and others
            cut = crowd.randrange(len(text))
            for said in (text, text + ONE, text[:cut] + TWO, ONE):
                told(said, f"other{crowd.randrange(9)}", share=crowd.random())
        found.append(_work(lambda said=text: told(said, share=0.1)))
    return found


def test_nothing_depends_on_what_other_tenants_have_asked():
    """Neither what is told, nor whether, nor the work for it: call by call the same as if nobody else were there."""
    for seed in range(5):
        alone = _history(seed, 0)
        assert _history(seed, 3) == alone
        assert len({each for each, _ in alone}) > 2


def _one_for_all(patch):
    plain = OwnPrompts.answered
    patch.setattr(OwnPrompts, "answered", lambda self, tenant, prompt, **said: plain(self, "all", prompt, **said))


def _marks_without_a_tenant(patch):
    plain = WarmPrefixes.prompt
    patch.setattr(WarmPrefixes, "prompt", lambda self, tenant, *request: plain(self, "all", *request))
    _one_for_all(patch)


def _others_are_looked_at(patch):
    plain, every = own_prompts._nearest, []

    def nearest(marks, earlier):
        every.append(marks)
        return plain(marks, earlier) if not any(each[:8] == marks[:8] for each in every[:-1]) else plain(marks, every)

    patch.setattr(own_prompts, "_nearest", nearest)


@pytest.mark.parametrize("mutant", [_one_for_all, _marks_without_a_tenant, _others_are_looked_at])
def test_each_deliberate_leak_is_seen(mutant, monkeypatch):
    """By what is told, or by the work."""
    alone = _history(0, 0)
    mutant(monkeypatch)
    assert _history(0, 3) != alone


# -- what a client reads ----------------------------------------------------------------------------------------------

TIMED = {
    "timings": {"cache_n": 9, "prompt_n": 900, "prompt_ms": 12.5, "predicted_n": 2, "predicted_ms": 70.25},
    "usage": {"prompt_tokens": 909, "completion_tokens": 2, "total_tokens": 911},
}


async def _told_of(lab, text, key):
    said = await lab.ask(
        {"model": "m", "messages": [{"role": "user", "content": text}]}, headers={"authorization": f"Bearer {key}"}
    )
    assert json.loads(said.body)["choices"]
    return [each for each in said.headers.get("server-timing").split(", ") if each.startswith("diverged")]


@pytest.mark.parametrize("strategy", ["primary-fallback", "least-loaded"])
async def test_a_team_reads_of_its_own_prompts_alone(strategy, tmp_path):
    """In the head of the answer; another team that asks the same in between is told nothing, and changes nothing."""
    for team, key in (("red", "k1"), ("blue", "k2")):
        (tmp_path / team).write_text(f"{key}\n")
    config = config_of(local("a"), local("b"), auth=Auth(keys_folder=str(tmp_path)))
    config = attrs.evolve(config, rules=(attrs.evolve(config.rules[0], strategy=strategy),))
    said = answer(said=ANSWER | TIMED)
    async with open_lab(config, a=said, b=said) as lab:
        assert await _told_of(lab, ONE, "k1") == []
        assert await _told_of(lab, ONE[:1000] + TWO, "k2") == []
        assert await _told_of(lab, ONE + TWO, "k1") == []
        assert await _told_of(lab, "c" * 500, "k2") == ['diverged;desc="0-256"']
        assert await _told_of(lab, ONE[:1000] + TWO, "k1") == ['diverged;desc="1024-1280"']


async def test_an_engine_that_reports_no_times_makes_no_miss():
    """Nothing is known of its cache."""
    async with open_lab(config_of(local("a")), a=answer()) as lab:
        assert await _told_of(lab, ONE, "x") == []
        assert await _told_of(lab, TWO, "x") == []
