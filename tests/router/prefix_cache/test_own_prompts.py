"""A tenant is told where its prompt leaves its own earlier ones, and nothing that depends on anybody else's."""

import json
import random
import sys
import tracemalloc

import attrs
import pytest

from llmkube.router.config.routing_config import Auth
from llmkube.router.prefix_cache import own_prompts
from llmkube.router.prefix_cache.own_prompts import (
    MOST_PROMPTS,
    MOST_TENANTS,
    MOST_TENANTS_WITH_TEXT,
    MOST_TEXT_BYTES,
    Divergence,
    OwnPrompts,
)
from llmkube.router.prefix_cache.warm_prefixes import WarmPrefixes
from router.proxy.router_lab import ANSWER, answer, config_of, local, open_lab

PATH = "/completions"
START = len('["')  # what stands before a prompt in its text


class Told:
    """What tenants are told of texts."""

    def __init__(self):
        self.prefixes, self.own = WarmPrefixes(b"secret"), OwnPrompts()

    def __call__(self, text, tenant="t", *, share=0.0, model="m"):
        prompt = self.prefixes.prompt(tenant, PATH, {"model": model, "prompt": text}, len(text) + 30)
        return self.own.answered(tenant, prompt, cached=round(1000 * share), tokens=1000)


ONE, TWO = "a" * 3000, "b" * 3000


def exact(characters):
    """What is told of ASCII where as many characters of a prompt are alike."""
    return Divergence(START + characters, START + characters + 1)


def test_a_prompt_that_leaves_an_earlier_one_is_told_where():
    """The first character that differs; nothing where it leaves none."""
    told = Told()
    assert told(ONE) is None  # the first
    assert told(ONE + TWO) is None  # it goes on
    assert told(ONE[:1500]) is None  # its beginning
    assert told(ONE + TWO) is None  # the same again
    assert told(ONE[:1000] + TWO) == exact(1000)
    assert told("c" * 400) == exact(0)
    assert told("c" * 390 + TWO[:5]) == exact(390)  # after its last mark
    assert told(ONE[:300], model="other") is None  # whose engine had none of it


def test_of_several_the_nearest_counts():
    """Whatever came after it."""
    told = Told()
    told(ONE + TWO)
    told(ONE + "c" * 3000)
    told("d" * 3000)
    assert told(ONE + "c" * 1000 + TWO) == exact(4000)


def test_more_in_the_cache_than_that_says_that_another_one_is_nearer():
    """One that is not remembered any more; then nothing is said, nor where no tokens are reported."""
    told = Told()
    told(ONE)
    assert told(ONE[:1000] + TWO, share=0.1) == exact(1000)
    assert told(ONE[:1000] + "c" * 3000, share=0.9) is None
    prompt = told.prefixes.prompt("t", PATH, {"model": "m", "prompt": "e" * 999}, 1000)
    assert told.own.answered("t", prompt, cached=0, tokens=0) is None


def test_a_conversation_that_grows_keeps_one_text():
    """All of its prompts are exact in the room of the longest; one that was answered before goes on as well."""
    told, said = Told(), [random.Random(at).randbytes(3500).hex() for at in range(MOST_PROMPTS)]
    for count in range(1, MOST_PROMPTS + 1):
        assert told("".join(said[:count])) is None
    assert told("".join(said[:7])) is None
    own = told.own._of["t"]
    assert len({id(each.text) for each in own.prompts.values()}) == 1
    assert own.text_bytes == START + 7000 * MOST_PROMPTS
    assert told("".join(said[:7]) + "x") is None
    assert told("".join(said[:7])[:-1] + "x") == exact(6999 + 6 * 7000)


def test_where_a_text_was_dropped_its_marks_tell():
    """The oldest texts are dropped; of those that share as many marks, one whose text is kept is enough."""
    told = Told()
    told(ONE + "c" * 700)
    for number in range(4):
        told(f"{number}" * 90_000)  # two of them fit
    assert told(ONE[:1000] + TWO) == Divergence(768, 1024)
    assert told(ONE[:1010] + "d" * 99) == exact(1000)  # the one that leaves it has its text
    assert told("3" * 80_000 + TWO) == exact(80_000)


def test_what_is_remembered_is_bounded():
    """Of each tenant, and of all; what a tenant used last stays."""
    told = Told()
    for number in range(MOST_PROMPTS + 5):
        told(f"{number:04}" * 100)
    assert told("0000" * 70 + ONE) == exact(3)  # forgotten: it leaves "0005"
    for number in range(MOST_TENANTS + 5):
        told(ONE, f"t{number}")
    assert len(told.own._of) == MOST_TENANTS
    assert len(told.own._with_text) == MOST_TENANTS_WITH_TEXT
    assert told(TWO) is None  # the first again


MOST_BYTES_HELD = MOST_TENANTS_WITH_TEXT * MOST_TEXT_BYTES + (1 << 20)


def _held_after(tenants, each):
    """How many bytes stay after so many tenants have asked so many long prompts."""
    rng, told = random.Random(1), Told()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for at in range(tenants * each):
            tenant, text = f"t{at // each}", rng.randbytes(50_000).hex()
            prompt = told.prefixes.prompt(tenant, PATH, {"model": "m", "prompt": text}, len(text) + 30)
            told.own.answered(tenant, prompt, cached=0, tokens=1000)
            del text, prompt
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


def test_texts_take_no_more_memory_than_is_said():
    """As the allocator counts it: of one tenant, and of more tenants than keep texts."""
    assert 200_000 <= _held_after(1, 30) <= MOST_TEXT_BYTES + 50_000
    assert MOST_BYTES_HELD / 2 <= _held_after(2 * MOST_TENANTS_WITH_TEXT, 4) <= MOST_BYTES_HELD


@pytest.mark.soak
@pytest.mark.parametrize("mutant", ["MOST_TEXT_BYTES", "MOST_TENANTS_WITH_TEXT", "_drop_oldest", "drop_texts"])
def test_each_bound_that_is_not_kept_is_seen(mutant, monkeypatch):
    """By that measure."""
    if mutant.isupper():
        monkeypatch.setattr(own_prompts, mutant, 1 << 30)
    else:
        monkeypatch.setattr(own_prompts._Tenant, mutant, lambda _: None)
    with pytest.raises(AssertionError):
        test_texts_take_no_more_memory_than_is_said()


def test_nothing_prints_a_prompt():
    """Not what is remembered, nor what a request carries."""
    told = Told()
    told(ONE)
    prompt = told.prefixes.prompt("t", PATH, {"model": "m", "prompt": ONE}, 3030)
    for each in (told.own, prompt, *told.own._of["t"].prompts.values()):
        assert "aaa" not in repr(each)


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


def test_how_much_others_ask_changes_nothing():
    """Their texts have room of their own: after any number of bytes of theirs it is told as exactly."""
    told = Told()
    told(ONE)
    for number in range(3 * MOST_TENANTS_WITH_TEXT):
        told(f"{number:06}" * 20_000, f"t{number % (MOST_TENANTS_WITH_TEXT - 1)}")
    assert told(ONE[:1000] + TWO) == exact(1000)
    for number in range(MOST_TENANTS_WITH_TEXT):  # how many they are does
        told(ONE, f"t{number}")
    assert told(ONE[:500] + TWO) == Divergence(256, 512)


def _one_for_all(patch):
    plain = OwnPrompts.answered
    patch.setattr(OwnPrompts, "answered", lambda self, tenant, prompt, **said: plain(self, "all", prompt, **said))


def _marks_without_a_tenant(patch):
    plain = WarmPrefixes.prompt
    patch.setattr(WarmPrefixes, "prompt", lambda self, tenant, *request: plain(self, "all", *request))
    _one_for_all(patch)


def _others_are_looked_at(patch):
    plain, asked, every = own_prompts.nearest, WarmPrefixes.prompt, []

    def nearest(prompt, earlier):
        every.append(prompt)
        own = plain(prompt, earlier)
        return plain(prompt, every[:-1]) if isinstance(own, Divergence) else own

    patch.setattr(WarmPrefixes, "prompt", lambda self, tenant, *request: asked(self, "all", *request))
    patch.setattr(own_prompts, "nearest", nearest)


def _a_longer_text_of_another_tenant_is_kept(patch):
    plain, texts = own_prompts._Tenant._keep, []

    def keep(self, new, text, before):
        plain(self, new, text, next((each for each in texts if each.startswith(text)), before))
        texts.append(text)

    patch.setattr(own_prompts._Tenant, "_keep", keep)


LEAKS = [_one_for_all, _marks_without_a_tenant, _others_are_looked_at, _a_longer_text_of_another_tenant_is_kept]


@pytest.mark.soak
@pytest.mark.parametrize("mutant", LEAKS)
def test_each_deliberate_leak_is_seen(mutant, monkeypatch):
    """By what is told, or, where a tenant's texts alone are kept with another's, by the work."""
    alone = _history(0, 0)
    mutant(monkeypatch)
    leaky = _history(0, 3)
    assert leaky != alone
    assert mutant is LEAKS[-1] or [each for each, _ in leaky] != [each for each, _ in alone]


# -- what a client reads ----------------------------------------------------------------------------------------------

TIMED = {
    "timings": {"cache_n": 9, "prompt_n": 900, "prompt_ms": 12.5, "predicted_n": 2, "predicted_ms": 70.25},
    "usage": {"prompt_tokens": 909, "completion_tokens": 2, "total_tokens": 911},
}


BEFORE = len('[[{"role":"user","content":"')


async def _told(lab, body, key):
    said = await lab.ask(body, headers={"authorization": f"Bearer {key}"})
    assert json.loads(said.body)["choices"]
    return [each for each in said.headers.get("server-timing").split(", ") if each.startswith("diverged")]


async def _told_of(lab, text, key):
    return await _told(lab, {"model": "m", "messages": [{"role": "user", "content": text}]}, key)


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
        assert await _told_of(lab, "c" * 500, "k2") == [f'diverged;desc="{BEFORE}"']
        assert await _told_of(lab, ONE[:1000] + TWO, "k1") == [f'diverged;desc="{BEFORE + 1000}"']


async def test_the_character_is_that_of_the_text_in_the_docs():
    """Of `json.dumps`, with what is escaped, characters beyond ASCII, and tools before messages."""
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    texts = [f'"{"ö" * 150}\n\u0001€ {word} and {"more" * 50}' for word in ("noon", "night")]
    bodies = [{"model": "m", "messages": [{"role": "user", "content": each}], "tools": tools} for each in texts]
    async with open_lab(config_of(local("a")), a=answer(said=ANSWER | TIMED)) as lab:
        assert await _told(lab, bodies[0], "k") == []
        (said,) = await _told(lab, bodies[1], "k")
    one, two = (
        json.dumps([each["tools"], each["messages"]], ensure_ascii=False, separators=(",", ":")) for each in bodies
    )
    at = int(said.partition('"')[2][:-1])
    assert (one[:at], one[at], two[at]) == (two[:at], "o", "i")


async def test_an_engine_that_reports_no_times_makes_no_miss():
    """Nothing is known of its cache."""
    async with open_lab(config_of(local("a")), a=answer()) as lab:
        assert await _told_of(lab, ONE, "x") == []
        assert await _told_of(lab, TWO, "x") == []
