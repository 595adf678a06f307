"""What `llmkube agent status` says of power."""

import pytest

from llmkube.cli.commands.programs.background.power_status import power_words, without_figures

MAC = """\
# HELP llmkube_metal_agent_apple_power_gpu_watts What it draws, estimated by macOS.
llmkube_metal_agent_apple_power_cpu_watts 3.25
llmkube_metal_agent_apple_power_gpu_watts 31.5
llmkube_metal_agent_apple_power_combined_watts 34.75
llmkube_metal_agent_service_joules_per_token{name="chat",namespace="ns"} 1.875
llmkube_metal_agent_service_power_watts{name="chat",namespace="ns"} 30.0
llmkube_metal_agent_service_power_watts{name="embed",namespace="ns"} 0.0
llmkube_metal_agent_service_energy_joules_total{name="chat",namespace="ns"} 1000.0
"""

RAPL = """\
llmkube_metal_agent_power_watts{domain="package"} 50.0
llmkube_metal_agent_power_watts{domain="combined"} 50.0
"""

DEAD = """\
llmkube_metal_agent_power_problem{reason="NotPermitted"} 1.0
llmkube_metal_agent_service_energy_joules_total{name="chat",namespace="ns"} 1000.0
"""


@pytest.mark.parametrize(
    ("exposition", "said"),
    [
        (
            MAC,
            {
                "power": "34.8 W (cpu 3.2, gpu 31.5)",
                "draws": "30.0 W, 1.9 J per token  ns/chat\n0.0 W                    ns/embed",
            },
        ),
        (
            RAPL,
            {"power": "50.0 W (package 50.0)"},
        ),
        (
            'llmkube_metal_agent_apple_power_gpu_watts 31.5\nllmkube_metal_agent_power_problem{reason="Stalled"} 1.0\n',
            {"power": "gpu 31.5 W; the rest is not measured: Stalled"},
        ),
        (
            DEAD,
            {"power": "not measured: NotPermitted; see `llmkube agent logs`"},
        ),
        ("", {}),
        ("llmkube_metal_agent_cordoned 0.0\nnonsense {{ 1\nllmkube_metal_agent_apple_power_cpu_watts x\n", {}),
    ],
    ids=["a Mac", "Linux", "a part that stands still", "a source that has died", "no metrics", "no power"],
)
def test_power_is_said_of_the_host_and_of_each_service(exposition, said):
    """A line for each; why it is not measured; nothing where no source was asked for."""
    assert power_words(exposition) == said


@pytest.mark.parametrize(
    ("joules", "said"), [(0.04321, "0.043"), (1.0, "1"), (9.4, "9.4"), (99.6, "100"), (4321.0, "4321")]
)
def test_joules_are_two_digits_and_no_exponent(joules, said):
    """A large model on a processor takes hundreds of joules per token."""
    series = f'llmkube_metal_agent_service_joules_per_token{{name="chat",namespace="ns"}} {joules}\n'
    assert power_words(series)["draws"] == f"{said} J per token  ns/chat"


def test_a_line_per_change_has_no_figures():
    """Watts change all the time; that they are not measured any more is a change."""
    assert without_figures({"agent": "runs", **power_words(MAC)}) == {"agent": "runs"}
    assert without_figures(power_words(DEAD)) == power_words(DEAD)
