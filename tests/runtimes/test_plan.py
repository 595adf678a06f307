import attrs
import pytest

from llmkube.runtimes.plan import EngineInfo, LaunchPlan, Placeholder

PLAN = LaunchPlan(
    argv=(
        Placeholder.PROGRAM,
        "--model",
        Placeholder.MODEL,
        "--host",
        Placeholder.HOST,
        "--port",
        Placeholder.PORT,
        "--api-key-file",
        Placeholder.KEYS,
        "--echo",
        "{port}",
    ),
    env=(("OMP_NUM_THREADS", "2"), ("GGML_X", "1")),
    runtime="llamacpp",
    alias="demo",
    weights_identity="sha256:aa",
)


def test_rendering_fills_the_slots_and_nothing_else():
    """A user's argument that only looks like a slot stays unchanged."""
    engine = EngineInfo("/bin/x", "1", frozenset())
    assert PLAN.render(engine, model="/m.gguf", host="127.0.0.1", port=80, keys="/k") == (
        "/bin/x", "--model", "/m.gguf", "--host", "127.0.0.1", "--port", "80", "--api-key-file", "/k",
        "--echo", "{port}"
    )  # fmt: skip


def test_a_plan_of_another_version_is_started_with_the_front_of_this_one():
    """For any Python and module in its journal: the engine's arguments after them stay."""
    recorded = ("/old/python", "-m", "llmkube.cli.daemon_engine.ollama.program", "--ollama", Placeholder.PROGRAM)
    plan = attrs.evolve(PLAN, argv=recorded, runtime="ollama")
    engine = EngineInfo("/bin/ollama", "1", frozenset(), front=("/python", "-m", "front"))
    words = plan.render(engine, model="/m", host="127.0.0.1", port=80, keys="")
    assert words == ("/python", "-m", "front", "--ollama", "/bin/ollama")


@pytest.mark.parametrize(
    "change",
    [
        {"argv": (*PLAN.argv, "--jinja")},
        {"argv": tuple(map(str, PLAN.argv))},
        {"env": (("OMP_NUM_THREADS", "3"), ("GGML_X", "1"))},
        {"env": ()},
        {"runtime": "other"},
        {"weights_identity": "sha256:bb"},
    ],
)
def test_the_digest_changes_with_inputs_that_need_a_restart(change):
    """Another command line, environment, engine or file is another digest."""
    assert attrs.evolve(PLAN, **change).digest != PLAN.digest


@pytest.mark.parametrize("change", [{"not_honoured": ("spec.image",)}, {"env": PLAN.env[::-1]}, {}])
def test_the_digest_ignores_irrelevant_fields(change):
    """Neither the order of variables nor fields without effect require a restart."""
    assert attrs.evolve(PLAN, **change).digest == PLAN.digest
