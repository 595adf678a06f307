import pytest

from llmkube.base.errors import UserError
from llmkube.runtimes.allowances import Allowances, parse_allowances


def test_an_owners_list_is_taken_by_exact_names():
    """Flags and variables are listed as written, and an empty list allows nothing."""
    found = parse_allowances(["--lora", "-hf", "--fim-qwen-1.5b-default"], ["OMP_DISPLAY_ENV"], reserved=["--host"])
    assert found == Allowances(frozenset({"--lora", "-hf", "--fim-qwen-1.5b-default"}), frozenset({"OMP_DISPLAY_ENV"}))
    assert found
    assert not parse_allowances([], [], reserved=[])


@pytest.mark.parametrize(
    ("flags", "variables", "says"),
    [
        (["--lora-*"], [], "--allow-engine-flag: '--lora-\\*' is not a flag"),
        (["lora"], [], "--allow-engine-flag: 'lora' is not a flag"),
        (["--lora /x"], [], "--allow-engine-flag: '--lora /x' is not a flag"),
        (["--host"], [], "--allow-engine-flag: --host is set by LLMKube itself"),
        ([], ["OMP_.*"], "--allow-engine-variable: 'OMP_\\.\\*' is not the name of a variable"),
        ([], ["A=1"], "--allow-engine-variable: 'A=1' is not"),
        ([], ["OMP_X\n"], "--allow-engine-variable: "),
        ([], ["LLMKUBE_ENGINE"], "--allow-engine-variable: LLMKUBE_ENGINE is reserved for LLMKube"),
    ],
)
def test_a_pattern_is_refused_with_its_setting(flags, variables, says):
    """Neither a family of names nor a flag that LLMKube itself writes can be allowed."""
    with pytest.raises(UserError, match=f"^{says}"):
        parse_allowances(flags, variables, reserved=["--host"])
