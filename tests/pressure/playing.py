"""Run a timeline on the minimal host under a virtual clock, and check its invariants."""

import attrs
import trio

from llmkube.supervisor.host.sample import UNREADABLE, Level
from llmkube.supervisor.memory.policy import Policy
from pressure.carrier import Memory, run_host
from pressure.invariants import Books
from virtual_clock import virtual_clock


def play(timeline):
    """Return the host after a timeline, and its books."""
    return trio.run(_play, timeline, clock=virtual_clock())


def came_of(host):
    """Return the evicted and the displaced engines, both in order, and the engines that run in the end."""
    evicted, displaced = ([mark.name for mark in host.marks if mark.what == what] for what in ("evict", "displaced"))
    return " ".join(evicted), " ".join(displaced), " ".join(host.running())


async def _play(timeline):
    books = Books(timeline.overrun)
    memory = Memory(timeline.total, timeline.other)
    engines = [attrs.evolve(each) for each in timeline.engines]
    host = await run_host(
        lambda host: follow(host, timeline, {each.name: each for each in engines}),
        memory=memory,
        engines=[each for each in engines if each.wanted],
        policy=Policy(**timeline.policy),
        fraction=timeline.fraction,
        watch=books.look,
    )
    return host, books


async def follow(host, timeline, pool):
    """Apply the events of the story."""
    lines = [line.split() for line in timeline.story.splitlines() if line.strip()]
    for at, verb, *words in sorted(lines, key=lambda line: float(line[0])):
        if float(at):
            await trio.sleep_until(float(at))
        _do(host, pool, verb, words)
    await trio.sleep_until(timeline.seconds)


def _do(host, pool, verb, words):  # noqa: C901, PLR0912 - one branch for each verb
    memory = host.memory
    match verb, *words:
        case "other", gib:
            memory.other = float(gib)
        case "total", gib:
            memory.total = float(gib)
        case "device", gib:
            memory.device_limit = float(gib)
        case "leak", gib:
            host.leak = float(gib)
            host.nursery.start_soon(_leak, host, float(gib))
        case "level", "-":
            memory.level = None
            memory.news.set()
        case "level", word:
            memory.level, host.forced = Level[word.upper()], True
            memory.news.set()
        case "touchy", gib:
            memory.touchy, host.forced = float(gib), True
        case "flap", word, seconds:
            host.forced = True
            host.nursery.start_soon(_flap, host, Level[word.upper()], float(seconds))
        case "broken", seconds:
            memory.broken = UNREADABLE
            host.nursery.start_soon(_restore_readings, host, float(seconds))
        case "add", name:
            host.add(pool[name])
        case "delete", name:
            host.delete(name)
        case "crash", name:
            host.crash(name)
        case "edit", name, field, value:
            host.edit(name, **{field: value == "True" if field == "protected" else value})
        case _:
            raise ValueError(f"no such event: {verb} {words}")


async def _leak(host, gib):
    while host.leak == gib and gib:
        host.memory.other += gib / 360
        await trio.sleep(10)


async def _flap(host, level, seconds):
    end = trio.current_time() + seconds
    while trio.current_time() < end:
        host.memory.level = level if host.memory.level is None else None
        host.memory.news.set()
        await trio.sleep(1)
    host.memory.level = None


async def _restore_readings(host, seconds):
    await trio.sleep(seconds)
    host.memory.broken = None
