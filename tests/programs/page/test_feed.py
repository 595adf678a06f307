"""Updates of the page: shared by all viewers, resumed after a break, none without viewers."""

import json

import attrs
import trio

from llmkube.programs.page.feed import KEEP_ALIVE_SECONDS, KEPT_UPDATES, Feed
from llmkube.programs.page.state import RATE_POINTS, RATE_SECONDS

CHAT = "default/chat"


@attrs.define(eq=False)
class Host:
    """A host whose state the test sets."""

    services: dict[str, object] = attrs.field(factory=lambda: {"default/chat": {"state": "ready"}})
    collected: int = 0

    async def collect(self, rates):
        await trio.lowlevel.checkpoint()
        self.collected += 1
        return {"host": "box", "services": dict(self.services), "rates": rates.of(CHAT)}


def parsed(event):
    fields = dict(line.split(": ", 1) for line in event.decode().strip().splitlines())
    return fields["event"], fields["id"], json.loads(fields["data"])


async def test_a_viewer_gets_everything_and_then_what_changes_and_resumes_after_a_break(nursery, autojump_clock):
    """The first event is the whole state; after a break the missed updates follow, or the state if it was long."""
    host = Host()
    feed = Feed(host.collect, "a1")
    nursery.start_soon(feed.run)
    await trio.sleep(60)
    assert host.collected == 0
    with feed.open_viewer("") as viewer:
        kind, last_id, state = parsed(await viewer.next_events())
        assert (kind, state["services"]) == ("state", host.services)
        host.services = {"default/chat": {"state": "idle"}, "default/code": {"state": "ready"}}
        assert parsed(await viewer.next_events())[::2] == ("update", {"services": host.services})
        del host.services["default/code"]
        patch = parsed(await viewer.next_events())[2]
        assert patch == {"services": {"default/code": None}}
        assert await viewer.next_events() == b": \n\n"  # nothing has changed for a while
    assert feed.viewers == 0
    with feed.open_viewer(last_id) as viewer:
        missed = (await viewer.next_events()).split(b"\n\n")
        assert [parsed(each)[0] for each in missed[:-1]] == ["update", "update"]
        assert parsed(missed[1])[2] == patch
        for number in range(KEPT_UPDATES + 5):  # while this viewer does not read
            host.services["default/chat"] = {"state": str(number)}
            await trio.sleep(1)
        kind, _, state = parsed(await viewer.next_events())
        assert (kind, state["services"]["default/chat"]) == ("state", {"state": str(number)})
    for unknown in ("", "b2-1", "a1-x", "a1-999999"):
        with feed.open_viewer(unknown) as viewer:
            assert parsed(await viewer.next_events())[0] == "state"
    before = host.collected
    await trio.sleep(KEEP_ALIVE_SECONDS)
    assert host.collected <= before + 1


async def test_rates_are_those_of_the_last_hour(nursery, autojump_clock):
    """Tokens per second in steps of ten seconds; an idle hour leaves no plot."""
    host = Host()
    feed = Feed(host.collect, "a1")
    nursery.start_soon(feed.run)
    await trio.sleep(1)
    feed.rates.record(CHAT, 150)
    feed.rates.record(CHAT, 50)
    await trio.sleep(2 * RATE_SECONDS)
    assert feed.rates.of(CHAT) == [20, 0]
    await trio.sleep(RATE_POINTS * RATE_SECONDS)
    assert feed.rates.of(CHAT) == []
