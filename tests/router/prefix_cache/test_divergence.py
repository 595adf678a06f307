"""The character at which a prompt differs from the nearest earlier one, or a range if that text is not stored."""

import itertools
import random

import pytest

from lengths import sample_rows
from llmkube.router.prefix_cache import tenant_prompts
from llmkube.router.prefix_cache.tenant_prompts import Divergence, EarlierPrompt, nearest
from llmkube.router.prefix_cache.warm_prefixes import MARK_OFFSETS, MAX_PROMPT_BYTES, marks_of, prompt_text


def test_the_position_is_in_characters():
    """Non-ASCII text has more bytes; a byte that differs within a character is that character."""
    text = prompt_text("/completions", {"prompt": "ö" * 600}, 1300)
    assert Divergence(256, 512).position(text) == "129-257"
    assert Divergence(256, 512).position(b"a" * 600) == "256-512"
    assert Divergence(300, 301).position(b"a" * 600) == "300"
    for at, position in ((300, "151"), (301, "151"), (302, "152")):
        assert Divergence(at, at + 1).position(text) == position


def test_a_character_that_is_cut_by_a_place_may_differ():
    """`ö` and `ā` differ in their first bytes: if the text ends within them, one more character is reported."""
    text = ("a" + "ö" * 300).encode()
    assert Divergence(0, 256).position(text) == "0-129"
    assert not ("a" + "ö" * 127 + "ā").encode()[:256].startswith(text[:256])


SCOPE = b"a model."


def earlier(text, *, kept=True, scope=SCOPE):
    data = text if isinstance(text, bytes) else text.encode()
    marks = b"".join(each.to_bytes(8) for each in marks_of(scope, data))
    return EarlierPrompt(marks=scope + marks, size=len(data), text=data if kept else None)


def alike(one, other):
    """Return the number of common characters, compared one by one."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def places(count):
    """Return the number of marks in this many bytes."""
    return sum(each <= count for each in MARK_OFFSETS)


def drawn(rng):
    """Draw prompts with common beginnings, of one to four bytes a character, up to the compared length."""
    alphabet, texts = rng.choice(["ab", "öā", "aö€😀"]), []
    for _ in range(16):
        before = rng.choice(texts) if texts else ""
        text = before[: rng.choice([len(before), rng.randrange(len(before) + 1)])]
        text += "".join(rng.choices(alphabet, k=rng.randrange(1 if before else 256, rng.choice([300, 2000, 60_000]))))
        texts.append(text.encode()[:MAX_PROMPT_BYTES].decode("utf-8", "ignore"))
    return texts


def check(seed, dropped):
    """Compare drawn prompts, some without a text, with a count of characters; return how many were exact."""
    rng, exact = random.Random(seed), 0
    texts = drawn(rng)
    for at in range(1, len(texts)):
        text, before = texts[at], texts[:at]
        held = [earlier(each, kept=rng.random() >= dropped) for each in before]
        reach = [places(len(text[: alike(text, each)].encode())) for each in before]
        near = [at for at, each in enumerate(reach) if each == max(reach)]
        found = nearest(earlier(text), held)
        goes_on = [at for at in near if alike(text, before[at]) in (len(text), len(before[at]))]
        if isinstance(found, EarlierPrompt):
            which = next(place for place, each in enumerate(held) if each is found)
            assert which in goes_on or (found.text is None and which in near)
            continue
        assert not goes_on
        position, counts = (
            found.position(text.encode()),
            [alike(text, before[at]) for at in near if held[at].text is not None],
        )
        if counts:
            exact += 1
            assert position == str(max(counts))
        else:
            first, last = map(int, position.split("-"))
            assert all(first <= alike(text, before[at]) < last for at in near)
    return exact


@pytest.mark.parametrize("seed", sample_rows(range(12)))
@pytest.mark.parametrize("dropped", [0.0, 0.6, 1.0])
def test_it_is_the_character_that_a_count_of_characters_finds(seed, dropped):
    """Prompts are random; if no nearest text is stored, the character is within the reported range."""
    assert check(seed, dropped) > 0 or dropped == 1.0


def test_prompts_of_another_model_are_no_earlier_ones():
    """An engine that serves it had none of their tokens in its cache."""
    assert nearest(earlier("a" * 999), [earlier("a" * 600, scope=b"another.")]) is None
    assert nearest(earlier("a" * 999), []) is None


def _changed_found(change):
    def mutant(patch):
        plain = globals()["nearest"]

        def nearest(*compared):
            found = plain(*compared)
            return change(found) if isinstance(found, Divergence) else found

        patch.setitem(globals(), "nearest", nearest)

    return mutant


_a_byte_early = _changed_found(lambda found: Divergence(found.common_bytes - 1, found.differs_before - 1))
_the_offsets_are_reported = _changed_found(
    lambda found: Divergence(
        *max((one, two) for one, two in itertools.pairwise((0, *MARK_OFFSETS)) if one <= found.common_bytes)
    )
)


def _the_first_is_taken(patch):
    plain = tenant_prompts._most_similar

    def first(*compared):
        found, alike = plain(*compared)
        return found[:1], alike

    patch.setattr(tenant_prompts, "_most_similar", first)


def _marks_do_not_choose(patch):
    plain = tenant_prompts._most_similar
    patch.setattr(tenant_prompts, "_most_similar", lambda marks, held: (list(held), plain(marks, held)[1]))


def _a_continued_prompt_diverges(patch):
    patch.setattr(tenant_prompts, "min", lambda *sizes: min(sizes[0], sizes[-1]), raising=False)


def _bytes_are_reported(patch):
    patch.setattr(Divergence, "position", lambda self, _text: str(self.common_bytes))


def _a_cut_character_is_left_out(patch):
    def position(self, text):
        first, last = (len(text[:at].decode("utf-8", "ignore")) for at in (self.common_bytes, self.differs_before))
        return f"{first}-{last}" if last > first + 1 else f"{first}"

    patch.setattr(Divergence, "position", position)


MUTANTS = [
    *(_a_byte_early, _the_offsets_are_reported, _the_first_is_taken, _marks_do_not_choose),
    *(_a_continued_prompt_diverges, _bytes_are_reported, _a_cut_character_is_left_out),
]


@pytest.mark.soak
@pytest.mark.parametrize("mutant", MUTANTS)
def test_each_deliberate_bug_is_seen(mutant, monkeypatch):
    """One of the tests above fails."""
    mutant(monkeypatch)
    with pytest.raises((AssertionError, ValueError)):
        _check_all()


def _check_all():
    for seed in range(12):
        for dropped in (0.0, 0.6, 1.0):
            check(seed, dropped)
    test_a_character_that_is_cut_by_a_place_may_differ()
