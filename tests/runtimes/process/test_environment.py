import pytest

from llmkube.k8s.crd.placement import EnvVar
from llmkube.runtimes.allowances import Allowances
from llmkube.runtimes.plan import PlanError
from llmkube.runtimes.process.environment import ALLOWED, FIXED_VARIABLES, plan_environment


def test_a_tuning_variable_passes_and_the_later_of_two_applies():
    """Allowed variables reach the engine, an absent value is an empty one, and a repeated name is set once."""
    env = [EnvVar(name="OMP_NUM_THREADS", value="1"), EnvVar(name="GGML_METAL_BF16_DISABLE"),
           EnvVar(name="CUDA_VISIBLE_DEVICES", value="0"), EnvVar(name="OMP_NUM_THREADS", value="2")]  # fmt: skip
    assert plan_environment(env) == (
        ("OMP_NUM_THREADS", "2"), ("GGML_METAL_BF16_DISABLE", ""), ("CUDA_VISIBLE_DEVICES", "0")
    )  # fmt: skip


@pytest.mark.parametrize(
    "name",
    ["LD_PRELOAD", "LD_LIBRARY_PATH", "DYLD_INSERT_LIBRARIES", "PATH", "HOME", "PYTHONPATH", "HTTPS_PROXY", "HF_TOKEN",
     "KUBECONFIG", "SSH_AUTH_SOCK", "GGML_BACKEND_PATH", "GGML_METAL_PATH_RESOURCES", "MTL_CAPTURE_ENABLED", "omp_x",
     "LLAMA_SOME_FILE", "OMP_NUM_THREADS\n", "", "OMP_TOOL", "OMP_TOOL_LIBRARIES", "OMP_TOOL_VERBOSE_INIT",
     "OMP_TOOL_ANYTHING", "OMP_DISPLAY_ENV", "OMP_NUM_THREADS_ALL", "KMP_CPUINFO_FILE", "MTL_HUD_REPORT_URL",
     "MTL_SHADER_VALIDATION_DUMP_PIPELINES", "LLAMA_SERVER_SLOTS_DEBUG", "GGML_BACKTRACE_LLDB",
     "GGML_METAL_CAPTURE_COMPUTE", "LC_ANYTHING", "LLMKUBE_ENGINE", "OMP_\u0661", "X" * 10_000],
)  # fmt: skip
def test_a_variable_that_could_reach_the_host_is_refused_by_name(name):
    """A variable that loads code, redirects or reveals is refused, and so is every unknown one."""
    with pytest.raises(PlanError, match="or allow it on this machine with") as caught:
        plan_environment([EnvVar(name=name, value="x")])
    assert caught.value.field == "spec.env"
    assert name.strip()[:64] in str(caught.value)
    assert "--allow-engine-variable" in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("name", ["LLAMA_ARG_HOST", "LLAMA_ARG_HF_REPO", "LLAMA_API_KEY", "LLAMA_LOG_FILE"])
def test_flags_in_disguise_are_refused(name):
    """llama-server's variables for its flags cannot bypass the checks on flags."""
    with pytest.raises(PlanError, match=f"{name} sets a flag of the engine"):
        plan_environment([EnvVar(name=name, value="x")])


def test_a_value_from_elsewhere_is_refused_and_not_left_out():
    """A reference to a Secret is an error that names the variable, never an empty value."""
    reference = {"secretKeyRef": {"name": "s", "key": "k"}}
    with pytest.raises(PlanError, match="KMP_AFFINITY takes its value from elsewhere"):
        plan_environment([EnvVar(name="KMP_AFFINITY", value_from=reference)])


@pytest.mark.parametrize(
    ("name", "value"),
    [("OMP_PLACES", "{0:4}:2"), ("OMP_SCHEDULE", "dynamic,4"), ("KMP_AFFINITY", "granularity=fine,compact,1,0"),
     ("GOMP_CPU_AFFINITY", "0-3 5"), ("TZ", "Europe/Berlin"), ("TZ", "America/Argentina/Ushuaia"), ("TZ", "UTC"),
     ("LANG", "de_DE.UTF-8"), ("LC_ALL", "C"), ("OMP_NUM_THREADS", ""), ("HSA_OVERRIDE_GFX_VERSION", "10.3.0")],
)  # fmt: skip
def test_the_values_that_people_write_pass(name, value):
    """Lists, places, zones and locales are passed unchanged."""
    assert plan_environment([EnvVar(name=name, value=value)]) == ((name, value),)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("OMP_NUM_THREADS", "a\0b", "control character"),
        ("OMP_NUM_THREADS", "1\nimport os", "control character"),
        ("OMP_NUM_THREADS", "1\x85", "control character"),
        ("OMP_NUM_THREADS", "1" * 257, "longer than 256 characters"),
        ("OMP_PLACES", "/etc/passwd", "write only ASCII letters"),
        ("TZ", ":/etc/passwd", "write a time zone"),
        ("TZ", "/etc/passwd", "write a time zone"),
        ("TZ", "Europe/../../etc", "write a time zone"),
        ("LC_ALL", "../evil", "write a locale"),
        ("LANG", "/tmp/evil", "write a locale"),
    ],
)
def test_a_value_that_could_lead_elsewhere_is_refused(name, value, says):
    """Line breaks, paths and very long texts are no value of a tuning variable; the message names the variable."""
    with pytest.raises(PlanError, match=f"the value of {name} ") as caught:
        plan_environment([EnvVar(name=name, value=value)])
    assert says in str(caught.value)
    assert str(caught.value).isprintable()


def test_a_flood_of_variables_is_refused():
    """The maximum is more than any service needs."""
    with pytest.raises(PlanError, match="too many variables: 65; write at most 64"):
        plan_environment([EnvVar(name="TZ", value="UTC")] * 65)


def test_a_variable_that_the_owner_allows_passes_by_its_exact_name_and_may_be_a_path():
    """The owner's own list is by name; its values still have a maximum length and no line breaks."""
    owner = Allowances(variables=frozenset({"GGML_METAL_PATH_RESOURCES"}))
    allowed = [EnvVar(name="GGML_METAL_PATH_RESOURCES", value="/opt/metal")]
    assert plan_environment(allowed, owner) == (("GGML_METAL_PATH_RESOURCES", "/opt/metal"),)
    for variable in (
        EnvVar(name="GGML_METAL_PATH_RESOURCES", value="/opt\n"),
        EnvVar(name="GGML_METAL_PATH_RESOURCES", value="x" * 4097),
        EnvVar(name="GGML_METAL_PATH_RESOURCES_2", value="x"),
        EnvVar(name="OMP_PLACES", value="/opt/metal"),
    ):
        with pytest.raises(PlanError):
            plan_environment([variable], owner)


@pytest.mark.parametrize("name", sorted(ALLOWED))
def test_every_allowed_name_has_a_description(name):
    """Every name on the list has a description, and LLMKube itself sets none of them."""
    assert ALLOWED[name]
    assert name not in FIXED_VARIABLES
