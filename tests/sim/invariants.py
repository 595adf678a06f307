"""Invariants that hold at every moment, and the expected state when the faults have stopped.

The monitor is driven by events (a write to the store, an engine that starts or exits), not by polls, and reads nothing
through the API: its reads must not be visible to the simulated programs.
"""

import math
from collections import Counter
from contextlib import contextmanager
from functools import partial

import attrs
import trio

from llmkube.apiserver.storage.revisions import Ref, Store
from llmkube.k8s.crd.placement import ON_REQUEST
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import HOST_LABEL
from llmkube.runtimes.process.exits import metal_error
from llmkube.supervisor.engine.child import KILL_SECONDS
from llmkube.supervisor.host_cordon import POLL_SECONDS
from sim.daemons import RUNTIMES, runtime_of
from sim.machine import INJECTED_BUG

SERVICES = "inferenceservices.inference.llmkube.dev"
SLICES = "endpointslices.discovery.k8s.io"
LEASES = "leases.coordination.k8s.io"
EVENTS = "events"

READY_SECONDS = 2.0
"""Maximum time for an endpoint to stay ready after its engine has exited, with a running agent and API server."""

DAEMON_SECONDS = 5.0
"""Interval of the checks of a daemon."""

HOLLOW_SECONDS = 20.0
"""Maximum time for an endpoint to stay ready without its model: two checks of the front, one of the agent."""

ORPHAN_SECONDS = 5.0
"""Maximum time for an engine to run unattended while an agent runs."""

AGENT_SETTLES_SECONDS = 5.0
API_SETTLES_SECONDS = 40.0
"""After an outage a write may wait for the end of its back-off (30 s and a jitter)."""

RECONNECT_SECONDS = 200.0
"""After an outage a silent watch may take this long to be restarted."""

USER_TIMEOUT_SECONDS = 3600.0
"""The network of a user has no faults, but the clock may jump meanwhile."""

CORDON_LOOK_SECONDS = POLL_SECONDS + 1.0
"""Maximum time until the agent of a cordoned host has noticed the cordon."""

COLUMNS = (
    *("lost", "orphans", "double", "false ready", "needless", "not given back", "stuck", "restless", "bugs"),
    *("cut", "late", "uncalled", "out of memory"),
)
"""`not given back`: an engine on a cordoned host. The last four are about services that are loaded on request: requests
that are cut, or wait beyond their bound, loads that nothing needs, and hosts without free memory."""

MAKES_ROOM_SECONDS = 60.0
"""Time after the last use of a service in which another one may be unloaded for it."""

WAKING = ("replicas", "suspend", "activation")
"""Fields of a spec whose changes may load an idle service; other edits are planned only."""


@attrs.frozen
class Violation:
    """A broken invariant."""

    column: str
    at: float
    text: str

    def __str__(self):
        return f"{self.column} at {self.at:.1f} s: {self.text}"


class WatchedStore(Store):
    """A store that reports each write, invisibly to virtual time and the API server."""

    def __init__(self):
        super().__init__()
        self.listener = lambda change: None

    def apply(self, changes):
        super().apply(changes)
        for change in changes:
            self.listener(change)


@attrs.define(eq=False)
class InvariantMonitor:
    """The history of one world, and the violations found in it.

    Attributes:
        world: The monitored world.
        store: The store of its API server.
        desired: The services that its user has requested.
        false_list_at: Time of the last list with missing objects: two such lists may be believed.
        excused_until: Until then a host may still catch up with changes, or reapply what other clients have removed.
        violations: Broken invariants, each once.
        quiet_since: Time after which nothing may be written, started or stopped; `math.inf` while events happen.
    """

    world: object
    store: WatchedStore
    desired: "DesiredServices"
    false_list_at: float = -math.inf
    excused_until: float = -math.inf
    violations: list[Violation] = attrs.field(factory=list)
    quiet_since: float = math.inf
    last_change: float = 0.0
    standstills: int = 0  # of all programs
    _users: Counter = attrs.field(factory=Counter)  # number of requests by service
    _needed_at: dict = attrs.field(factory=dict)  # by service: when a request or a user last needed it
    _unloadable: set = attrs.field(factory=set)  # services that a user or a client wants to have unloaded
    _unloaded: dict = attrs.field(factory=dict)  # by service: when it was unloaded; not what nothing may load
    _pressed_until: float = -math.inf  # other programs take memory until then
    _spawned: Counter = attrs.field(factory=Counter)  # by host: number of engines that have been looked at
    _ready: dict = attrs.field(factory=dict)  # (host, service) -> (address, port), as published
    _suspects: dict = attrs.field(factory=dict)  # possible violations, and the time when each was first seen
    _reported: set = attrs.field(factory=set)
    _changed: trio.Event = attrs.field(factory=trio.Event)
    _disturbed: dict = attrs.field(
        factory=dict
    )  # by host, or controller: number of faults of its network to the API server
    _calm_since: dict = attrs.field(factory=dict)
    _gaps: dict = attrs.field(factory=dict)  # by host: the last period in which it may have received nothing
    _started: dict = attrs.field(factory=dict)
    _cordoned: dict = attrs.field(factory=dict)  # by host: start of the cordon, and the last time it was seen
    _still: set = attrs.field(factory=set)  # hosts whose agents are stopped by a signal

    def __attrs_post_init__(self):
        self.store.listener = self._written
        for host in self.world.hosts.values():
            host.machine.changed = self._engines_changed
            host.machine.stopping = partial(self._stopping, host)

    # -- events -------------------------------------------------------------------------------------------------------

    @contextmanager
    def disturbed(self, host, afterwards_seconds=0.0):
        """During the block and `afterwards_seconds` longer, a host need not have written its state."""
        since = trio.current_time()
        if not self._disturbed.get(host):
            self._record_gap(host, since)
        self._disturbed[host] = self._disturbed.get(host, 0) + 1
        try:
            yield
        finally:
            self._disturbed[host] -= 1
            self.excuse(max(RECONNECT_SECONDS, afterwards_seconds))
            self._calm_since[host] = max(self._calm_since.get(host, 0.0), trio.current_time() + afterwards_seconds)
            self._record_gap(host, since)
            self.look()

    def excuse(self, seconds):
        """For this long the state may differ from the desired one, unseen by agents or unwanted by any user."""
        self.excused_until = max(self.excused_until, trio.current_time() + seconds)

    def _record_gap(self, host, since):
        """Record that a host may have received no changes since then; silent watches take a while to be restarted."""
        gap = self._gaps.setdefault(host, [-math.inf, -math.inf])
        if since > gap[1] + RECONNECT_SECONDS:
            gap[0] = since
        gap[1] = trio.current_time()

    def _may_be_unseen(self, host, name, spawned_at):
        """Return whether a change that is older than an engine may be unknown to its host."""
        touched, (since, until) = self.desired.touched.get(name, -math.inf), self._gaps.get(host, (math.inf, math.inf))
        was_cut_off = self._disturbed.get(host) or spawned_at <= until + RECONNECT_SECONDS
        return touched > spawned_at or (touched >= since and bool(was_cut_off))

    def started(self, host, since=math.inf):
        """Record that a new agent runs on a host, after a time without one."""
        if since < math.inf:
            self._record_gap(host, since)
        self._started[host.name] = trio.current_time()
        self.look()

    def record_standstill(self):
        """Record that no program could run for a while."""
        self._suspects = {}
        self.standstills += 1
        for host in self.world.hosts.values():
            self._restart_cordon(host)
            with self.disturbed(host):
                self._started[host.name] = trio.current_time()

    @contextmanager
    def standing_still(self, host):
        """During the block, the agent of a host notices no cordon."""
        self._still.add(host.name)
        try:
            yield
        finally:
            self._still.discard(host.name)
            self._restart_cordon(host)
            self.look()

    def _restart_cordon(self, host):
        """Measure a cordon from the next check on; its existence stays recorded, as the agent may still act on it."""
        self._cordoned[host.name] = (math.inf, self._cordoned.get(host.name, (0.0, -math.inf))[1])

    def _record_cordons(self, now):
        """Record since when each host is cordoned by its own wall clock."""
        for host in self.world.hosts.values():
            if not is_cordoned(host):
                self._restart_cordon(host)
            else:
                since = self._cordoned.get(host.name, (math.inf, now))[0]
                self._cordoned[host.name] = (min(since, now), now)

    @contextmanager
    def requested(self, name):
        """During the block a request needs a service."""
        self._users[name] += 1
        self.user_loads(name)
        try:
            yield
        finally:
            self._users[name] -= 1
            self.user_loads(name)

    def user_loads(self, name):
        """Record that a user or a request needs a service."""
        self._needed_at[name] = trio.current_time()
        self._unloaded.pop(name, None)

    def user_unloads(self, name):
        """Record that a user wants to have a service unloaded, now or after its last request."""
        self._unloadable.add(name)

    def forget_unloads(self):
        """Record that the journal no longer says which services are idle: the next agent may load them."""
        self._unloaded.clear()

    @contextmanager
    def pressed(self):
        """During the block other programs take memory."""
        self._pressed_until = math.inf
        try:
            yield
        finally:
            self._pressed_until = trio.current_time() + MAKES_ROOM_SECONDS

    def report(self, column, text, once=None):
        """Record a violation."""
        if (column, once or text) not in self._reported:
            self._reported.add((column, once or text))
            self.violations.append(Violation(column, trio.current_time(), text))

    def look(self):
        """Request another evaluation of all invariants."""
        self._changed.set()

    def _engines_changed(self):
        self.last_change = trio.current_time()
        self._record_cordons(trio.current_time())
        for host in self.world.hosts.values():
            if host.machine.doubles:
                self.report("double", f"two live engines for {host.machine.doubles[0]} on {host.name}")
            for child in host.machine.live():
                if host.running and child.spawned_at > self._cordoned[host.name][0] + CORDON_LOOK_SECONDS:
                    self.report("not given back", f"{child.name} (pid {child.pid}) was started on {host.name}")
            for child in host.machine.spawned[self._spawned[host.name] :]:
                self._spawned[host.name] += 1
                since = self._unloaded.pop(child.name, math.inf)
                is_false = trio.current_time() < self.false_list_at + 60  # an old object has never been loaded
                if since < math.inf and self.desired.woken.get(child.name, -math.inf) < since and not is_false:
                    self.report("uncalled", f"{child.name} (pid {child.pid}) is loaded, idle since {since:.1f} s")
        if trio.current_time() > self.quiet_since:
            self.report("restless", "an engine was started or ended")
        self.look()

    def must_stay(self, host, child):
        """Return whether an engine is healthy, and its service unchanged since it was started."""
        machine = host.machine
        return not (
            len(self.world.hosts) > 1  # another host may have taken over
            or not host.running
            or child.exit is not None
            or child.terminated
            or child.odd
            or machine.disk_full
            or machine.reach is not None  # it may have moved
            or child.spawned_at <= self._cordoned.get(host.name, (math.inf, -math.inf))[1]  # its host is cordoned
            or _differs(child, self.desired.specs.get(child.name, {"source": ""}))  # its file has arrived meanwhile
            or self._may_be_unseen(host, child.name, child.spawned_at)
            or trio.current_time() < self.false_list_at + 60
        )

    def _stopping(self, host, child):
        if not self.must_stay(host, child):
            return
        what = f"{child.name} (pid {child.pid})"
        if not is_on_request(host, self.desired.specs.get(child.name, {})):
            self.report("needless", f"{what} is stopped without a request")
        elif child.requests:
            others = [each for each in host.machine.live() if each.ready and each is not child and not each.requests]
            if trio.current_time() > self._pressed_until or any(self._users[each.name] == 0 for each in others):
                self.report("cut", f"{what} is stopped with {child.requests} requests")
        else:
            if not self._may_unload(host, child):
                self.report("needless", f"{what} is unloaded without a reason")
            if not (self._users[child.name] or host.machine.no_descriptors):  # without these the journal has it
                self._unloaded[child.name] = trio.current_time()

    def _may_unload(self, host, child):
        """Return whether an engine without a request may be unloaded: for its user, or for another one."""
        now, given = trio.current_time(), self.desired.specs[child.name].get("activation", {})
        if child.name in self._unloadable or "idleTimeout" in given or now <= self._pressed_until:
            return True
        recent = {
            name
            for times in (self._needed_at, self.desired.touched)
            for name, at in times.items()
            if at >= now - MAKES_ROOM_SECONDS
        }
        return bool((recent | {name for name, users in self._users.items() if users}) - {child.name})

    def _written(self, change):
        kind, now = change.ref.kind, trio.current_time()
        labels = change.after["metadata"].get("labels") or {}
        heartbeat = kind == LEASES and not change.removed and HOST_LABEL in labels
        expired = kind == EVENTS and change.removed
        if not (heartbeat or expired):
            self.last_change = now
            if now > self.quiet_since:
                what = "removed" if change.removed else "written" if change.before else "created"
                self.report("restless", f"{kind} {change.ref.key} is {what}: {_difference(change)}", once=kind)
        if kind == SLICES:
            self._published(change, labels)
        elif kind == SERVICES and not change.removed:
            self._check_for_bugs(change.after)

    def _published(self, change, labels):
        place = labels.get(HOST_LABEL), labels.get("kubernetes.io/service-name"), change.ref.key.name
        ready = [one for one in change.after.get("endpoints") or [] if one["conditions"].get("ready")]
        if change.removed or not ready or None in place:
            self._ready.pop(place, None)
        else:
            ports = change.after.get("ports") or [{}]
            self._ready[place] = (ready[0]["addresses"][0], ports[0].get("port"))
        self.look()

    def _check_for_bugs(self, service):
        for condition in service.get("status", {}).get("conditions", []):
            if condition["reason"] == "InternalError" and INJECTED_BUG not in condition["message"]:
                self.report("bugs", condition["message"])

    # -- invariants that hold at every moment --------------------------------------------------------------------------

    async def run(self):
        """Evaluate after every event, and again when a suspicion is due; never return."""
        while True:
            self._changed = trio.Event()
            due = self._evaluate()
            with trio.move_on_at(due):
                await self._changed.wait()

    def _evaluate(self):
        """Report suspicions that are overdue; return the time of the next evaluation."""
        now, seen, due = trio.current_time(), {}, math.inf
        self._record_cordons(now)
        for suspect, column, text, until in self._suspicions(now):
            since = seen[suspect] = self._suspects.get(suspect, now)
            limit = max(until, since + (READY_SECONDS if column == "false ready" else ORPHAN_SECONDS))
            if now >= limit:
                self.report(column, f"{text} since {since:.1f} s", once=suspect)
            else:
                due = min(due, limit)
        self._suspects = seen
        for host in self.world.hosts.values():
            self._check_memory(host)
        fronts = any(child.keeper for host in self.world.hosts.values() for child in host.machine.live())
        return min(due, now + DAEMON_SECONDS) if fronts else due  # a daemon sends no events

    def _check_memory(self, host):
        memory = host.machine.memory
        if host.settings.activation == ON_REQUEST and not memory.leaked and memory.available_bytes < 0:
            self.report("out of memory", f"{-memory.available_bytes} bytes are missing on {host.name}", once=host.name)

    def _suspicions(self, now):
        for host in self.world.hosts.values():
            if not host.running:
                continue
            settled = self._started.get(host.name, 0.0) + AGENT_SETTLES_SECONDS
            blind = host.machine.no_descriptors  # an agent that starts now cannot adopt before it has a descriptor
            for child in host.machine.live():
                if not (child.owners or child.stuck or blind):
                    yield child, "orphans", f"{child.name} (pid {child.pid}) runs unattended on {host.name}", settled
                if is_cordoned(host) and not (child.stuck or blind or host.name in self._still):
                    free = max(self._cordoned[host.name][0], self._started.get(host.name, 0.0)) + evict_deadline(host)
                    text = f"{child.name} (pid {child.pid}) runs on {host.name}, which is cordoned"
                    yield (child, "cordon"), "not given back", text, free
            for daemons in host.machine.daemons.values():
                yield from self._daemon_suspicions(host, daemons, now)
            if self._disturbed.get(host):
                continue
            settled = max(settled, self._calm_since.get(host, -math.inf) + API_SETTLES_SECONDS)
            for place, (address, port) in self._ready.items():
                if place[0] == host.name and not any(child.address[1] == port for child in host.machine.live(place[1])):
                    yield place, "false ready", f"{address}:{port} of {place[1]} on {host.name} is dead", settled

    def _daemon_suspicions(self, host, daemons, now):
        """Yield services on a shared daemon that are loaded twice, leave models behind, or are published without."""
        fronts = [child for child in host.machine.spawned if daemons.is_front(child)]
        for child in fronts:
            pids = daemons.holders(child)
            if child.exit is None and len(pids) > 1 and not _is_shared(child, fronts, daemons):
                yield (child, "twice"), "double", f"{child.name} is loaded twice on {host.name}, by {pids}", now
            published = any(
                place[0] == host.name and place[1] == child.name and port == child.address[1]
                for place, (_, port) in self._ready.items()
            )
            if child.exit is None and published and not pids and not (self._disturbed.get(host) or child.frozen):
                since = self._suspects.get((child, "hollow"), now)
                text = f"{child.name} on {host.name} is published, and no process has its model"
                yield (child, "hollow"), "false ready", text, since + HOLLOW_SECONDS
        runtime = daemons.engine.runtime
        for held, until in daemons.leftovers(host.machine.spawned, now):
            text = f"process {held.pid} of {runtime} on {host.name} has {held.name or held.file}, which no front keeps"
            yield (runtime, held.pid, held.file, "left"), "orphans", text, until
        if ended := daemons.shared.fake.ended:
            self.report("needless", f"processes {ended} of the owner's {runtime} on {host.name} were killed")

    # -- the expected state at the end ---------------------------------------------------------------------------------

    def problems(self, desired):
        """Return all differences from the desired state, each as (column, text)."""
        problems = [problem for name in desired.names for problem in self._problems_of(name, desired.specs.get(name))]
        failed = [
            child
            for host in self.world.hosts.values()
            for child in host.machine.live()
            if metal_error(child.script.words) is not None
        ]
        return problems + [("stuck", f"{each.name} (pid {each.pid}) runs on a GPU that has failed") for each in failed]

    def _problems_of(self, name, spec):
        service = self.store.get(_ref(SERVICES, name))
        on = {host.name: host.machine.live(name) for host in self.world.hosts.values()}
        count = sum(map(len, on.values()))
        ready = {place[0]: where for place, where in self._ready.items() if place[1] == name}
        if spec is None:
            if service is not None or count or ready:
                yield "lost", f"{name} was deleted: {count} engines, ready on {sorted(ready)}"
            return
        replicas = 0 if spec.get("suspend") else spec.get("replicas", 1)
        wanted = min(replicas, sum(not is_cordoned(host) for host in self.world.hosts.values()))
        if spec.get("extraArgs") and replicas:
            yield from _problems_of_refused(name, service, count, wanted)
            return
        if wanted and not count and all(is_on_request(host, spec) for host in self.world.hosts.values()):
            if ready or not _is_idle(service):
                yield "stuck", f"{name} is not loaded, but not idle; {_status_text(service)}"
            return
        yield from self._problems_of_running(name, spec, service, wanted)

    def _problems_of_running(self, name, spec, service, wanted):
        on = {host.name: host.machine.live(name) for host in self.world.hosts.values()}
        count = sum(map(len, on.values()))
        ready = {place[0]: where for place, where in self._ready.items() if place[1] == name}
        if count != wanted:
            column = "double" if count > wanted else "stuck"
            yield column, f"{name}: {count} engines, {wanted} wanted; {_status_text(service)}"
        for child in (child for children in on.values() for child in children):
            if (where := _differs(child, spec)) is not None:
                yield "lost", f"{name} runs with another spec: {where}"
        living = {host: one.address for host, ones in on.items() for one in ones}
        if ready != living:
            yield "stuck", f"{name} is published at {ready}, and runs at {living}; {_status_text(service)}"
        if wanted and self.store.get(_ref("services", name)) is None:
            yield "stuck", f"{name} has no Service"
        if missing := _missing_status(service, spec, wanted):
            yield "stuck", f"{name} {missing}; {_status_text(service)}"


@attrs.define(eq=False)
class DesiredServices:
    """The services as their user has last requested them: the expected state at the end."""

    names: tuple[str, ...]
    specs: dict[str, dict] = attrs.field(factory=dict)
    labels: dict[str, str] = attrs.field(factory=dict)
    touched: dict[str, float] = attrs.field(factory=dict)
    woken: dict[str, float] = attrs.field(factory=dict)  # when a service was last created, or changed so that it loads
    _lock: trio.Lock = attrs.field(factory=trio.Lock)  # a user makes one change after the other

    async def apply(self, world, name, **changes):
        """Create or change a service."""
        async with self._lock:
            self.touched[name] = trio.current_time()
            before = self.specs.get(name, {})
            if name not in self.specs or any(
                changes.get(each) != before.get(each) for each in WAKING if each in changes
            ):
                self.woken[name] = trio.current_time()
            self.specs[name] = {**self.specs.get(name, {"source": "builtin://one"}), **changes}
            labels = {"team": self.labels[name]} if name in self.labels else None
            with trio.fail_after(USER_TIMEOUT_SECONDS, shield=True):  # even if the faults stop now
                weights = "mlx" if self.specs[name].get("runtime") == "omlx" else "gguf"
                await world.apply(name, labels=labels, weights=weights, **self.specs[name])

    async def delete(self, world, name):
        """Delete a service."""
        async with self._lock:
            if name not in self.specs:
                return  # it was deleted meanwhile
            self.touched[name] = trio.current_time()
            self.specs.pop(name)
            with trio.fail_after(USER_TIMEOUT_SECONDS, shield=True):
                await world.delete(name)


def _is_shared(child, fronts, daemons):
    """Return whether several services serve one file: a daemon may hold it for each."""
    file = daemons.file_of(child)
    return len({each.name for each in fronts if each.exit is None and daemons.file_of(each) == file}) > 1


def evict_deadline(host):
    """Return how long a cordoned host may have engines: a check, the drain, and two exits in a row."""
    settings = host.settings
    ends = 2 * (settings.longest_grace_seconds + KILL_SECONDS)
    return CORDON_LOOK_SECONDS + settings.withdraw_seconds + settings.drain_seconds + ends


def is_cordoned(host):
    cordon = host.machine.cordon
    return cordon is not None and (cordon.until is None or host.utcnow() < cordon.until)


def is_on_request(host, spec):
    """Return whether a service is loaded on request on a host."""
    return (spec.get("activation", {}).get("mode") or host.settings.activation) == ON_REQUEST


def _is_idle(service):
    phase = ((service or {}).get("status") or {}).get("phase")
    return phase == "Idle" and _condition(service, "Available") == ("True", "Idle")


def _ref(kind, name):
    return Ref(kind, Key("default", name))


def _condition(service, kind):
    for one in ((service or {}).get("status") or {}).get("conditions", []):
        if one["type"] == kind:
            return one["status"], one["reason"]
    return "", ""


def _is_accepted(service):
    conditions = {one["type"]: one for one in service["status"]["conditions"]}
    accepted = conditions.get("Accepted", {})
    newest = accepted.get("observedGeneration") == service["metadata"]["generation"]
    return newest and accepted["status"] == "True"


def _status_text(service):
    if service is None:
        return "it is not there"
    status = service.get("status") or {}
    loaded = [one for one in status.get("conditions", []) if one["type"] == "Loaded"]
    words = f"{loaded[0]['reason']}: {loaded[0].get('message', '')[:80]}" if loaded else "no condition"
    return f"phase {status.get('phase')}, {words}"


def _problems_of_refused(name, service, count, wanted):
    """Yield problems of a refused spec: the older engine may continue, and the status must report the refusal."""
    if count > wanted:
        yield "double", f"{name}: {count} engines, {wanted} wanted at most"
    if _condition(service, "Accepted") != ("False", "Invalid"):
        yield "lost", f"{name} is refused, but reports {_condition(service, 'Accepted')}"


def _missing_status(service, spec, wanted):
    """Return what is missing in the status; empty if it is complete."""
    replicas = spec.get("replicas", 1)
    phase = "Suspended" if spec.get("suspend") else "Stopped" if not replicas else "Ready"
    if 0 < wanted < replicas:
        phase = "Progressing"
    if service is None or service.get("status", {}).get("phase") != phase:
        return f"is not {phase}"
    if _condition(service, "Loaded")[1] in ("", "Nonsense"):
        return "reports no engine, or another client's text"
    if wanted and _condition(service, "Loaded")[0] != "True":
        return f"is {phase}, but not Loaded"
    if wanted and not _is_accepted(service):  # an agent has not processed it yet, though its engine runs
        return "does not report that its newest spec is accepted"
    return ""


def _argument(child, flag):
    return child.argv[child.argv.index(flag) + 1]


def _differs(child, spec):
    context, model = str(spec.get("contextSize", 4096)), spec["source"].replace("/", "_")
    seen = _argument(child, "--ctx-size"), _argument(child, "--model").rpartition("/")[2]
    runtime = spec.get("runtime", "")
    if runtime_of(child.argv) != (runtime if runtime in RUNTIMES else ""):
        return f"it runs on another runtime than {spec.get('runtime', 'llamacpp')}"
    return None if seen == (context, model) else f"{seen} instead of {(context, model)}"


def _difference(change):
    """Return the top-level parts of an object that a write has changed."""
    if change.before is None:
        return "new"
    parts = []
    for part in ("metadata", "spec", "status", "endpoints", "ports"):
        before, after = change.before.get(part), change.after.get(part)
        if before != after:
            if isinstance(before, dict) and isinstance(after, dict):
                skip = {"resourceVersion", "managedFields"}
                keys = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
                parts += [f"{part}.{key}: {before.get(key)} -> {after.get(key)}" for key in keys if key not in skip]
            else:
                parts.append(f"{part}: {before} -> {after}")
    return "; ".join(parts)[:600]
