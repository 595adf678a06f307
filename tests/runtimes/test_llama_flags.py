import contextlib
import itertools
import re

import pytest

from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.runtimes.allowances import Allowances
from llmkube.runtimes.llama_flags import (
    UserFlag,
    check_pod_args,
    expand_spellings,
    known_flags,
    parse_help,
    parse_switches,
    parse_version,
    read_as_fields,
    read_extra_args,
    render_extra_args,
)
from llmkube.runtimes.llama_verdicts import VERDICTS, Kind
from llmkube.runtimes.plan import EngineInfo, PlanError

# As llama-server prints it: aliases padded, long ones with the description below, and flags that were removed
LLAMA_SERVER_HELP = """\
----- common params -----

-h,    --help, --usage                  print usage and exit
-m,    --model FNAME                    model path to load
                                        (env: LLAMA_ARG_MODEL)
-fa,   --flash-attn [on|off|auto]       set Flash Attention use ('on', 'off', or 'auto', default: 'auto')
-kvo,  --kv-offload, -nkvo, --no-kv-offload
                                        whether to enable KV cache offloading (default: enabled)
--mlock                                 DEPRECATED in favor of --load-mode: force system to keep model
                                        --in-text is not a flag
--override-tensor, -ot <tensor name pattern>=<buffer type>,...
                                        override tensor buffer type
--rope-scaling {none,linear,yarn}       RoPE frequency scaling method
--draft, --draft-n, --draft-max N       the argument has been removed. use --spec-draft-n-max or
                                        --spec-ngram-mod-n-max
--api-key KEY                           API key, see --api-key-file
--fim-qwen-1.5b-default                 use default Qwen 2.5 Coder 1.5B (note: can download weights from the internet)
"""

ARGPARSE_HELP = """\
usage: llmkube-llama-server --model FILE [flags]

It honours these flags, -x and --y, and no others.

options:
  -h, --help            show this help message and exit

model and memory:
  -m FILE, --model FILE
                        model file, as for --other
  -fa {on,off}, --flash-attn {on,off}
                        flash attention
  --no-ui, --no-webui   no web page
"""


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        (
            LLAMA_SERVER_HELP,
            """-h --help --usage -m --model -fa --flash-attn -kvo --kv-offload -nkvo --no-kv-offload --mlock
            --override-tensor -ot --rope-scaling --api-key --fim-qwen-1.5b-default""",
        ),
        (ARGPARSE_HELP, "-h --help -m --model -fa --flash-attn --no-ui --no-webui"),
        ("", ""),
        ("command not found", ""),
    ],
)
def test_help_gives_its_flags_and_no_others(text, flags):
    """Every flag of the help is found, and none that a description only mentions or that was removed."""
    assert parse_help(text) == frozenset(flags.split())


@pytest.mark.parametrize(
    ("text", "switches"),
    [
        (
            LLAMA_SERVER_HELP,
            "-h --help --usage -kvo --kv-offload -nkvo --no-kv-offload --mlock --fim-qwen-1.5b-default",
        ),
        (ARGPARSE_HELP, "-h --help --no-ui --no-webui"),
        ("-fa,   --flash-attn                     enable Flash Attention (default: disabled)", "-fa --flash-attn"),
        ("", ""),
    ],
)
def test_a_switch_is_a_flag_without_a_value(text, switches):
    """Flags whose names are followed by a placeholder or a choice take a value, all others do not."""
    assert parse_switches(text) == frozenset(switches.split())


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("version: 6401 (c4510dc9)\nbuilt with Apple clang\n", "6401 (c4510dc9)"),
        ("ggml_metal_init: x\nversion: 9000 (abc)\n", "9000 (abc)"),
        ("llama-server 1.2\n", "llama-server 1.2"),
        ("", ""),
    ],
)
def test_the_version_is_the_programs_own(text, version):
    """The version is found among other output, and an unknown format gives its first line."""
    assert parse_version(text) == version


OURS = sorted(flag for flag, verdict in VERDICTS.items() if verdict.kind is Kind.OURS)
REFUSED = sorted(flag for flag, verdict in VERDICTS.items() if verdict.kind is Kind.REFUSED)
FREE = sorted(flag for flag, verdict in VERDICTS.items() if verdict.kind in (Kind.ALLOWED, Kind.FIELD))


def test_a_flag_of_ours_is_refused_with_its_field():
    """Every spelling of a flag that LLMKube writes is refused, and the message names the field to use instead."""
    for flag, form in itertools.product([*OURS, "--fit_ctx"], ["{}", "{}=1"]):
        with pytest.raises(PlanError, match=r"is controlled by .*; remove it$") as caught:
            read_extra_args(["--threads", "2", form.format(flag)])
        assert caught.value.field == "spec.extraArgs"
        assert VERDICTS[flag.replace("_", "-")].detail in str(caught.value)


def test_a_flag_that_reaches_out_of_the_engine_is_refused_with_the_reason():
    """An editor of a service cannot have the engine read files, run programs or download, in any form."""
    for flag in [*REFUSED, "--api_key"]:
        for args in ([flag, "/etc/passwd"], [f"{flag}=/etc/passwd"], [flag]):
            with pytest.raises(PlanError, match="or allow it on this machine with") as caught:
                read_extra_args(args)
            assert VERDICTS[flag.replace("_", "-")].detail in str(caught.value)
            assert f"--allow-engine-flag {flag.replace('_', '-')}" in str(caught.value)


def test_a_flag_that_is_free_passes_with_its_value_and_not_without():
    """Each has the number of values in the table: a value as the next word or joined, or none."""
    for flag in FREE:
        if VERDICTS[flag].values:
            assert read_extra_args([flag, "1"]) == read_extra_args([f"{flag}=1"]) == (UserFlag(flag, ("1",)),)
            for args in ([flag], [flag, "--threads", "1"], [flag, "-c60000"]):
                with pytest.raises(PlanError, match="needs a value"):
                    read_extra_args(args)
        else:
            assert read_extra_args([flag]) == (UserFlag(flag),)
            with pytest.raises(PlanError, match="takes no value"):
                read_extra_args([f"{flag}=1"])


@pytest.mark.parametrize(
    "args",
    [[], ["--threads", "4"], ["--threads=4"], ["-t", "4"], ["--temp", "-1"], ["--mlock"], ["--seed", "-42"],
     ["--chat-template", "{model}"], ["--no-context-shift"], ["--cache-ram", "0"], ["--reasoning-format", "none"],
     ["--chat-template-kwargs", '{"a": "--model"}'], ["--pooling", "cls"], ["--device", "none"], ["--temp", "-.5"],
     ["--threads_http", "2"], ["--logit-bias", "15043-1"], ["--mlock", "--no-mmap", "-kvu"]],
)  # fmt: skip
def test_tuning_flags_are_accepted(args):
    """Flags without a field of their own, and all values that do not look like a flag, pass."""
    read_extra_args(args)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["-c60000"], "-c60000 is not among the allowed flags"),
        (["-m/path"], '"-m/path" is neither a flag nor the value of one'),
        (["-lv5"], "-lv5 is not among the allowed flags"),
        (["-t4"], "-t4 is not among the allowed flags"),
        (["-cr", "1"], "-cr is not among the allowed flags"),
        (["--fit-print", "on"], "--fit-print is not among the allowed flags"),
        (["--mlock", "stray"], '"stray" after --mlock is neither'),
        (["-1"], '"-1" is neither'),
        ([""], '"" is neither'),
        (["--threads", "1", "2"], '"2" after --threads is neither'),
        (["--"], '"--" is neither'),
        (["--chat-template", "a\nb"], "the value of --chat-template contains a control character"),
        (["--chat-template", "a\x1b[2J"], "the value of --chat-template contains a control character"),
        (["--chat-template", "a\0b"], "the value of --chat-template contains a control character"),
        (["--chat-template", "\ud800"], "the value of --chat-template contains a control character"),
        (["x\ny"], "'x"),
        (["--thre\nads", "4"], "neither a flag nor"),
        (["--grammar", "x" * 16385], "the value of --grammar is longer than 16384 bytes"),
        (["--mlock"] * 257, "too many arguments: 257; write at most 256"),
    ],
)
def test_an_ambiguous_word_is_refused(args, says):
    """Python's argparse accepts attached values and shortened names, so that only exact flags are accepted."""
    with pytest.raises(PlanError, match=r"spec\.extraArgs: ") as caught:
        read_extra_args(args)
    assert says in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--threads-http", "12000"], "--threads-http is '12000'; write a whole number from -1 to 256"),
        (["--threads-http=12000"], "--threads-http is '12000'; write a whole number from -1 to 256"),
        (["--threads_http", "12000"], "--threads-http is '12000'"),
        (["-t", "100000"], "-t is '100000'; write a whole number from -1 to 512"),
        (["--threads-draft", "100000"], "--threads-draft is '100000'; write a whole number from -1 to 512"),
        (["--ctx-checkpoints", "100000"], "--ctx-checkpoints is '100000'; write a whole number from 0 to 1024"),
        (["--swa-checkpoints", "-1"], "--swa-checkpoints is '-1'; write a whole number from 0 to 1024"),
        (["--cache-ram", "99999999999999999999"], "write a whole number from -1 to 1048576"),
        (["--cache-ram", "1e3"], "write a whole number from -1 to 1048576"),
        (["--repeat-last-n", "2000000000"], "write a whole number from -1 to 2097152"),
        (["--image-max-tokens", "2000000000"], "write a whole number from -1 to 65536"),
        (["-b", "2000000000"], "write a whole number from 1 to 2097152"),
        (["--top-p", "1.5"], "--top-p is '1.5'; write a number from 0.0 to 1.0"),
        (["--temp", "nan"], "write a number from -1e12 to 1e12"),
        (["--temp", "inf"], "write a number from -1e12 to 1e12"),
        (["--temp", "warm"], "write a number from -1e12 to 1e12"),
    ],
)
def test_a_number_out_of_its_range_is_refused(args, says):
    """The message has flag, value and range; the owner of the host may allow the flag."""
    with pytest.raises(PlanError, match=re.escape(says)) as caught:
        read_extra_args(args)
    assert caught.value.field == "spec.extraArgs"
    flag = args[0].partition("=")[0].replace("_", "-")
    assert read_extra_args(args, Allowances(flags=frozenset({flag})))[0].flag == flag


def test_a_number_in_its_range_passes():
    """The bounds are values themselves, as are those with a meaning of their own."""
    for args in ("-t -1", "-t 512", "--cache-ram -1", "-n -2", "-s 4294967295", "--temp 1e-3", "--rope-freq-base 1e7"):
        assert len(read_extra_args(args.split())) == 1


def test_a_flag_that_the_owner_allows_passes_by_its_exact_name_only():
    """A refused flag keeps its number of values, one without a verdict takes the next; other names stay refused."""
    owner = Allowances(frozenset({"--lora", "--brand-new", "-x"}))
    assert read_extra_args(["--lora", "/adapters/a.gguf", "--mlock"], owner) == (
        UserFlag("--lora", ("/adapters/a.gguf",)), UserFlag("--mlock")
    )  # fmt: skip
    assert read_extra_args(["--brand-new", "1", "2", "-x", "--mlock", "--brand-new=3"], owner) == (
        UserFlag("--brand-new", ("1", "2")), UserFlag("-x"), UserFlag("--mlock"), UserFlag("--brand-new", ("3",))
    )  # fmt: skip
    for args in (["--lora-scaled", "a:1"], ["-x4"], ["--lora", "a", "b"], ["--brand-new", "1", "--rpc", "a:1"]):
        with pytest.raises(PlanError):
            read_extra_args(args, owner)


def test_a_flag_is_found_by_all_names_and_a_switch_by_its_own():
    """A field's flag is found under any spelling; the opposite of a switch is not taken for it."""
    given, texts = expand_spellings([UserFlag("-ctk", ("q8_0",)), UserFlag("--no-warmup")])
    assert given == {"-ctk", "--cache-type-k", "--warmup", "--no-warmup"}
    assert texts == {"-ctk": "q8_0", "--cache-type-k": "q8_0", "--no-warmup": ""}


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--port", "1"], "--port is controlled by LLMKube"),
        (["-m=1"], "-m is controlled by the Model's spec.source"),
        (["--x", "1"], "--x is controlled by spec.x"),
        (["--api-key", "k"], "a command line is public"),
        (["--version"], "print something and exit"),
        (["a\0b"], "NUL"),
    ],
)
def test_a_pod_is_refused_flags_that_contradict_reveal_or_do_not_serve(args, says):
    """Flags that the pod's own command line has, and secrets, are refused in pods as well."""
    with pytest.raises(PlanError, match=r"spec\.extraArgs: ") as caught:
        check_pod_args(args, {"--x": "spec.x"})
    assert says in str(caught.value)


def test_a_pod_is_a_boundary_of_its_own():
    """The rules that protect a host do not apply to pods, whose author chooses image and command."""
    args = ["--lora", "/adapters/a.gguf", "--props", "-v", "--slots", "--no-such-flag", "-c60000", "--alias", "b",
            "--chat-template", "a\nb"]  # fmt: skip
    check_pod_args(args, {})
    assert [each.flag for each in known_flags(args)] == ["--lora", "--props", "-v", "--slots", "--alias",
                                                           "--chat-template"]  # fmt: skip


def engine(*flags):
    return EngineInfo("llama-server", "1", frozenset(flags))


@pytest.mark.parametrize(
    ("args", "flags", "rendered"),
    [
        (["--threads=4", "-s", "-1"], ["--threads", "-s"], ["--threads", "4", "-s", "-1"]),
        (["--grammar", "a=b"], ["--grammar"], ["--grammar", "a=b"]),
        (["--grammar=a=b"], ["--grammar"], ["--grammar", "a=b"]),
        (["--threads_http=4"], ["--threads-http"], ["--threads-http", "4"]),
        (["--mlock"], ["--mlock", "--load-mode"], ["--mlock"]),
        (["--mlock"], ["--load-mode"], ["--load-mode", "mmap+mlock"]),
        (["--no-mmap"], ["--load-mode"], ["--load-mode", "none"]),
        (["--no-mmap", "--threads", "2", "--mlock"], ["--load-mode", "--threads"],
         ["--load-mode", "mlock", "--threads", "2"]),
        (["--direct-io"], ["--load-mode"], ["--load-mode", "dio"]),
        (["--mmap"], ["--load-mode"], ["--load-mode", "mmap"]),
        (["--mmap", "--mlock"], ["--load-mode"], ["--load-mode", "mmap+mlock"]),
        (["--threads", "4"], [], ["--threads", "4"]),  # its help could not be read: the engine itself will decide
    ],
)  # fmt: skip
def test_arguments_are_spelled_as_the_engine_wants_them(args, flags, rendered):
    """Joined forms are split, and flags that newer engines replaced are translated for those only."""
    assert list(render_extra_args(read_extra_args(args), engine(*flags))) == rendered


@pytest.mark.parametrize(("args", "flag"), [(["-kvu"], "-kvu"), (["--mlock"], "--mlock")])
def test_a_flag_that_the_engine_lacks_is_named(args, flag):
    """A flag that would end the engine at startup is refused beforehand."""
    with pytest.raises(PlanError, match=f"has no flag {flag}"):
        list(render_extra_args(read_extra_args(args), engine("--threads")))


def test_flags_that_exclude_each_other_are_named():
    """Two replaced flags without a common meaning are refused instead of one being dropped."""
    with pytest.raises(PlanError, match="--direct-io and --mlock are mutually exclusive"):
        list(render_extra_args(read_extra_args(["--mlock", "--direct-io"]), engine("--load-mode")))


def read(*args, gpu=None, **spec):
    """Return context, slots, flash attention and layers, and the remaining arguments."""
    body = {"metadata": {"name": "chat"}, "spec": {"modelRef": "m", "extraArgs": list(args), **spec}}
    model = {"metadata": {"name": "m"}, "spec": {"source": "/m", "hardware": {"gpu": gpu} if gpu else {}}}
    service, found = read_as_fields(decode(InferenceService, body), decode(Model, model))
    layers = found.spec.hardware.gpu.layers if found.spec.hardware.gpu else None
    fields = service.spec
    return (fields.context_size, fields.parallel_slots, fields.flash_attention, layers), fields.extra_args


@pytest.mark.parametrize(
    ("args", "fields", "rest"),
    [
        ([], (None, 1, None, None), ()),
        (["-c", "8192", "--mlock"], (8192, 1, None, None), ("--mlock",)),
        (["--ctx-size=8192"], (8192, 1, None, None), ()),
        (["--ctx_size", "0"], (0, 1, None, None), ()),
        (["-c", "1024", "-c", "2048"], (2048, 1, None, None), ()),
        (["-np", "4", "--temp", "-1"], (None, 4, None, None), ("--temp", "-1")),
        (["-fa", "--jinja"], (None, 1, True, None), ("--jinja",)),
        (["-fa"], (None, 1, True, None), ()),
        (["--flash-attn", "off"], (None, 1, False, None), ()),
        (["-ngl", "20"], (None, 1, None, 20), ()),
        (["--gpu-layers", "all"], (None, 1, None, -1), ()),
        (["--chat-template", "-c", "-t", "2"], (None, 1, None, None), ("--chat-template", "-c", "-t", "2")),
    ],
)  # fmt: skip
def test_an_argument_becomes_its_field(args, fields, rest):
    """By every name and form of a flag, the last one applies; a value stays a value."""
    assert read(*args) == (fields, rest)


def test_an_argument_that_equals_its_field_is_no_contradiction():
    """Both are read as one."""
    assert read("-c", "8192", "-np", "2", contextSize=8192, parallelSlots=2) == ((8192, 2, None, None), ())
    assert read("-ngl", "99", gpu={"layers": 99}) == ((None, 1, None, 99), ())


@pytest.mark.parametrize(
    ("args", "spec", "words"),
    [
        (["-c", "8192"], {"contextSize": 4096}, "--ctx-size is 8192 and spec.contextSize is 4096"),
        (["-np", "4"], {"parallelSlots": 2}, "--parallel is 4 and spec.parallelSlots is 2"),
        (["-fa", "off"], {"flashAttention": True}, "--flash-attn is False and spec.flashAttention is True"),
        (["-ngl", "20"], {"gpu": {"layers": 99}}, "--n-gpu-layers is 20 and the Model's"),
        (["-c", "many"], {}, "--ctx-size is 'many'; write a whole number"),
        (["-c", "-5"], {}, "--ctx-size is '-5'; write 0"),
        (["-np", "-1"], {}, "--parallel is '-1'; write 1 to 64"),
        (["-c"], {}, "-c needs a value"),
    ],
)
def test_an_argument_without_or_against_a_field_is_refused(args, spec, words):
    """The message names the flag, the field and both values."""
    with pytest.raises(PlanError) as caught:
        read(*args, **spec)
    assert words in str(caught.value)
    assert caught.value.field == "spec.extraArgs"


@pytest.mark.parametrize(
    ("version", "refused"),
    [
        ("9060 (1a2b3c4)", True),
        ("7492 (1a2b3c4)", True),
        ("b8000", True),
        ("9061 (1a2b3c4)", False),
        ("7491 (1a2b3c4)", False),
        ("llmkube-llama-server 0.1.0 (xllamacpp 2026.3.8123)", True),
        ("llmkube-llama-server 0.1.0 (xllamacpp 2026.10.11549)", False),
        ("0 (unknown)", False),
    ],
)
def test_a_flag_is_refused_for_the_builds_in_which_it_is_unsafe(version, refused):
    """The message names the CVE and the first build without it; a version without a build refuses nothing."""
    args = read_extra_args(["--sleep-idle-seconds", "600"])
    program = EngineInfo("llama-server", version, frozenset({"--sleep-idle-seconds"}))
    says = r"--sleep-idle-seconds is refused: the build b\d+ of the engine has CVE-2026-43631 .* after b9060"
    with pytest.raises(PlanError, match=says) if refused else contextlib.nullcontext():
        assert list(render_extra_args(args, program)) == ["--sleep-idle-seconds", "600"]
