import attrs
import pytest

from llmkube.runtimes.plan import EngineInfo, Placeholder
from llmkube.runtimes.process.memory_demand import demand_of
from llmkube.weights.estimate.demand import ALL_LAYERS, DEFAULT_CACHE_RAM_BYTES, Demand

MODERN = EngineInfo("llama-server", "9000", frozenset(("--cache-ram", "--ctx-checkpoints", "--flash-attn")))
OLD = EngineInfo("llama-server", "1", frozenset(("--flash-attn",)), frozenset(("--flash-attn", "-fa")))
MIB = 1 << 20


def read(words, engine=MODERN):
    return demand_of([Placeholder.PROGRAM, "--model", Placeholder.MODEL, *words.split()], engine, machine="x86_64")


def test_no_flags_are_the_engines_own_defaults():
    """A line without memory flags has llama-server's own defaults."""
    assert read("--host 127.0.0.1 --port 1") == Demand()


def test_an_engine_without_prompt_cache_has_none():
    """A build from before `--cache-ram` and checkpoints keeps neither."""
    assert (read("", OLD).cache_ram_bytes, read("", OLD).checkpoints) == (0, 0)
    assert read("").cache_ram_bytes == DEFAULT_CACHE_RAM_BYTES


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        ("--ctx-size 32768", "context", 32768),
        ("-c=8192", "context", 8192),
        ("--parallel 4", "slots", 4),
        ("-np -1", "slots", 1),
        ("-b 1024", "batch", 1024),
        ("--ubatch-size 256", "ubatch", 256),
        ("-ctk q8_0", "cache_type_k", "q8_0"),
        ("--cache-type-v Q4_0", "cache_type_v", "q4_0"),
        ("--flash-attn on", "flash_attention", "on"),
        ("-fa off", "flash_attention", "off"),
        ("--n-gpu-layers 99", "device_layers", 99),
        ("-ngl all", "device_layers", ALL_LAYERS),
        ("-ngl 0", "device_layers", 0),
        ("--kv-unified", "unified_kv", True),
        ("--kv-unified --no-kv-unified", "unified_kv", False),
        ("--no-kv-offload", "kv_offload", False),
        ("--swa-full", "swa_full", True),
        ("--no-repack", "repack", False),
        ("--no-mmap", "mmap", False),
        ("--load-mode none", "mmap", False),
        ("--load-mode mmap+mlock", "mmap", True),
        ("--cache-ram 512", "cache_ram_bytes", 512 * MIB),
        ("-cram -1", "cache_ram_bytes", None),
        ("--ctx-checkpoints 4", "checkpoints", 4),
        ("-cms 64", "checkpoint_step", 64),
        ("--spec-draft-ctx-size 65536", "draft_context", 65536),
        ("--reranking", "embedding", True),
        ("--spec-type draft-mtp,ngram-mod", "speculation", ("draft-mtp", "ngram-mod")),
        ("--model-draft d.gguf", "draft_path", "d.gguf"),
        ("--mmproj p.gguf", "projector_path", "p.gguf"),
        ("-ot a=CPU,b=CUDA0", "overrides", (("a", "CPU"), ("b", "CUDA0"))),
        ("--ctx-size 1 --ctx-size 2", "context", 2),
        ("--ctx-size lots", "context", 0),
        ("--ctx_size 7", "context", 7),
    ],
)
def test_a_flag_is_read(words, field, value):
    """Each flag decides its one field, the last of several applies, and an invalid one changes nothing."""
    assert read(words) == attrs.evolve(Demand(), **{field: value})


def test_flash_attention_as_a_switch():
    """In builds where it is a switch, the word after it is another flag and not its value."""
    assert read("--flash-attn --ctx-size 512", OLD).flash_attention == "on"
    assert read("--flash-attn --ctx-size 512", OLD).context == 512


def test_experts_of_the_first_layers():
    """`--n-cpu-moe` is a pattern for each layer, so that layer 1 is not layer 10."""
    patterns = [pattern for pattern, buffer in read("--n-cpu-moe 2").overrides if buffer == "CPU"]
    assert [pattern.split("_")[0] for pattern in patterns] == [r"blk\.0\.ffn", r"blk\.1\.ffn"]


@pytest.mark.parametrize("words", ["--ctx-size", "--n-cpu-moe 99999999999", "-ot", "--cache-ram x", "--", "= =="])
def test_no_line_is_too_odd(words):
    """A line that the engine will refuse is still read, quickly."""
    assert read(words).slots == 1
