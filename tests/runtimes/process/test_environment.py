import pytest

from llmkube.k8s.crd.placement import EnvVar
from llmkube.runtimes.plan import PlanError
from llmkube.runtimes.process.environment import plan_environment


def test_what_tunes_an_engine_passes_and_the_later_of_two_wins():
    """Allowed variables reach the engine, an absent value is an empty one, and a repeated name counts once."""
    env = [EnvVar(name="OMP_NUM_THREADS", value="1"), EnvVar(name="GGML_METAL_NDEBUG"),
           EnvVar(name="CUDA_VISIBLE_DEVICES", value="0"), EnvVar(name="OMP_NUM_THREADS", value="2")]  # fmt: skip
    assert plan_environment(env) == (
        ("OMP_NUM_THREADS", "2"), ("GGML_METAL_NDEBUG", ""), ("CUDA_VISIBLE_DEVICES", "0")
    )  # fmt: skip


@pytest.mark.parametrize(
    "name",
    ["LD_PRELOAD", "LD_LIBRARY_PATH", "DYLD_INSERT_LIBRARIES", "PATH", "HOME", "PYTHONPATH", "HTTPS_PROXY", "HF_TOKEN",
     "KUBECONFIG", "SSH_AUTH_SOCK", "GGML_BACKEND_PATH", "GGML_METAL_PATH_RESOURCES", "MTL_CAPTURE_ENABLED", "omp_x",
     "LLAMA_SOME_FILE", "OMP_NUM_THREADS\n", ""],
)  # fmt: skip
def test_what_could_reach_the_host_is_refused_by_name(name):
    """A variable that loads code, redirects or reveals is refused, and so is every one that nobody thought of."""
    with pytest.raises(PlanError, match="must not be set on a host") as caught:
        plan_environment([EnvVar(name=name, value="x")])
    assert caught.value.field == "spec.env"
    assert name in str(caught.value)


@pytest.mark.parametrize("name", ["LLAMA_ARG_HOST", "LLAMA_ARG_HF_REPO", "LLAMA_API_KEY", "LLAMA_LOG_FILE"])
def test_flags_in_disguise_are_refused(name):
    """llama-server's variables for its flags cannot get around the checks on flags."""
    with pytest.raises(PlanError, match=f"{name} sets a flag of the engine"):
        plan_environment([EnvVar(name=name, value="x")])


def test_a_value_from_elsewhere_is_refused_and_not_left_out():
    """A reference to a Secret is an error that names the variable, never an empty value."""
    reference = {"secretKeyRef": {"name": "s", "key": "k"}}
    with pytest.raises(PlanError, match="OMP_X takes its value from elsewhere"):
        plan_environment([EnvVar(name="OMP_X", value_from=reference)])


def test_a_value_that_no_process_can_take_is_refused():
    """A NUL character, which would make starting the process fail, is named before."""
    with pytest.raises(PlanError, match="NUL"):
        plan_environment([EnvVar(name="OMP_X", value="a\0b")])
