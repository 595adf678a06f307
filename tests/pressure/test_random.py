"""Random timelines: whatever happens on a host, the invariants hold."""

import random

import pytest

from lengths import PRESSURE_SEEDS
from pressure.carrier import Engine
from pressure.playing import play
from pressure.timelines import Timeline

PRIORITIES = ("batch", "low", "normal", "normal", "high", "critical")
STORY_SECONDS = 1500
CALM_SECONDS = 900


def draw(seed):
    """Draw a host, its services, half an hour of faults, and a quarter without."""
    rng = random.Random(seed)
    engines = tuple(_engine(rng, number) for number in range(rng.randint(2, 6)))
    early = [each.name for each in engines if each.wanted]
    story, alive = [], list(early)
    for _ in range(rng.randint(4, 14)):
        at = round(rng.uniform(30, STORY_SECONDS), 1)
        story.append(f"{at} {_event(rng, alive)}")
    story += [f"{rng.uniform(30, STORY_SECONDS):.1f} add {each.name}" for each in engines if not each.wanted]
    story += [f"{STORY_SECONDS} level -", f"{STORY_SECONDS} total 64", f"{STORY_SECONDS} other 6"]
    seconds = STORY_SECONDS + CALM_SECONDS
    return Timeline(f"seed {seed}", "\n".join(story), engines, overrun=True, seconds=seconds)


def _engine(rng, number):
    size = rng.choice((0.1, 1, 2, 4, 6, 8, 12, 16, 24))
    return Engine(
        f"m{number}",
        size,
        rng.choice(PRIORITIES),
        protected=rng.random() < 0.15,
        takes=size * rng.choice((0.8, 1.0, 1.0, 1.0, 1.3)),
        load_seconds=rng.choice((0.5, 10, 20, 60)),
        stop_seconds=rng.choice((0.1, 2, 6, 40)),
        late_seconds=rng.choice((0, 0, 0, 3, 8)),
        idle=rng.random() < 0.3,
        adopted=rng.random() < 0.1,
        wanted=rng.random() < 0.8,
    )


def _event(rng, alive):
    name = rng.choice(alive) if alive else None
    kinds = ["other", "other", "other", "level", "broken", "flap", "total", "crash", "edit"]
    match rng.choice(kinds) if name else "other":
        case "level":
            return f"level {rng.choice(('warning', 'critical', '-', '-'))}"
        case "broken":
            return f"broken {rng.choice((2, 10, 120))}"
        case "flap":
            return f"flap {rng.choice(('warning', 'critical'))} {rng.choice((20, 90))}"
        case "total":
            return f"total {rng.choice((56, 64, 96))}"
        case "crash":
            return f"crash {name}"
        case "edit":
            return f"edit {name} {rng.choice(('priority high', 'priority low', 'protected True', 'protected False'))}"
    return f"other {rng.choice((4, 8, 12, 16, 20, 30, 45))}"


@pytest.mark.parametrize("seed", range(PRESSURE_SEEDS))
def test_a_drawn_timeline(seed):
    """Under all kinds of faults no invariant breaks, and afterwards every service that fits runs."""
    timeline = draw(seed)
    host, books = play(timeline)
    assert not books.violations, timeline.story
    assert not host.memory.broken
