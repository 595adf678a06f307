"""Named timelines of a host's memory, as data: who runs there, what happens when, and what must have come of it.

A story is a text, one event per line: seconds, a verb, its words.

```
600 other 20          other programs hold 20 GiB from now on
600 leak 8            … and this much more per hour
600 level critical    the kernel says so, whatever the figures; `level -` lets the figures speak again
600 flap warning 90   for 90 s every other look says so
600 touchy 40         the kernel says critical whenever all engines together hold more than that; 0 never
600 broken 30         for 30 s memory cannot be read
600 total 48          the host has this much now
600 device 20         the device may hold this much
600 add draft         this service appears
600 delete draft      … and goes
600 crash draft       its process dies
600 edit draft priority high
```
"""

import attrs

from pressure.carrier import Engine

E = Engine


@attrs.frozen
class Timeline:
    """One story.

    Attributes:
        name: What happens.
        total: Memory of the host, GiB.
        other: What other programs hold at the beginning, GiB.
        engines: Who runs there; those that the story adds start later.
        story: See above.
        evicted: Who is evicted for memory, in order.
        displaced: Who makes room for somebody else, in order.
        ends: Who runs in the end.
        says: What the last word of somebody who waits must contain.
        overrun: Other programs, or an engine that takes more than it said, may leave nothing at all for a while.
        policy: What differs from the defaults.
        fraction: The operator's, if any.
        seconds: How long it lasts.
    """

    name: str
    engines: tuple[Engine, ...]
    story: str = ""
    evicted: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    displaced: tuple[str, ...] = ()
    says: tuple[tuple[str, str], ...] = ()
    total: float = 64
    other: float = 8
    overrun: bool = False
    policy: tuple[tuple[str, object], ...] = ()
    fraction: float | None = None
    seconds: float = 2400


def three(**changes):
    """A host's usual load: one important large model, one small, one that nobody would miss."""
    engines = (E("chat", 26, "high"), E("embed", 6), E("draft", 10, "low"))
    return tuple(attrs.evolve(each, **changes) for each in engines)


ALL = ("chat", "draft", "embed")

TIMELINES = (
    Timeline("nothing happens", three(), ends=ALL),
    Timeline("a browser opens and closes", three(), "600 other 20\n1800 other 8", ("draft",), ALL),
    Timeline("a browser opens and stays", three(), "600 other 20", ("draft",), ("chat", "embed")),
    Timeline(
        "a browser opens and closes five times",
        three(),
        "\n".join(f"{600 * n} other 20\n{600 * n + 300} other 8" for n in range(1, 6)),
        ("draft",) * 5,
        ALL,
        seconds=4500,
    ),
    Timeline("a slow leak", three(), "300 leak 16", ("draft",), ("chat", "embed"), seconds=4200),
    Timeline(
        "a slow leak of somebody who is restarted in the end",
        three(),
        "300 leak 16\n5000 leak 0\n5000 other 8",
        ("draft", "embed"),
        ALL,
        seconds=7200,
    ),
    Timeline(
        "two big models arrive at once",
        (E("a", 30), E("b", 30)),
        ends=("a",),
        says=(("b", "needs 30.0 GiB, 18.0 GiB free of 48.0 GiB"),),
    ),
    Timeline("two that fit arrive at once", (E("a", 20), E("b", 20)), ends=("a", "b")),
    Timeline(
        "ten arrive at once",
        tuple(E(f"m{n}", 10) for n in range(10)),
        ends=("m0", "m1", "m2", "m3"),
    ),
    Timeline("warning flaps with every look", three(), "600 flap warning 50", (), ALL),
    Timeline("critical flaps with every look", three(), "600 flap critical 20", ("draft",), ALL),
    Timeline(
        "a critical second, every twenty seconds",
        three(),
        "\n".join(f"{600 + 20 * n} level critical\n{601 + 20 * n} level -" for n in range(6)),
        ("draft", "embed"),
        ALL,
    ),
    Timeline(
        "from normal to critical in one step", three(), "600 other 23", ("draft",), ("chat", "embed"), overrun=True
    ),
    Timeline(
        "critical, and one victim is not enough",
        (E("chat", 20, "high"), E("embed", 8), E("draft", 8, "low")),
        "600 other 40",
        ("draft", "embed"),
        ("chat",),
        overrun=True,
    ),
    Timeline("a reading fails once", three(), "600 broken 1", (), ALL),
    Timeline("readings fail for ten minutes", three(), "600 broken 600", (), ALL),
    Timeline(
        "somebody arrives while memory cannot be read",
        (*three(), E("late", 3, wanted=False)),
        "600 broken 300\n650 add late",
        (),
        ("chat", "draft", "embed", "late"),
    ),
    Timeline("memory can never be read", three(), "0 broken 9999", (), ()),
    Timeline(
        "memory is short while readings fail",
        three(),
        "600 broken 120\n610 other 20",
        ("draft",),
        ("chat", "embed"),
    ),
    Timeline(
        "a victim will not die",
        (E("chat", 26, "high"), E("embed", 8), E("draft", 10, "low", stop_seconds=900)),
        "600 other 19",
        ("draft", "embed"),
        ("chat",),
        seconds=1400,
    ),
    Timeline(
        "memory is freed late",
        (E("chat", 26, "high"), E("embed", 8), E("draft", 10, "low", late_seconds=8)),
        "600 other 19",
        ("draft",),
        ("chat", "embed"),
    ),
    Timeline(
        "memory is freed so late that nobody waits for it",
        (E("chat", 26, "high"), E("embed", 8), E("draft", 8, "low", late_seconds=45)),
        "600 other 20\n900 other 8",
        ("draft", "embed"),
        ALL,
    ),
    Timeline("the host loses memory", three(), "600 total 50", ("draft",), ("chat", "embed"), overrun=True),
    Timeline(
        "the host loses memory and gets it back", three(), "600 total 50\n1500 total 64", ("draft",), ALL, overrun=True
    ),
    Timeline(
        "the host gets more memory",
        (*three(), E("second", 16)),
        "600 total 96",
        (),
        ("chat", "draft", "embed", "second"),
    ),
    Timeline(
        "all are protected",
        three(protected=True),
        "600 other 20",
        (),
        ALL,
    ),
    Timeline(
        "all are protected, and one of them is not for long",
        three(protected=True),
        "600 other 20\n900 edit draft protected False",
        ("draft",),
        ("chat", "embed"),
    ),
    Timeline("only one service", (E("chat", 40),), "600 other 23\n1200 other 8", (), ("chat",)),
    Timeline(
        "only one service, and the operator lets it go",
        (E("chat", 40),),
        "600 other 23\n1200 other 8",
        ("chat",),
        ("chat",),
        policy=(("keep_last", False),),
    ),
    Timeline(
        "another program eats nearly everything, and ours would not help",
        (E("chat", 1.5, "high"), E("draft", 1, "low")),
        "600 other 61",
        (),
        ("chat", "draft"),
    ),
    Timeline(
        "another program eats everything",
        (E("chat", 6, "high"), E("draft", 4, "low")),
        "600 other 63",
        ("draft",),
        ("chat",),
        overrun=True,
    ),
    Timeline(
        "another program eats everything and dies",
        (E("chat", 6, "high"), E("draft", 4, "low")),
        "600 other 63\n660 other 4",
        ("draft",),
        ("chat", "draft"),
        overrun=True,
    ),
    Timeline(
        "somebody more important arrives",
        (*three(), E("chief", 12, "critical", wanted=False)),
        "600 add chief",
        (),
        ("chat", "chief", "embed"),
        displaced=("draft",),
    ),
    Timeline(
        "somebody equally important arrives",
        (E("a", 30), E("b", 30, wanted=False)),
        "600 add b",
        (),
        ("a",),
        says=(("b", "stopping `a` (priority normal) would make room"),),
    ),
    Timeline(
        "somebody more important arrives, and all the others are protected",
        (*three(protected=True), E("chief", 12, "critical", wanted=False)),
        "600 add chief",
        (),
        ALL,
    ),
    Timeline(
        "somebody more important arrives and goes again",
        (*three(), E("chief", 12, "critical", wanted=False)),
        "600 add chief\n1200 delete chief",
        (),
        ALL,
        displaced=("draft",),
    ),
    Timeline(
        "somebody more important crashes all the time",
        (*three(), E("chief", 12, "critical", wanted=False)),
        "600 add chief\n" + "\n".join(f"{640 + 60 * n} crash chief" for n in range(9)),
        (),
        ("chat", "chief", "embed"),
        displaced=("draft",),
    ),
    Timeline(
        "an estimate is far too low",
        (E("chat", 26, "high"), E("liar", 4, "low", takes=24)),
        "",
        ("liar",),
        ("chat",),
        says=(("liar", "needs 24"),),
        overrun=True,
    ),
    Timeline(
        "an engine takes more than the budget allows on a host that has it",
        (E("chat", 20, "high"), E("liar", 4, "low", takes=24)),
        "",
        ("liar",),
        ("chat",),
        total=128,
        fraction=0.3,
    ),
    Timeline(
        "an engine grows without end",
        (E("chat", 20, "high"), E("embed", 6), E("grower", 6, "low", grows=20)),
        "",
        ("grower",),
        ("chat", "embed"),
        says=(("grower", "needs 23.3 GiB, 22.0 GiB free"),),
        seconds=5400,
    ),
    Timeline(
        "a priority is edited while memory is short",
        (E("a", 16), E("b", 12), E("c", 12, "high")),
        "600 other 18.5\n630 edit b priority low",
        ("b",),
        ("a", "c"),
        seconds=690,
    ),
    Timeline(
        "a protected service outlasts a more important one, until it loses its protection",
        (E("a", 20, "high"), E("b", 16, "low", protected=True)),
        "600 other 24\n700 edit b protected False",
        ("a",),
        ("a",),
        displaced=("b",),
        seconds=1200,
    ),
    Timeline(
        "an agent begins with engines that are there, under pressure",
        three(adopted=True),
        "0 other 20\n900 other 8",
        ("draft",),
        ALL,
    ),
    Timeline(
        "an agent begins with engines that are there and with one that waits",
        (*three(adopted=True), E("second", 8, "low")),
        "",
        (),
        ALL,
        says=(("second", "needs 8.0 GiB, 6.0 GiB free"),),
    ),
    Timeline(
        "an agent begins with more engines than its budget allows",
        three(adopted=True),
        "",
        ("draft",),
        ("chat", "embed"),
        fraction=0.6,
    ),
    Timeline(
        "a service is deleted while it waits",
        three(),
        "600 other 20\n700 delete draft\n900 other 8",
        ("draft",),
        ("chat", "embed"),
    ),
    Timeline(
        "a service is deleted while it ends",
        (E("chat", 26, "high"), E("embed", 6), E("draft", 10, "low", stop_seconds=6)),
        "600 other 20\n603 delete draft",
        ("draft",),
        ("chat", "embed"),
    ),
    Timeline(
        "a service is deleted, and the next one takes its place", (E("a", 30), E("b", 30)), "600 delete a", (), ("b",)
    ),
    Timeline(
        "several return, the most important one first",
        (E("chat", 20, "high"), E("embed", 8), E("draft", 8, "low")),
        "600 other 40\n1200 other 8",
        ("draft", "embed"),
        ALL,
        overrun=True,
    ),
    Timeline(
        "only the small one may return",
        (E("chat", 20, "high"), E("embed", 12), E("draft", 4, "low")),
        "600 other 40\n1200 other 28",
        ("draft", "embed"),
        ("chat", "draft"),
        overrun=True,
    ),
    Timeline("the kernel alone says warning", three(idle=True), "600 level warning\n640 level -", ("draft",), ALL),
    Timeline("the kernel alone says warning, for an hour", three(), "600 level warning", (), ALL, seconds=4200),
    Timeline(
        "the kernel says critical whenever all run, whatever the figures",
        three(),
        "600 touchy 40",
        ("draft",) * 5,
        ("chat", "embed"),
        seconds=5400,
    ),
    Timeline(
        "the kernel says critical whenever all run, until another program ends",
        three(),
        "600 touchy 40\n1000 other 4\n1000 touchy 0",
        ("draft",) * 2,
        ALL,
    ),
    Timeline(
        "an idle service goes before one that works",
        (E("chat", 24, "high"), E("rest", 10, idle=True), E("work", 10, "low")),
        "600 other 15",
        ("rest",),
        ("chat", "work"),
    ),
    Timeline("a dry run", three(), "600 other 20\n900 other 8", (), ALL, policy=(("mode", "dry-run"),)),
    Timeline("eviction is switched off", three(), "600 other 20\n900 other 8", (), ALL, policy=(("mode", "off"),)),
    Timeline("a crash is made good at once", three(), "600 crash chat", (), ALL),
    Timeline(
        "a demo model on a host that is short",
        (E("chat", 40), E("demo", 0.1, wanted=False)),
        "600 other 18.5\n700 add demo",
        (),
        ("chat", "demo"),
    ),
    Timeline(
        "a model that fits no host like this",
        (E("huge", 60),),
        "",
        (),
        (),
        says=(("huge", "more than all models on this host may take together"),),
    ),
    Timeline(
        "a limit for the device is set",
        (E("a", 16), E("b", 16, "low"), E("processor", 8, on_device=False)),
        "600 device 24",
        ("b",),
        ("a", "processor"),
        says=(("b", "needs 16.0 GiB on the device, 8.0 GiB free of 24.0 GiB"),),
    ),
    Timeline(
        "everything at once: short, unreadable, short again, and an arrival",
        (*three(), E("late", 4, "high", wanted=False)),
        "600 other 20\n620 broken 60\n900 other 8\n905 add late\n1500 other 20\n1800 other 6",
        ("draft", "draft"),
        ("chat", "draft", "embed", "late"),
        overrun=True,
    ),
)
