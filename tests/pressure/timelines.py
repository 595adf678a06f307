"""Named timelines of a host's memory, as data: its services, the events, and the expected result.

A story is a text with one event per line: seconds, a verb, its arguments.

```
600 other 20          other programs hold 20 GiB from now on
600 leak 8            … and 8 GiB more per hour
600 level critical    the kernel reports this level, whatever the figures; `level -` follows the figures again
600 flap warning 90   for 90 s the kernel reports this level at every second sample
600 touchy 40         the kernel reports critical whenever all engines together hold more than that; 0 never
600 broken 30         for 30 s memory cannot be read
600 total 48          the host has this much memory now
600 device 20         the device may hold this much
600 add draft         this service is created
600 delete draft      … and deleted
600 crash draft       its process dies
600 edit draft priority high
```
"""

import attrs

from llmkube.supervisor.memory.policy import Mode
from pressure.carrier import Engine

E = Engine


def three(**changes):
    """Return a host's usual load: a large model of high priority, a small one of normal, one of low."""
    engines = (E("chat", 26, "high"), E("embed", 6), E("draft", 10, "low"))
    return tuple(attrs.evolve(each, **changes) for each in engines)


@attrs.frozen
class Timeline:
    """One timeline.

    Attributes:
        name: Title of the timeline.
        story: Events, in the format above.
        engines: Engines of the host; those that the story adds start later.
        evicted: Engines that are evicted under memory pressure, in order.
        displaced: Engines that are preempted by others, in order.
        ends: Engines that run at the end.
        messages: Text in the last message of a waiting service, by service.
        total: Memory of the host, GiB.
        other: Memory of other programs at the beginning, GiB.
        overrun: Whether other programs, or an engine above its need, may use up all memory for a while.
        policy: Settings that differ from the defaults.
        fraction: The operator's memory fraction, if set.
        seconds: Duration of the timeline.
    """

    name: str
    story: str = ""
    engines: tuple[Engine, ...] = attrs.field(factory=three)
    evicted: str = ""
    displaced: str = ""
    ends: str = "chat draft embed"
    messages: dict[str, str] = attrs.field(factory=dict)
    total: float = 64
    other: float = 8
    overrun: bool = False
    policy: dict[str, object] = attrs.field(factory=dict)
    fraction: float | None = None
    seconds: float = 2400


TIMELINES = (
    Timeline("nothing happens"),
    Timeline("a browser opens and closes", "600 other 20\n1800 other 8", evicted="draft"),
    Timeline("a browser opens and stays", "600 other 20", evicted="draft", ends="chat embed"),
    Timeline(
        "a browser opens and closes five times",
        "\n".join(f"{600 * n} other 20\n{600 * n + 300} other 8" for n in range(1, 6)),
        evicted="draft draft draft draft draft",
        seconds=4500,
    ),
    Timeline("a slow leak", "300 leak 16", evicted="draft", ends="chat embed", seconds=4200),
    Timeline(
        "a slow leak of another program that is restarted in the end",
        "300 leak 16\n5000 leak 0\n5000 other 8",
        evicted="draft embed",
        seconds=7200,
    ),
    Timeline(
        "two big models arrive at once",
        engines=(E("a", 30), E("b", 30)),
        ends="a",
        messages={"b": "needs 30.0 GiB, 18.0 GiB free of 48.0 GiB"},
    ),
    Timeline(
        "a service waits for one that takes less than is reserved",
        engines=(E("a", 24, takes=19.2), E("b", 12)),
        ends="a",
        messages={"b": "needs 12.0 GiB, but this machine has only"},
        other=21,
    ),
    Timeline("two that fit arrive at once", engines=(E("a", 20), E("b", 20)), ends="a b"),
    Timeline("ten arrive at once", engines=tuple(E(f"m{n}", 10) for n in range(10)), ends="m0 m1 m2 m3"),
    Timeline("warning flaps with every look", "600 flap warning 50"),
    Timeline("critical flaps with every look", "600 flap critical 20", evicted="draft"),
    Timeline(
        "a critical second, every twenty seconds",
        "\n".join(f"{600 + 20 * n} level critical\n{601 + 20 * n} level -" for n in range(6)),
        evicted="draft embed",
    ),
    Timeline("from normal to critical in one step", "600 other 23", evicted="draft", ends="chat embed", overrun=True),
    Timeline(
        "critical, and one victim is not enough",
        "600 other 40",
        engines=(E("chat", 20, "high"), E("embed", 8), E("draft", 8, "low")),
        evicted="draft embed",
        ends="chat",
        overrun=True,
    ),
    Timeline("a reading fails once", "600 broken 1"),
    Timeline("readings fail for ten minutes", "600 broken 600"),
    Timeline(
        "a service arrives while memory cannot be read",
        "600 broken 300\n650 add late",
        engines=(*three(), E("late", 3, wanted=False)),
        ends="chat draft embed late",
    ),
    Timeline("memory can never be read", "0 broken 9999", ends=""),
    Timeline("memory is short while readings fail", "600 broken 120\n610 other 20", evicted="draft", ends="chat embed"),
    Timeline(
        "a victim will not die",
        "600 other 19",
        engines=(E("chat", 26, "high"), E("embed", 8), E("draft", 10, "low", stop_seconds=900)),
        evicted="draft embed",
        ends="chat",
        seconds=1400,
    ),
    Timeline(
        "memory is freed late",
        "600 other 19",
        engines=(E("chat", 26, "high"), E("embed", 8), E("draft", 10, "low", late_seconds=8)),
        evicted="draft",
        ends="chat embed",
    ),
    Timeline(
        "memory is freed after the wait for it has ended",
        "600 other 20\n900 other 8",
        engines=(E("chat", 26, "high"), E("embed", 8), E("draft", 8, "low", late_seconds=45)),
        evicted="draft embed",
    ),
    Timeline("the host loses memory", "600 total 50", evicted="draft", ends="chat embed", overrun=True),
    Timeline("the host loses memory and gets it back", "600 total 50\n1500 total 64", evicted="draft", overrun=True),
    Timeline(
        "the host gets more memory", "600 total 96", engines=(*three(), E("second", 16)), ends="chat draft embed second"
    ),
    Timeline("all are protected", "600 other 20", engines=three(protected=True)),
    Timeline(
        "all are protected, and one of them is not for long",
        "600 other 20\n900 edit draft protected False",
        engines=three(protected=True),
        evicted="draft",
        ends="chat embed",
    ),
    Timeline("only one service", "600 other 23\n1200 other 8", engines=(E("chat", 40),), ends="chat"),
    Timeline(
        "only one service, and the operator lets it go",
        "600 other 23\n1200 other 8",
        engines=(E("chat", 40),),
        evicted="chat",
        ends="chat",
        policy={"keep_last": False},
    ),
    Timeline(
        "another program eats nearly everything, and ours would not help",
        "600 other 61",
        engines=(E("chat", 1.5, "high"), E("draft", 1, "low")),
        ends="chat draft",
    ),
    Timeline(
        "another program eats everything",
        "600 other 63",
        engines=(E("chat", 6, "high"), E("draft", 4, "low")),
        evicted="draft",
        ends="chat",
        overrun=True,
    ),
    Timeline(
        "another program eats everything and dies",
        "600 other 63\n660 other 4",
        engines=(E("chat", 6, "high"), E("draft", 4, "low")),
        evicted="draft",
        ends="chat draft",
        overrun=True,
    ),
    Timeline(
        "a more important service arrives",
        "600 add chief",
        engines=(*three(), E("chief", 12, "critical", wanted=False)),
        displaced="draft",
        ends="chat chief embed",
    ),
    Timeline(
        "an equally important service arrives",
        "600 add b",
        engines=(E("a", 30), E("b", 30, wanted=False)),
        ends="a",
        messages={"b": "stopping `a` (priority normal) would make room"},
    ),
    Timeline(
        "a more important service arrives, and all the others are protected",
        "600 add chief",
        engines=(*three(protected=True), E("chief", 12, "critical", wanted=False)),
    ),
    Timeline(
        "a more important service arrives and goes again",
        "600 add chief\n1200 delete chief",
        engines=(*three(), E("chief", 12, "critical", wanted=False)),
        displaced="draft",
    ),
    Timeline(
        "a more important service crashes all the time",
        "600 add chief\n" + "\n".join(f"{640 + 60 * n} crash chief" for n in range(9)),
        engines=(*three(), E("chief", 12, "critical", wanted=False)),
        displaced="draft",
        ends="chat chief embed",
    ),
    Timeline(
        "an estimate is far too low",
        engines=(E("chat", 26, "high"), E("liar", 4, "low", takes=24)),
        evicted="liar",
        ends="chat",
        messages={"liar": "needs 24"},
        overrun=True,
    ),
    Timeline(
        "an engine takes more than the budget allows on a host that has it",
        engines=(E("chat", 20, "high"), E("liar", 4, "low", takes=24)),
        evicted="liar",
        ends="chat",
        total=128,
        fraction=0.3,
    ),
    Timeline(
        "an engine grows without end",
        engines=(E("chat", 20, "high"), E("embed", 6), E("grower", 6, "low", grows=20)),
        evicted="grower",
        ends="chat embed",
        messages={"grower": "needs 23.3 GiB, 22.0 GiB free"},
        seconds=5400,
    ),
    Timeline(
        "a priority is edited while memory is short",
        "600 other 18.5\n630 edit b priority low",
        engines=(E("a", 16), E("b", 12), E("c", 12, "high")),
        evicted="b",
        ends="a c",
        seconds=690,
    ),
    Timeline(
        "a protected service outlasts a more important one, until it loses its protection",
        "600 other 24\n700 edit b protected False",
        engines=(E("a", 20, "high"), E("b", 16, "low", protected=True)),
        evicted="a",
        displaced="b",
        ends="a",
        seconds=1200,
    ),
    Timeline(
        "an agent begins with engines that are there, under pressure",
        "0 other 20\n900 other 8",
        engines=three(adopted=True),
        evicted="draft",
    ),
    Timeline(
        "an agent begins with engines that are there and with one that waits",
        engines=(*three(adopted=True), E("second", 8, "low")),
        messages={"second": "needs 8.0 GiB, 6.0 GiB free"},
    ),
    Timeline(
        "an agent begins with more engines than its budget allows",
        engines=three(adopted=True),
        evicted="draft",
        ends="chat embed",
        fraction=0.6,
    ),
    Timeline(
        "a service is deleted while it waits",
        "600 other 20\n700 delete draft\n900 other 8",
        evicted="draft",
        ends="chat embed",
    ),
    Timeline(
        "a service is deleted while it ends",
        "600 other 20\n603 delete draft",
        engines=(E("chat", 26, "high"), E("embed", 6), E("draft", 10, "low", stop_seconds=6)),
        evicted="draft",
        ends="chat embed",
    ),
    Timeline(
        "a service is deleted, and the next one takes its place",
        "600 delete a",
        engines=(E("a", 30), E("b", 30)),
        ends="b",
    ),
    Timeline(
        "several return, the most important one first",
        "600 other 40\n1200 other 8",
        engines=(E("chat", 20, "high"), E("embed", 8), E("draft", 8, "low")),
        evicted="draft embed",
        overrun=True,
    ),
    Timeline(
        "only the small one may return",
        "600 other 40\n1200 other 28",
        engines=(E("chat", 20, "high"), E("embed", 12), E("draft", 4, "low")),
        evicted="draft embed",
        ends="chat draft",
        overrun=True,
    ),
    Timeline(
        "the kernel alone reports warning", "600 level warning\n640 level -", engines=three(idle=True), evicted="draft"
    ),
    Timeline("the kernel alone reports warning, for an hour", "600 level warning", seconds=4200),
    Timeline(
        "the kernel reports critical whenever all run, whatever the figures",
        "600 touchy 40",
        evicted="draft draft draft draft draft",
        ends="chat embed",
        seconds=5400,
    ),
    Timeline(
        "the kernel reports critical whenever all run, until another program ends",
        "600 touchy 40\n1000 other 4\n1000 touchy 0",
        evicted="draft draft",
    ),
    Timeline(
        "an idle service goes before one that works",
        "600 other 15",
        engines=(E("chat", 24, "high"), E("rest", 10, idle=True), E("work", 10, "low")),
        evicted="rest",
        ends="chat work",
    ),
    Timeline("a dry run", "600 other 20\n900 other 8", policy={"mode": Mode.DRY_RUN}),
    Timeline("eviction is switched off", "600 other 20\n900 other 8", policy={"mode": Mode.OFF}),
    Timeline("a crash is made good at once", "600 crash chat"),
    Timeline(
        "a demo model on a host that is short",
        "600 other 18.5\n700 add demo",
        engines=(E("chat", 40), E("demo", 0.1, wanted=False)),
        ends="chat demo",
    ),
    Timeline(
        "a model that fits no host like this",
        engines=(E("huge", 60),),
        ends="",
        messages={"huge": "more than all models on this machine may use together"},
    ),
    Timeline(
        "a limit for the device is set",
        "600 device 24",
        engines=(E("a", 16), E("b", 16, "low"), E("processor", 8, on_device=False)),
        evicted="b",
        ends="a processor",
        messages={"b": "needs 16.0 GiB on the device, 8.0 GiB free of 24.0 GiB"},
    ),
    Timeline(
        "everything at once: short, unreadable, short again, and an arrival",
        "600 other 20\n620 broken 60\n900 other 8\n905 add late\n1500 other 20\n1800 other 6",
        engines=(*three(), E("late", 4, "high", wanted=False)),
        evicted="draft draft",
        ends="chat draft embed late",
        overrun=True,
    ),
)
