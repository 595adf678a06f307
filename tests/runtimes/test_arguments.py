import pytest

from llmkube.k8s.crd.serving import SGLangConfig, VLLMConfig
from llmkube.runtimes.arguments import CommandLine, flags_in, refuse_owned
from llmkube.runtimes.plan import PlanError


def test_a_default_of_ours_yields_to_the_user():
    """A flag that the user writes, in any spelling, is not written again."""
    line = CommandLine(frozenset({"-tp"}))
    line.default("--tensor-parallel-size", "-tp", value=2)
    line.default("--host", value="::")
    assert line.argv == ["--host", "::"]


@pytest.mark.parametrize(
    ("block", "flags", "words", "honoured"),
    [
        (VLLMConfig(), {"max_model_len": "--m"}, [], set()),
        (VLLMConfig(max_model_len=1), {"max_model_len": "--m"}, ["--m", "1"], {"spec.c.maxModelLen"}),
        (VLLMConfig(max_model_len=1), {}, [], set()),
        (VLLMConfig(enable_prefix_caching=True), {"enable_prefix_caching": "--on|--off"}, ["--on"],
         {"spec.c.enablePrefixCaching"}),
        (VLLMConfig(enable_prefix_caching=False), {"enable_prefix_caching": "--on|--off"}, ["--off"],
         {"spec.c.enablePrefixCaching"}),
        (VLLMConfig(enable_prefix_caching=False), {"enable_prefix_caching": "--on"}, [],
         {"spec.c.enablePrefixCaching"}),
        (SGLangConfig(lora_target_modules=("a", "b")), {"lora_target_modules": "--t"}, ["--t", "a", "b"],
         {"spec.c.loraTargetModules"}),
    ],
)  # fmt: skip
def test_a_block_of_options_is_written_by_its_table(block, flags, words, honoured):
    """Each given field finds its flag; a switch that is off is written if the engine's default is on."""
    line = CommandLine()
    line.add_block(block, "spec.c", flags)
    assert (line.argv, line.honoured) == (words, honoured)


def test_a_flag_is_found_in_either_form():
    """`--a=1`, `--a 1` and `--a_b` are found; numbers and values are not flags."""
    assert flags_in(["--a=1", "--b", "-1", "--c_d", "x"]) == {"--a", "--b", "--c-d"}
    with pytest.raises(PlanError, match=r"--port is controlled by spec\.containerPort"):
        refuse_owned(["--port=1"], {"--port": "spec.containerPort"})
