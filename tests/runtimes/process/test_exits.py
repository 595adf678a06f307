"""Recorded output of llama.cpp and similar engines at their exit, and its classification.

The lines were provoked with the bundled engine (xllamacpp 2026.10): a bad flag, cut and overwritten model files, a port
in use, a context that does not fit. Those of upstream's llama-server and of the dynamic linkers are as they print them.
"""

import pytest

from llmkube.runtimes.process.exits import ExitCause, classify, given_up, loading_phase

BAD_FLAG = """\
usage: llmkube-llama-server --model FILE [flags]
llmkube-llama-server: error: --frobnicate is not honoured by the engine that comes with LLMKube; --help lists the flags that are"""  # noqa: E501

BAD_VALUE = """\
usage: llmkube-llama-server --model FILE [flags]
llmkube-llama-server: error: argument -c/--ctx-size: invalid int value: 'many'"""

NO_FILE = "llmkube-llama-server: cannot read the model /nope.gguf: No such file or directory"
NOT_GGUF = "llmkube-llama-server: the model text.gguf is not a GGUF file: it does not start with GGUF"

TRUNCATED = """\
0.00.004.013 I srv          init: loading model
0.00.004.067 I srv    load_model: loading model 'trunc.gguf'
0.00.004.758 E llama_model_load: error loading model: tensor 'blk.1.ffn_down.weight' data is \
not within the file bounds, model is corrupted or incomplete
0.00.004.768 E llama_model_load_from_file_impl: failed to load model
0.00.004.770 E cmn  common_init_: failed to load model 'trunc.gguf'
0.00.004.771 E srv    load_model: failed to load model, 'trunc.gguf'
0.00.004.774 I srv    operator(): operator(): cleaning up before exit...
0.00.005.133 E srv          init: exiting due to model loading error
llmkube-llama-server: the engine could not serve trunc.gguf; see its output above"""

OVERWRITTEN = """\
0.00.005.472 E read: string length 16028972198127468549 exceeds maximum 1073741824
0.00.005.486 E gguf_init_from_reader: failed to read key-value pairs
0.00.005.505 E llama_model_load: error loading model: llama_model_loader: failed to load model from corrupt.gguf
0.00.005.519 E llama_model_load_from_file_impl: failed to load model
llmkube-llama-server: the engine could not serve corrupt.gguf; see its output above"""

PORT = "llmkube-llama-server: cannot listen on 127.0.0.1 port 18124: Address already in use"
UPSTREAM_PORT = """\
srv          init: using 7 threads for HTTP server
start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 8080
srv    operator(): operator(): cleaning up before exit..."""

ADDRESS = "llmkube-llama-server: cannot listen on 203.0.113.7 port 18126: Cannot assign requested address"

CONTEXT = """\
0.00.005.795 W llama_context: n_ctx_seq (20000000) > n_ctx_train (512) -- possible training context overflow
0.00.451.256 E ggml_aligned_malloc: insufficient memory (attempted to allocate 19531.25 MB)
0.00.451.291 E ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 20480000000
0.00.525.327 E llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache
0.00.525.355 E cmn  common_init_: failed to create context with model 'demo.gguf'
0.00.525.823 E srv          init: exiting due to model loading error
llmkube-llama-server: the engine could not serve demo.gguf; see its output above"""

METAL = """\
ggml_metal_synchronize: error: command buffer 0 failed with status 5
error: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)
llama_decode: failed to decode, ret = -3"""

CACHE = """\
0.00.016.691 E llama_init_from_model: quantized V cache requires flash_attn to be enabled
0.00.016.711 E cmn  common_init_: failed to create context with model 'demo.gguf'
llmkube-llama-server: the engine could not serve demo.gguf; see its output above"""

THREADS = """\
llmkube-llama-server: serving demo.gguf on http://127.0.0.1:18125
terminate called after throwing an instance of 'std::system_error'
  what():  Resource temporarily unavailable"""

ALLOCATION = """\
terminate called after throwing an instance of 'std::bad_alloc'
  what():  std::bad_alloc"""

ASSERTION = "/src/ggml/src/ggml.c:3152: GGML_ASSERT(ggml_nelements(a) == ne0*ne1*ne2) failed"

LIBRARY = """\
/opt/llama/llama-server: error while loading shared libraries: libgomp.so.1: cannot open shared object file: No such \
file or directory"""
DYLD = "dyld[4711]: Library not loaded: @rpath/libggml-metal.dylib"

UPSTREAM_FLAG = "error: invalid argument: --frobnicate"


@pytest.mark.parametrize(
    ("code", "words", "cause", "quoted"),
    [
        (2, BAD_FLAG, ExitCause.BAD_FLAG, "--frobnicate is not honoured"),
        (2, BAD_VALUE, ExitCause.BAD_FLAG, "invalid int value: 'many'"),
        (1, UPSTREAM_FLAG, ExitCause.BAD_FLAG, "--frobnicate"),
        (1, NO_FILE, ExitCause.BAD_MODEL, "No such file or directory"),
        (1, NOT_GGUF, ExitCause.BAD_MODEL, "is not a GGUF file"),
        (1, TRUNCATED, ExitCause.BAD_MODEL, "'blk.1.ffn_down.weight' data is not within the file bounds"),
        (1, OVERWRITTEN, ExitCause.BAD_MODEL, "failed to read key-value pairs"),
        (1, PORT, ExitCause.PORT_TAKEN, "port 18124: Address already in use"),
        (1, UPSTREAM_PORT, ExitCause.PORT_TAKEN, "couldn't bind HTTP server socket"),
        (1, ADDRESS, ExitCause.BAD_ADDRESS, "203.0.113.7"),
        (1, CONTEXT, ExitCause.OUT_OF_MEMORY, "attempted to allocate 19531.25 MB"),
        (1, METAL, ExitCause.OUT_OF_MEMORY, "kIOGPUCommandBufferCallbackErrorOutOfMemory"),
        (-6, ALLOCATION, ExitCause.OUT_OF_MEMORY, "std::bad_alloc"),
        (1, CACHE, ExitCause.BAD_SETTING, "quantized V cache requires flash_attn"),
        (-6, THREADS, ExitCause.CRASH, "terminate called"),
        (-6, ASSERTION, ExitCause.CRASH, "GGML_ASSERT(ggml_nelements(a)"),
        (127, LIBRARY, ExitCause.MISSING_LIBRARY, "libgomp.so.1"),
        (-6, DYLD, ExitCause.MISSING_LIBRARY, "libggml-metal.dylib"),
        (-11, "", ExitCause.CRASH, "SIGSEGV"),
        (-4, "", ExitCause.CRASH, "this build may not support this processor"),
        (-15, "", ExitCause.SIGNAL, "SIGTERM"),
        (0, "", ExitCause.UNKNOWN, "it exited with code 0"),
        (1, "goodbye", ExitCause.UNKNOWN, ""),
        (None, PORT, ExitCause.PORT_TAKEN, "Address already in use"),
        (None, "", ExitCause.UNKNOWN, ""),
    ],
)
def test_an_exit_is_classified_by_its_output(code, words, cause, quoted):
    """The cause is found, and the decisive line is quoted."""
    why = classify(code, words.splitlines())
    assert why.cause is cause
    assert quoted in str(why)


def test_an_out_of_memory_kill_is_distinguished_from_any_other():
    """SIGKILL is the kernel's if its counter of such kills has increased, and another sender's otherwise."""
    words = ["llm_load: 4 of 9 tensors"]
    assert classify(-9, words, memory_kills=1).cause is ExitCause.MEMORY_KILL
    assert "spec.contextSize" in classify(-9, words, memory_kills=1).next_step
    assert classify(-9, words).cause is ExitCause.SIGNAL
    assert classify(1, words, memory_kills=1).cause is ExitCause.UNKNOWN


def test_a_kill_on_a_host_short_of_memory_is_suspected():
    """Without such a counter, a host that was short of memory is named, even for an adopted engine."""
    assert "memory was short" in str(classify(-9, [], memory_short=True))
    assert classify(None, ["all slots are idle"], memory_short=True).cause is ExitCause.MEMORY_KILL
    assert classify(None, [], memory_kills=1).cause is ExitCause.MEMORY_KILL
    assert classify(None, ["unknown argument"], memory_short=True).cause is ExitCause.BAD_FLAG
    assert classify(-15, [], memory_short=True).cause is ExitCause.SIGNAL


def test_a_kill_for_a_signature_is_reported_for_any_output():
    """MacOS reports the cause of the kill; the engine's output and memory pressure are irrelevant."""
    for code, words in ((-9, []), (None, ["failed to allocate"])):
        found = classify(code, words, memory_short=True, for_signature=True)
        assert (found.cause, "codesign --force" in str(found)) == (ExitCause.BAD_SIGNATURE, True)


def test_the_timestamp_of_a_line_is_not_quoted():
    """The quoted line starts with the engine's text."""
    assert ": ggml_aligned_malloc: insufficient memory" in classify(1, CONTEXT.splitlines()).summary


def test_a_very_long_line_is_cut():
    """A condition is read by people."""
    assert len(classify(1, [f"unknown argument {'x' * 5000}"]).summary) < 400


@pytest.mark.parametrize(
    ("line", "phase"),
    [
        ("0.00.009.257 I llama_model_loader: loaded meta data with 24 key-value pairs", "reading the model's header"),
        ("0.00.010.691 I load_tensors: loading model tensors, this can take a while...", "loading tensors"),
        ("0.00.011.342 I llama_kv_cache:        CPU KV buffer size =     4.00 MiB", "allocating the context"),
        ("0.00.018.054 I cmn  common_init_: warming up the model with an empty run - please wait ...", "warming up"),
        ("hello", ""),
    ],
)
def test_the_progress_of_a_load_is_in_its_last_lines(line, phase):
    """The newest line with progress decides, after any earlier ones."""
    assert loading_phase([line]) == phase
    assert loading_phase(["load_tensors: x", line, "no news"]) == (phase or "loading tensors")


VOCABULARY = """\
0.01.127.384 I common_speculative_init_result: loading draft model 'draft.gguf'
0.02.195.487 I spec common_specu: adding speculative implementation 'draft-simple'
0.02.195.545 E spec common_specu: the target and draft vocabs are not compatible
0.02.212.344 E srv    load_model: failed to initialize speculative decoding context: draft model vocab type must"""
UNTYPED = "0.00.435.793 I spec common_specu: no implementations specified for speculative decoding"
CAPPED = "0.00.712.412 W srv    load_model: the slot context (16384) exceeds the training context of the model (8192)"
SWA = "0.01.060.022 W srv    load_model: swa_full is not supported by this model, it will be disabled"
FLASH = "sched_reserve: Flash Attention was auto, set to disabled"  # of a CUDA build (lmstudio-bug-tracker issue 1454)
GROK = "0.00.100.000 W llama_init_from_model: flash_attn is not compatible with Grok - forcing off"
NO_LAYER = "load_tensors: offloaded 0/33 layers to GPU"


@pytest.mark.parametrize(
    ("argv", "log", "found"),
    [
        ("-md d.gguf --spec-type draft-simple", VOCABULARY, "spec.speculativeDecoding.draftModelRef (the engine's log"),
        ("-md d.gguf", UNTYPED, "spec.speculativeDecoding.draftModelRef (the engine's log: spec common_specu: no"),
        ("--ctx-size 512", UNTYPED, ""),
        ("--ctx-size 16384", CAPPED, "spec.contextSize (the engine's log: srv    load_model: the slot context (16384)"),
        ("--swa-full", SWA, "spec.extraArgs --swa-full (the engine's log: "),
        ("--flash-attn on", GROK, "spec.flashAttention (the engine's log: "),
        ("--flash-attn auto", FLASH, FLASH),
        ("--flash-attn off", FLASH, ""),
        ("--n-gpu-layers 33", NO_LAYER, "the Model's spec.hardware.gpu.layers (the engine's log: load_tensors: off"),
        ("--n-gpu-layers 99", NO_LAYER, NO_LAYER),  # the default
        ("--n-gpu-layers 0", NO_LAYER, ""),
    ],
)  # fmt: skip
def test_what_a_load_gave_up_is_read_from_its_lines(argv, log, found):
    """Only what the command line asks for can be given up; without a field that asks, only the line is reported."""
    assert "".join(map(str, given_up(log.splitlines(), argv.split()))).startswith(found)
    assert bool(given_up(log.splitlines(), argv.split())) is bool(found)
