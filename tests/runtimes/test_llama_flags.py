import pytest

from llmkube.runtimes.llama_flags import (
    OWNED,
    check_extra_args,
    flags_in,
    parse_help,
    parse_switches,
    parse_version,
    render_extra_args,
)
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
            --override-tensor -ot --rope-scaling --api-key""",
        ),
        (ARGPARSE_HELP, "-h --help -m --model -fa --flash-attn --no-ui --no-webui"),
        ("", ""),
        ("command not found", ""),
    ],
)
def test_help_gives_its_flags_and_no_others(text, flags):
    """Every flag that the help lists is found, and none that its descriptions mention or say was removed."""
    assert parse_help(text) == frozenset(flags.split())


@pytest.mark.parametrize(
    ("text", "switches"),
    [
        (LLAMA_SERVER_HELP, "-h --help --usage -kvo --kv-offload -nkvo --no-kv-offload --mlock"),
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
def test_version_is_what_the_program_calls_it(text, version):
    """The version is found among other output, and an unknown format gives its first line."""
    assert parse_version(text) == version


@pytest.mark.parametrize("flag", [*sorted(OWNED), "--ctx_size"])
@pytest.mark.parametrize("form", ["{}", "{}=1"])
def test_a_flag_that_a_field_owns_is_refused_with_that_field(flag, form):
    """No spelling of an owned flag gets through, and the message says where to write it instead."""
    with pytest.raises(PlanError, match="leave it out here") as caught:
        check_extra_args(["--threads", "2", form.format(flag)])
    assert caught.value.field == "spec.extraArgs"
    assert OWNED[flag.replace("_", "-")] in str(caught.value)


REACHING = """
    --api-key --api-key-file --api_key -hf -hff --hf-repo --hf-token --hf-repo-draft -mu --model-url --docker-repo -dr
    --lora --lora-scaled --control-vector --mmproj -mm --mmproj-url --log-file --path --media-path --slot-save-path
    --rpc --ssl-key-file --ssl-cert-file --tools --tools-runtime --mcp-servers-json --mcp-servers-config --agent -ag
    --ui-mcp-proxy --webui-config-file --models-dir --models-preset --chat-template-file --grammar-file
    --json-schema-file -jf --lookup-cache-static -lcd --video-ffmpeg-dir --model-vocoder --any-new-file
"""


@pytest.mark.parametrize("flag", REACHING.split())
def test_a_flag_that_reaches_into_the_host_is_refused(flag):
    """Whoever may create a service cannot have the engine read files, run programs or download."""
    for arg in (flag, f"{flag}=/etc/passwd"):
        with pytest.raises(PlanError, match="reach into the host") as caught:
            check_extra_args([arg, "/etc/passwd"])
        assert flag.replace("_", "-") in str(caught.value)


@pytest.mark.parametrize(
    "args",
    [[], ["--threads", "4"], ["--threads=4"], ["-t", "4"], ["--temp", "-1"], ["--mlock"], ["--seed", "-42"],
     ["--chat-template", "{model}"], ["--no-context-shift"], ["--cache-ram", "0"], ["--reasoning-format", "none"],
     ["--chat-template-kwargs", '{"a": "--model"}'], ["--pooling", "cls"], ["--device", "none"]],
)  # fmt: skip
def test_what_only_tunes_the_engine_is_accepted(args):
    """Flags that no field owns, and values of any look, pass."""
    check_extra_args(args)


def engine(*flags):
    return EngineInfo("llama-server", "1", frozenset(flags))


@pytest.mark.parametrize(
    ("args", "flags", "rendered"),
    [
        (["--threads=4", "-s", "-1"], ["--threads"], ["--threads", "4", "-s", "-1"]),
        (["--x", "a=b"], ["--x"], ["--x", "a=b"]),
        (["--x=a=b"], ["--x"], ["--x", "a=b"]),
        (["--threads_http=4"], ["--threads-http"], ["--threads-http", "4"]),
        (["--mlock"], ["--mlock", "--load-mode"], ["--mlock"]),
        (["--mlock"], ["--load-mode"], ["--load-mode", "mmap+mlock"]),
        (["--no-mmap"], ["--load-mode"], ["--load-mode", "none"]),
        (["--no-mmap", "--threads", "2", "--mlock"], ["--load-mode", "--threads"],
         ["--load-mode", "mlock", "--threads", "2"]),
        (["--direct-io"], ["--load-mode"], ["--load-mode", "dio"]),
        (["--anything"], [], ["--anything"]),  # its help could not be read: the engine itself will judge
    ],
)  # fmt: skip
def test_arguments_are_spelled_as_the_engine_wants_them(args, flags, rendered):
    """Joined forms are split, and flags that newer engines replaced are translated for those only."""
    assert list(render_extra_args(args, engine(*flags))) == rendered


@pytest.mark.parametrize(("args", "flag"), [(["--nonsense"], "--nonsense"), (["--mlock"], "--mlock")])
def test_a_flag_that_the_engine_lacks_is_named(args, flag):
    """What the engine would die of at start is told before."""
    with pytest.raises(PlanError, match=f"has no flag {flag}"):
        list(render_extra_args(args, engine("--threads")))


def test_flags_that_exclude_each_other_are_named():
    """Two replaced flags without a common meaning are refused instead of one being dropped."""
    with pytest.raises(PlanError, match="--direct-io and --mlock exclude each other"):
        list(render_extra_args(["--mlock", "--direct-io"], engine("--load-mode")))


def test_values_are_not_flags():
    """A number below zero and a bare word are values."""
    assert flags_in(["--a", "-1", "b", "-c=2", "--d=e"]) == {"--a", "-c", "--d"}
