"""A tenant learns where its prompt differs from its own earlier ones, and nothing about other tenants."""

import json
import random
import sys
import tracemalloc

import attrs
import pytest

from llmkube.router.config.routing_config import Auth
from llmkube.router.prefix_cache import tenant_prompts
from llmkube.router.prefix_cache.tenant_prompts import MAX_TENANTS_WITH_TEXT, MAX_TEXT_BYTES, Divergence, TenantPrompts
from llmkube.router.prefix_cache.warm_prefixes import WarmPrefixes
from router.proxy.router_lab import ANSWER, answer, config_of, local, open_lab

PATH = "/completions"
START = len('["')  # the serialized prefix of a prompt


class DivergenceProbe:
    """Reports divergences of texts to tenants."""

    def __init__(self):
        self.prefixes, self.own = WarmPrefixes(b"secret"), TenantPrompts()

    def __call__(self, text, tenant="t", *, share=0.0, model="m"):
        prompt = self.prefixes.prompt(tenant, PATH, {"model": model, "prompt": text}, len(text) + 30)
        return self.own.record_answer(tenant, prompt, cached=round(1000 * share), tokens=1000)


ONE, TWO = "a" * 3000, "b" * 3000


def exact(characters):
    """Return the report for ASCII prompts with this many common characters."""
    return Divergence(START + characters, START + characters + 1)


def test_a_prompt_that_diverges_reports_the_position():
    """The position is the first different character; a prompt without a difference has none."""
    divergence = DivergenceProbe()
    assert divergence(ONE) is None  # the first
    assert divergence(ONE + TWO) is None  # continues it
    assert divergence(ONE[:1500]) is None  # its beginning
    assert divergence(ONE + TWO) is None  # the same again
    assert divergence(ONE[:1000] + TWO) == exact(1000)
    assert divergence("c" * 400) == exact(0)
    assert divergence("c" * 390 + TWO[:5]) == exact(390)  # after its last mark
    assert divergence(ONE[:300], model="other") is None  # whose engine had no cached tokens


def test_of_several_the_nearest_is_compared():
    """Later prompts do not matter."""
    divergence = DivergenceProbe()
    divergence(ONE + TWO)
    divergence(ONE + "c" * 3000)
    divergence("d" * 3000)
    assert divergence(ONE + "c" * 1000 + TWO) == exact(4000)


def test_more_cached_tokens_mean_that_another_prompt_is_nearer():
    """The nearest prompt is no longer stored, so none is reported; nor is one without a token count."""
    divergence = DivergenceProbe()
    divergence(ONE)
    assert divergence(ONE[:1000] + TWO, share=0.1) == exact(1000)
    assert divergence(ONE[:1000] + "c" * 3000, share=0.9) is None
    prompt = divergence.prefixes.prompt("t", PATH, {"model": "m", "prompt": "e" * 999}, 1000)
    assert divergence.own.record_answer("t", prompt, cached=0, tokens=0) is None


def test_a_conversation_that_grows_keeps_one_text():
    """All its prompts are exact at the cost of the longest; a prompt that continues an answered one as well."""
    divergence = DivergenceProbe()
    texts = [random.Random(at).randbytes(3500).hex() for at in range(tenant_prompts.MAX_PROMPTS)]
    for count in range(1, tenant_prompts.MAX_PROMPTS + 1):
        assert divergence("".join(texts[:count])) is None
    assert divergence("".join(texts[:7])) is None
    own = divergence.own._tenants["t"]
    assert len({id(each.text) for each in own.prompts.values()}) == 1
    assert own.text_bytes == START + 7000 * tenant_prompts.MAX_PROMPTS
    assert divergence("".join(texts[:7]) + "x") is None
    assert divergence("".join(texts[:7])[:-1] + "x") == exact(6999 + 6 * 7000)


def test_a_dropped_text_is_compared_by_its_marks():
    """The oldest texts are dropped; if several prompts share equally many marks, one stored text is enough."""
    divergence = DivergenceProbe()
    divergence(ONE + "c" * 700)
    for number in range(4):
        divergence(f"{number}" * 90_000)  # two of them fit
    assert divergence(ONE[:1000] + TWO) == Divergence(768, 1024)
    assert divergence(ONE[:1010] + "d" * 99) == exact(1000)  # the nearest one's text is stored
    assert divergence("3" * 80_000 + TWO) == exact(80_000)


def test_what_is_remembered_is_bounded():
    """Limits apply to each tenant and in total; the most recently used prompts are kept."""
    divergence = DivergenceProbe()
    for number in range(tenant_prompts.MAX_PROMPTS + 5):
        divergence(f"{number:04}" * 100)
    assert divergence("0000" * 70 + ONE) == exact(3)  # dropped: it differs from "0005"
    for number in range(tenant_prompts.MAX_TENANTS + 5):
        divergence(ONE, f"t{number}")
    assert len(divergence.own._tenants) == tenant_prompts.MAX_TENANTS
    assert len(divergence.own._with_text) == MAX_TENANTS_WITH_TEXT
    assert divergence(TWO) is None  # the first again


MAX_BYTES_HELD = MAX_TENANTS_WITH_TEXT * MAX_TEXT_BYTES + (1 << 20)


def _held_after(tenants, each):
    """Return the bytes that are held after this many long prompts of this many tenants."""
    rng, divergence = random.Random(1), DivergenceProbe()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for at in range(tenants * each):
            tenant, text = f"t{at // each}", rng.randbytes(50_000).hex()
            prompt = divergence.prefixes.prompt(tenant, PATH, {"model": "m", "prompt": text}, len(text) + 30)
            divergence.own.record_answer(tenant, prompt, cached=0, tokens=1000)
            del text, prompt
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


def test_texts_stay_within_the_memory_bound():
    """The allocator measures it, for one tenant and for more tenants than texts are stored for."""
    assert 200_000 <= _held_after(1, 30) <= MAX_TEXT_BYTES + 50_000
    assert MAX_BYTES_HELD / 2 <= _held_after(2 * MAX_TENANTS_WITH_TEXT, 4) <= MAX_BYTES_HELD


@pytest.mark.soak
@pytest.mark.parametrize("mutant", ["MAX_TEXT_BYTES", "MAX_TENANTS_WITH_TEXT", "_drop_oldest", "drop_texts"])
def test_each_bound_that_is_not_kept_is_seen(mutant, monkeypatch):
    """The memory measurement shows it."""
    if mutant.isupper():
        monkeypatch.setattr(tenant_prompts, mutant, 1 << 30)
    else:
        monkeypatch.setattr(tenant_prompts._Tenant, mutant, lambda _: None)
    with pytest.raises(AssertionError):
        test_texts_stay_within_the_memory_bound()


def test_nothing_prints_a_prompt():
    """Neither stored prompts nor a request's state contain it in their repr."""
    divergence = DivergenceProbe()
    divergence(ONE)
    prompt = divergence.prefixes.prompt("t", PATH, {"model": "m", "prompt": ONE}, 3030)
    for each in (divergence.own, prompt, *divergence.own._tenants["t"].prompts.values()):
        assert "aaa" not in repr(each)


# -- other tenants ----------------------------------------------------------------------------------------------------


def _work(act):
    """Return a function's result, and the number of calls that it took."""
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
    """Return the reports for one tenant's prompts, and the number of calls, while others send prompts as well."""
    rng, crowd, divergence, found, texts = random.Random(seed), random.Random(seed + 1), DivergenceProbe(), [], []
    for _ in range(30):
        before = rng.choice(texts) if texts else ""
        text = before[: rng.randrange(len(before) + 1)] + "".join(rng.choices("ab", k=rng.randrange(300, 3000)))
        texts.append(text)
        for _ in range(others):  # equal prompts, continuations, prompts that differ, and others
            cut = crowd.randrange(len(text))
            for prompt in (text, text + ONE, text[:cut] + TWO, ONE):
                divergence(prompt, f"other{crowd.randrange(9)}", share=crowd.random())
        found.append(_work(lambda prompt=text: divergence(prompt, share=0.1)))
    return found


def test_nothing_depends_on_what_other_tenants_have_asked():
    """Reports and calls are exactly those of a router without other tenants."""
    for seed in range(5):
        alone = _history(seed, 0)
        assert _history(seed, 3) == alone
        assert len({each for each, _ in alone}) > 2


def test_how_much_others_ask_changes_nothing():
    """Their texts have a separate limit: any number of bytes of theirs leaves the reports exact."""
    divergence = DivergenceProbe()
    divergence(ONE)
    for number in range(3 * MAX_TENANTS_WITH_TEXT):
        divergence(f"{number:06}" * 20_000, f"t{number % (MAX_TENANTS_WITH_TEXT - 1)}")
    assert divergence(ONE[:1000] + TWO) == exact(1000)
    for number in range(MAX_TENANTS_WITH_TEXT):  # the number of tenants does
        divergence(ONE, f"t{number}")
    assert divergence(ONE[:500] + TWO) == Divergence(256, 512)


def _one_for_all(patch):
    plain = TenantPrompts.record_answer
    patch.setattr(TenantPrompts, "record_answer", lambda self, tenant, prompt, **kw: plain(self, "all", prompt, **kw))


def _marks_without_a_tenant(patch):
    plain = WarmPrefixes.prompt
    patch.setattr(WarmPrefixes, "prompt", lambda self, tenant, *request: plain(self, "all", *request))
    _one_for_all(patch)


def _others_are_looked_at(patch):
    plain, asked, every = tenant_prompts.nearest, WarmPrefixes.prompt, []

    def nearest(prompt, earlier):
        every.append(prompt)
        own = plain(prompt, earlier)
        return plain(prompt, every[:-1]) if isinstance(own, Divergence) else own

    patch.setattr(WarmPrefixes, "prompt", lambda self, tenant, *request: asked(self, "all", *request))
    patch.setattr(tenant_prompts, "nearest", nearest)


def _a_longer_text_of_another_tenant_is_kept(patch):
    plain, texts = tenant_prompts._Tenant._add_text, []

    def keep(self, new, text, before):
        plain(self, new, text, next((each for each in texts if each.startswith(text)), before))
        texts.append(text)

    patch.setattr(tenant_prompts._Tenant, "_add_text", keep)


LEAKS = [_one_for_all, _marks_without_a_tenant, _others_are_looked_at, _a_longer_text_of_another_tenant_is_kept]


@pytest.mark.soak
@pytest.mark.parametrize("mutant", LEAKS)
def test_each_deliberate_leak_is_seen(mutant, monkeypatch):
    """Reports show it, or the number of calls if a tenant's texts are compared with another's."""
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


async def _divergences(lab, body, key):
    response = await lab.ask(body, headers={"authorization": f"Bearer {key}"})
    assert json.loads(response.body)["choices"]
    return [each for each in response.headers.get("server-timing").split(", ") if each.startswith("diverged")]


async def _divergences_of_text(lab, text, key):
    return await _divergences(lab, {"model": "m", "messages": [{"role": "user", "content": text}]}, key)


@pytest.mark.parametrize("strategy", ["primary-fallback", "least-loaded"])
async def test_a_team_reads_of_its_own_prompts_alone(strategy, tmp_path):
    """The head of the answer has it; another team with the same prompt gets no report and has no effect."""
    for team, key in (("red", "k1"), ("blue", "k2")):
        (tmp_path / team).write_text(f"{key}\n")
    config = config_of(local("a"), local("b"), auth=Auth(keys_folder=str(tmp_path)))
    config = attrs.evolve(config, rules=(attrs.evolve(config.rules[0], strategy=strategy),))
    script = answer(body=ANSWER | TIMED)
    async with open_lab(config, a=script, b=script) as lab:
        assert await _divergences_of_text(lab, ONE, "k1") == []
        assert await _divergences_of_text(lab, ONE[:1000] + TWO, "k2") == []
        assert await _divergences_of_text(lab, ONE + TWO, "k1") == []
        assert await _divergences_of_text(lab, "c" * 500, "k2") == [f'diverged;desc="{BEFORE}"']
        assert await _divergences_of_text(lab, ONE[:1000] + TWO, "k1") == [f'diverged;desc="{BEFORE + 1000}"']


async def test_the_character_is_that_of_the_text_in_the_docs(tmp_path):
    """The text is that of `json.dumps`, with escapes, non-ASCII characters, and tools before messages."""
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    texts = [f'"{"ö" * 150}\n\u0001€ {word} and {"more" * 50}' for word in ("noon", "night")]
    bodies = [{"model": "m", "messages": [{"role": "user", "content": each}], "tools": tools} for each in texts]
    (tmp_path / "team").write_text("k\n")
    config = config_of(local("a"), auth=Auth(keys_folder=str(tmp_path)))
    async with open_lab(config, a=answer(body=ANSWER | TIMED)) as lab:
        assert await _divergences(lab, bodies[0], "k") == []
        (position,) = await _divergences(lab, bodies[1], "k")
    one, two = (
        json.dumps([each["tools"], each["messages"]], ensure_ascii=False, separators=(",", ":")) for each in bodies
    )
    at = int(position.partition('"')[2][:-1])
    assert (one[:at], one[at], two[at]) == (two[:at], "o", "i")


async def test_an_engine_that_reports_no_times_makes_no_miss():
    """Its cache is unknown."""
    async with open_lab(config_of(local("a")), a=answer()) as lab:
        assert await _divergences_of_text(lab, ONE, "x") == []
        assert await _divergences_of_text(lab, TWO, "x") == []
