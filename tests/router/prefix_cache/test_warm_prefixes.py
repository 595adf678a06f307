"""Reported cache use teaches where prompts are warm, and reaches 95 % of an oracle's hits."""

import pytest

from llmkube.router.config.routing_config import Backend
from llmkube.router.prefix_cache import warm_prefixes
from llmkube.router.prefix_cache.warm_prefixes import INITIAL_CAPACITY, MAX_PROMPTS, WarmPrefixes
from router.prefix_cache.scripted_engines import Oracle, Router, play

PATH = "/chat/completions"


def backend(name, slots=2):
    return Backend(name=name, model_id=name, base_url=f"http://{name}/v1", local=True, slots=slots)


A, B = backend("a"), backend("b")


class Known:
    """Known warm prompts, by text."""

    def __init__(self):
        self.prefixes = WarmPrefixes(b"secret")

    def prompt(self, text, tenant="t", model="m"):
        body = {"model": model, "messages": [{"role": "user", "content": text}]}
        return self.prefixes.prompt(tenant, PATH, body, len(text) + 60)

    def warm(self, text, where=A, **whose):
        return self.prefixes.warmth(self.prompt(text, **whose), [where])[where.name].size

    def record_answer(self, text, share=0.0, where=A, **whose):
        return self.prefixes.record_answer(self.prompt(text, **whose), where, cached=round(1000 * share), tokens=1000)


ONE, TWO = "a" * 3000, "b" * 3000


def test_what_was_answered_is_warm_there_and_nowhere_else():
    """The beginning of its continuations is warm; a prompt with another beginning is not."""
    known = Known()
    assert known.record_answer(ONE) == "cold"
    assert known.warm(ONE) > 2700
    assert known.warm(ONE + TWO) > 2700
    assert known.warm(ONE[:1500]) > 1200
    assert (known.warm(ONE, B), known.warm(TWO), known.warm("b" + ONE)) == (0, 0, 0)


def test_a_hit_or_a_miss_is_reported():
    """Half of the expected tokens is a hit: bytes and tokens differ by template and tokenizer."""
    known = Known()
    known.record_answer(ONE)
    assert known.record_answer(ONE + TWO, 0.5) == "hit"
    assert known.record_answer(ONE + TWO, 0.2) == "miss"


def test_a_miss_unlearns_all_continuations():
    """Then only the latest prompt is warm, up to the reported tokens."""
    known = Known()
    start = "s" * 1000
    known.record_answer(start + ONE + TWO)
    assert known.record_answer(start + ONE + "c" * 2000, 1000 / 6000) == "miss"
    assert 700 < known.warm(start + "d" * 3000) < 1300
    assert known.warm(start + ONE + TWO) < 4300
    assert known.warm(start + ONE + "c" * 2000) > 5000


def test_a_prompt_is_given_up_after_as_many_others_as_the_engine_keeps():
    """The initial capacity is its number of slots; reports of more cached tokens raise it."""
    known = Known()
    for letter in "abc":
        known.record_answer(letter * 3000)
    assert [bool(known.warm(letter * 3000)) for letter in "abc"] == [False, True, True]
    assert known.record_answer("a" * 3000, 0.99) == "cold"
    assert [bool(known.warm(letter * 3000)) for letter in "abc"] == [True, True, True]
    known.record_answer("d" * 3000)
    assert known.record_answer("c" * 3000, 0.0) == "miss"
    assert [bool(known.warm(letter * 3000)) for letter in "abcd"] == [False, False, True, True]


def test_an_engine_that_finds_evicted_prompts_is_expected_to_have_all_of_them():
    """llama.cpp keeps prompts of taken slots in memory: after three finds in a row, until the next one fails."""
    known = Known()

    def doubtful(letter):
        return known.prefixes.warmth(known.prompt(letter * 3000), [A])["a"].doubtful

    for letter in "abcdefgh":
        known.record_answer(letter * 3000)
    for letter in "abc":
        assert doubtful("d") == 0
        known.record_answer(letter * 3000, 0.99)
    assert (doubtful("d") > 2700, known.warm("d" * 3000)) == (True, 0)
    known.record_answer("d" * 3000)
    assert doubtful("e") == 0


def test_room_is_what_the_slots_leave():
    """A prompt that is cold everywhere goes to a backend with room, then to the one with the oldest prompt."""
    known = Known()
    cold = known.prompt("z" * 3000)
    assert known.prefixes.warmth(cold, [A])["a"].oldest == 0
    known.record_answer(ONE)
    assert known.prefixes.warmth(cold, [A])["a"].oldest == 0
    known.record_answer(TWO)
    known.record_answer("c" * 3000, where=B)
    known.record_answer("d" * 3000, where=B)
    found = known.prefixes.warmth(cold, [A, B])
    assert (found["a"].oldest, found["b"].oldest) == (1, 3)


def test_an_engine_that_never_has_anything_is_expected_to_have_nothing():
    """An engine without reports expects none, either; one report of cached tokens restores the expectation."""
    known = Known()
    for _ in range(4):
        known.record_answer(ONE, 0.0)
    assert known.warm(ONE) == 0
    assert known.record_answer(ONE, 0.0) == "cold"
    known.record_answer(ONE, 0.9)
    assert known.warm(ONE) > 2700


def test_an_answer_without_a_count_teaches_nothing():
    """A provider without token counts changes nothing."""
    known = Known()
    assert known.prefixes.record_answer(known.prompt(ONE), A, cached=0, tokens=0) == ""
    assert known.warm(ONE) == 0


def test_backends_are_forgotten():
    """A backend that cannot be reached has lost its cache; a removed backend is removed."""
    known = Known()
    for where in (A, B):
        known.record_answer(ONE, where=where)
    known.prefixes.forget("a")
    assert (known.warm(ONE, A), known.warm(ONE, B) > 0) == (0, True)
    known.prefixes.keep_only(frozenset({"a"}))
    assert known.warm(ONE, B) == 0


def test_memory_is_bounded():
    """There are ten thousand prompts of a thousand tenants, at an engine that keeps every one."""
    known = Known()
    for at in range(10_000):
        known.record_answer(f"{at:05}" * 120, tenant=f"t{at % 1000}")
    (cache,) = known.prefixes._caches.values()
    assert len(cache.prompts) + len(cache.evicted) <= MAX_PROMPTS


def test_short_prompts_and_other_requests_are_ignored():
    """Their prefill is cheap, or no engine caches them."""
    known = Known()
    assert known.prompt("short") is None
    assert known.prefixes.prompt("t", "/embeddings", {"input": ONE}, 3000) is None


def test_slots_that_are_not_known_are_taken_to_be_a_few():
    """Reports correct the number."""
    known, unknown = Known(), backend("u", slots=0)
    for at in range(INITIAL_CAPACITY + 1):
        known.record_answer(f"{at:05}" * 600, where=unknown)
    assert [bool(known.warm(f"{at:05}" * 600, unknown)) for at in (0, 1)] == [False, True]


# -- tenants ----------------------------------------------------------------------------------------------------------


def test_a_prompt_of_another_tenant_is_not_known_to_be_warm():
    """Nor is one of another model: the choice of backend does not reveal other tenants' prompts."""
    known = Known()
    known.record_answer(ONE)
    assert (known.warm(ONE, tenant="other"), known.warm(ONE, model="other")) == (0, 0)


@pytest.mark.parametrize("reported", [0.0, 0.5, 1.0])
def test_what_others_ask_makes_no_difference_whether_it_is_the_same_or_not(reported):
    """In one case a tenant sends exactly another's prompt, in the other a different one."""
    seen = []
    for texts in ([ONE, TWO, ONE + TWO], ["x" * 3000, "y" * 3000, "x" * 3000 + "y" * 3000]):
        known, world = Known(), []
        for mine, theirs in zip([ONE, TWO, ONE + TWO], texts, strict=True):
            known.record_answer(theirs, reported, B, tenant="other")
            world.append(known.prefixes.warmth(known.prompt(mine), [A, B]))
            world.append(known.record_answer(mine, reported))
        seen.append(world)
    assert seen[0] == seen[1]


# -- compared with an oracle -------------------------------------------------------------------------------------------

CALM = {"slots": 4, "active": 4, "conversations": 50}
FULL = {"slots": 4, "active": 8, "conversations": 50}
MANY = {"slots": 4, "active": 8, "conversations": 50, "tenants": 40}
FEW = {"slots": 2, "active": 4, "conversations": 50}
LRU = {"overwrites": False}
SEEDS = range(3)


def rates(chooser_of, load, **more):
    """Return the share of prompt tokens that came from a cache, over several seeds."""
    tallies = [play(chooser_of(load["slots"]), seed, **load, **more) for seed in SEEDS]
    return sum(each.rate for each in tallies) / len(tallies)


def oracle(slots):
    return Oracle()


def blind(slots):
    return Router(slots, learns=False)


@pytest.mark.ci
@pytest.mark.parametrize("load", [CALM, FULL, MANY, FEW], ids=["calm", "full", "many", "few"])
def test_at_least_95_percent_of_an_oracles_hits(load):
    """Two engines have slots with their latest prompts; without learning the share is below 75 %."""
    best = rates(oracle, load, **LRU)
    assert rates(Router, load, **LRU) >= 0.95 * best
    assert rates(blind, load, **LRU) < 0.75 * best


@pytest.mark.ci
@pytest.mark.parametrize("load", [CALM, FULL, MANY, FEW], ids=["calm", "full", "many", "few"])
def test_slots_that_are_written_over_by_a_branch_cost_little_more(load):
    """An engine without a cache in memory overwrites the slot that has a tenth of a prompt: 90 %."""
    assert rates(Router, load) >= 0.90 * rates(oracle, load)


@pytest.mark.ci
def test_a_restarted_engine_is_learned_again():
    """It loses its cache three times: later reports correct the expectation."""
    again = {"restarts": (60, 140, 220)}
    assert rates(Router, CALM, **LRU, **again) >= 0.93 * rates(oracle, CALM, **LRU, **again)


# -- mutants ----------------------------------------------------------------------------------------------------------


def learns_nothing(patch):
    patch.setattr(WarmPrefixes, "record_answer", lambda self, prompt, backend, **outcome: "")


def believes_every_backend(patch):
    patch.setattr(
        WarmPrefixes, "_cache_of", lambda self, backend: self._caches.setdefault("a", warm_prefixes._BackendCache(4))
    )


def forgets_the_turn_before(patch):
    plain = WarmPrefixes.record_answer

    def record_answer(self, prompt, backend, **outcome):
        found = plain(self, prompt, backend, **outcome)
        self._cache_of(backend).drop_from(prompt.marks[0])
        return found

    patch.setattr(WarmPrefixes, "record_answer", record_answer)


@pytest.mark.soak
@pytest.mark.parametrize(
    "mutant", [learns_nothing, believes_every_backend, forgets_the_turn_before], ids=lambda each: each.__name__
)
def test_without_what_is_learned_the_oracle_is_missed(mutant, monkeypatch):
    """Each deliberate bug of learning falls below 95 %."""
    best = rates(oracle, FULL, **LRU)
    mutant(monkeypatch)
    assert rates(Router, FULL, **LRU) < 0.95 * best
