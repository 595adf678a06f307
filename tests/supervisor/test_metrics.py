import datetime

import trio
from prometheus_client import generate_latest

from llmkube.k8s.resource import Key
from llmkube.k8s.wire.reasons import Reason
from llmkube.supervisor.host.sample import Level, Sample
from llmkube.supervisor.memory.budget import host_budget
from llmkube.supervisor.memory.capacity import MemoryView
from llmkube.supervisor.memory.eviction import Cause, Skip
from llmkube.supervisor.memory.reservation import Need, Request, Reservation, Role
from llmkube.supervisor.metrics import agent_registry
from llmkube.supervisor.power.meter import EngineUse, PowerMeter, PowerView
from llmkube.supervisor.power.sample import STALE_SECONDS, PowerProblem, PowerSample
from llmkube.supervisor.power.token_energy import TokenCount
from llmkube.supervisor.values.cordon import Cordon
from llmkube.supervisor.values.host_credential import CredentialState, HostCredential
from llmkube.supervisor.values.lifecycle import ServiceView
from llmkube.weights.download.progress import Progress


class Agent:
    def __init__(self, **views):
        self.views = views

    def services(self):
        return {Key("ns", name): view for name, view in self.views.items()}


def scrape(agent):
    return generate_latest(agent_registry(agent.services)).decode()


def test_figures_are_those_of_the_snapshot():
    """Each service has its health, its restarts and its current reason, and no other series."""
    text = scrape(
        Agent(
            chat=ServiceView(
                Reason.LOADED, port=1, pid=5, restarts=2, engine="llamacpp", build="b7000", weights_format="gguf"
            ),
            bad=ServiceView(Reason.CRASH_LOOP, restarts=7),
        )
    )
    assert "llmkube_metal_agent_managed_processes 1.0" in text
    assert 'llmkube_metal_agent_process_healthy{name="chat",namespace="ns"} 1.0' in text
    assert 'llmkube_metal_agent_process_healthy{name="bad",namespace="ns"} 0.0' in text
    assert 'llmkube_metal_agent_process_restarts_total{name="bad",namespace="ns"} 7.0' in text
    assert 'service_state{name="bad",namespace="ns",reason="CrashLoopBackOff"} 1.0' in text
    sample = 'engine_info{build="b7000",engine="llamacpp",format="gguf",name="chat",namespace="ns"} 1.0'
    assert [line.partition("agent_")[2] for line in text.splitlines() if "agent_engine_info{" in line] == [sample]
    of_earlier = scrape(Agent(chat=ServiceView(Reason.LOADED, port=1, pid=5, engine="ollama")))
    assert 'engine_info{build="unknown",engine="ollama",format="unknown",name="chat",namespace="ns"} 1.0' in of_earlier


def test_a_service_that_is_gone_leaves_no_series():
    agent = Agent(chat=ServiceView(Reason.LOADED))
    registry = agent_registry(agent.services)
    generate_latest(registry)
    agent.views = {}
    assert 'name="chat"' not in generate_latest(registry).decode()


def test_downloads_are_exported_while_they_run():
    """Each download has a series for each known figure while it runs."""
    running = {
        "https://h/a.gguf": Progress("downloading", 50, 100, 10.0, 5.0),
        "hf://o/r/b.gguf": Progress("resolving"),
    }
    registry = agent_registry(Agent().services, lambda: running)
    text = generate_latest(registry).decode()
    assert 'llmkube_download_bytes{source="https://h/a.gguf"} 50.0' in text
    assert 'llmkube_download_total_bytes{source="https://h/a.gguf"} 100.0' in text
    assert 'llmkube_download_bytes_per_second{source="https://h/a.gguf"} 10.0' in text
    assert 'llmkube_download_left_seconds{source="https://h/a.gguf"} 5.0' in text
    assert 'llmkube_download_bytes{source="hf://o/r/b.gguf"} 0.0' in text
    assert 'total_bytes{source="hf://o/r/b.gguf"}' not in text
    running.clear()
    assert "gguf" not in generate_latest(registry).decode()


def test_memory_is_exported_with_its_estimate_error():
    """A host's budget and level, each service's estimate against its memory, and every eviction are exported."""
    gib = 1 << 30
    chat, new = Key("ns", "chat"), Key("ns", "new")
    need = Need(11 * gib, estimated_bytes=10 * gib)
    serving = Reservation(2, chat, need, resident_bytes=9 * gib, peak_bytes=11 * gib)
    held = (Reservation(1, chat, Need(5 * gib), role=Role.PREDECESSOR, resident_bytes=gib), serving)
    waits = (Request(new, Need(5 * gib, estimated_bytes=5 * gib)),)
    sample = Sample(64 * gib, 20 * gib, Level.WARNING)
    seen = MemoryView(
        Level.WARNING, sample, host_budget(64 * gib), 7, held, waits, {Cause.CRITICAL: 2}, {Skip.CANNOT_HELP: 3}
    )
    text = generate_latest(agent_registry(Agent().services, memory=lambda: seen)).decode()
    prefix, chat = "llmkube_metal_agent_", '{name="chat",namespace="ns"}'
    assert f"{prefix}memory_free_bytes 7.0" in text
    assert f"{prefix}memory_pressure_level 1.0" in text
    assert f"{prefix}memory_reserved_bytes{chat} 1.7179869184e+10" in text
    assert f"{prefix}memory_estimate_error_ratio{chat} 0.10000000000000009" in text
    assert f'{prefix}memory_estimated_bytes{{name="new",namespace="ns"}}' in text
    assert f'{prefix}memory_measured_bytes{{name="new",namespace="ns"}}' not in text
    assert f'{prefix}evictions_total{{cause="critical"}} 2.0' in text
    assert f'{prefix}evictions_total{{cause="displaced"}} 0.0' in text
    assert f'{prefix}evictions_skipped_total{{reason="cannot_help"}} 3.0' in text


def test_a_host_without_samples_has_no_memory_series():
    """Without a sample of the host there is no figure that could be taken for one."""
    assert "memory_budget" not in scrape(Agent())


def test_power_is_exported_under_the_guides_names():
    """A measured domain has a gauge of its own, and energy a counter; an old figure has none."""
    seen = PowerView({"gpu": 31.5, "combined": 40.0}, {"gpu": 900.0})
    text = generate_latest(agent_registry(Agent().services, power=lambda: seen)).decode()
    assert "llmkube_metal_agent_apple_power_gpu_watts 31.5" in text
    assert "llmkube_metal_agent_apple_power_combined_watts 40.0" in text
    assert 'llmkube_metal_agent_apple_energy_joules_total{domain="gpu"} 900.0' in text
    assert "ane" not in text
    stale = generate_latest(agent_registry(Agent().services, power=lambda: PowerView({}, {"gpu": 900.0}))).decode()
    assert not [line for line in stale.splitlines() if "_watts" in line and not line.startswith("#")]
    assert "joules_total" in stale


async def test_a_source_that_dies_leaves_counters_and_no_gauge(autojump_clock):
    """Scrapes have watts and joules per token while samples come, then the reason, and no frozen figure."""

    class Cpu:
        seconds = 0.0

        def of_process(self, pid):
            return self.seconds

        def of_host(self):
            return 2 * self.seconds

    cpu, key = Cpu(), Key("ns", "chat")
    uses = {key: EngineUse(7)}
    meter = PowerMeter("apple", ("cpu", "gpu"), lambda: uses, cpu)
    registry = agent_registry(Agent().services, power=meter.view)
    gauges = ("power_combined_watts", "service_power_watts", "service_joules_per_token")
    for second in range(0, 80, 2):
        await trio.sleep(2)
        cpu.seconds += 1.0
        if second % 30 == 0:
            uses[key] = EngineUse(7, TokenCount(7, 10.0 * second, trio.current_time()))
        meter.take(PowerSample({"cpu": 4.0, "gpu": 20.0, "combined": 24.0}, 2.0))
    text = generate_latest(registry).decode()
    assert 'llmkube_metal_agent_service_power_watts{name="chat",namespace="ns"} 22.0' in text
    assert 'llmkube_metal_agent_service_joules_per_token{name="chat",namespace="ns"} 2.2' in text
    assert "power_problem{" not in text
    meter.failed(PowerProblem.KILLED)
    await trio.sleep(STALE_SECONDS)
    dead = generate_latest(registry).decode()
    assert not [line for line in dead.splitlines() if any(each in line.partition(" ")[0] for each in gauges)]
    assert 'llmkube_metal_agent_power_problem{reason="Killed"} 1.0' in dead
    for counter in ('apple_energy_joules_total{domain="gpu"}', "service_energy_joules_total{"):
        (kept,) = (line for line in text.splitlines() if counter in line)
        assert kept in dead, "a counter has gone, or grows without a source"


def test_a_host_with_rapl_has_domains_as_labels():
    """The names of Apple's figures are not used for others."""
    seen = PowerView({"package": 50.0, "combined": 50.0}, {"package": 900.0}, source="rapl")
    text = generate_latest(agent_registry(Agent().services, power=lambda: seen)).decode()
    assert 'llmkube_metal_agent_power_watts{domain="package"} 50.0' in text
    assert 'llmkube_metal_agent_energy_joules_total{domain="package"} 900.0' in text
    assert "apple" not in text


def test_the_credential_has_a_state_and_an_end():
    """The expiry is exported only if it is known."""

    def shown(*args):
        return generate_latest(agent_registry(Agent().services, credential=lambda: HostCredential(*args))).decode()

    assert "llmkube_metal_agent_credential_refused 0.0" in shown(CredentialState.NOT_RENEWED, "x")
    assert "credential_expiry" not in shown()
    text = shown(CredentialState.REFUSED, "x", "", 1.5e9)
    assert "llmkube_metal_agent_credential_refused 1.0" in text
    assert "llmkube_metal_agent_credential_expiry_timestamp_seconds 1.5e+09" in text


def test_a_cordon_has_its_end_where_it_has_one():
    """1 and the time while the host is cordoned; no time without an end."""

    def text(cordon):
        return generate_latest(agent_registry(Agent().services, cordon=lambda: cordon)).decode()

    assert "llmkube_metal_agent_cordoned 0.0" in text(None)
    assert "llmkube_metal_agent_cordoned 1.0" in text(Cordon())
    assert "cordon_end" not in text(Cordon())
    end = datetime.datetime.fromtimestamp(86400, datetime.UTC)
    assert "llmkube_metal_agent_cordon_end_timestamp_seconds 86400.0" in text(Cordon(end))
