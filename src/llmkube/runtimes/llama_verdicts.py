"""A verdict per flag of llama-server: whether `spec.extraArgs` may hold it on a host, and why if not.

Who may edit an InferenceService must not be able to read the host's files, run its programs, open its network or slow
down what else runs there. So what is not listed here is refused: a new build's new flag waits for a verdict. A test
holds this table against the `--help` of the engines that it finds.

Sources: llama-server's own `--help` and tools/server/README.md, builds 6401 to 11434
(https://github.com/ggml-org/llama.cpp).
"""

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Final

import attrs


class Kind(Enum):
    """What becomes of a flag in `spec.extraArgs`."""

    ALLOWED = "reaches the engine as it is"
    FIELD = "says what a field says too: reaches the engine unless the field says something else"
    OURS = "is written by LLMKube, from a field or by itself: refused, with where to write it instead"
    REFUSED = "would reach out of the engine: refused, unless the host's owner allows it by name"


@attrs.frozen
class Verdict:
    """What may be done with one flag.

    Attributes:
        kind: What becomes of it.
        spellings: All its names, and those of its opposite.
        values: How many words follow it as its value.
        says: The field for FIELD, who decides for OURS, why for REFUSED; empty for ALLOWED.
        in_pods: Whether it holds in pods as well; there nothing of a host is in reach.
    """

    kind: Kind
    spellings: tuple[str, ...]
    values: int = 0
    says: str = ""
    in_pods: bool = False


# Each table has flags by what is said of them: `a|b` are names of one flag.

# -- what only tunes the engine, or sets what a request could ask for anyway ------------------------------------------

_SWITCHES: Final = """
    --swa-full  --perf|--no-perf  -e|--escape|--no-escape  --repack|-nr|--no-repack  --no-host
    --mmap|--no-mmap  --mlock  --direct-io|-dio|--no-direct-io|-ndio  --check-tensors  --op-offload|--no-op-offload
    --offline  --ignore-eos  -bs|--backend-sampling  -kvu|--kv-unified|-no-kvu|--no-kv-unified
    --cache-idle-slots|--no-cache-idle-slots  --context-shift|--no-context-shift  -sp|--special  --spm-infill
    -cb|--cont-batching|-nocb|--no-cont-batching  --mmproj-auto|--no-mmproj|--no-mmproj-auto
    --mmproj-offload|--no-mmproj-offload  --cache-prompt|--no-cache-prompt  --metrics  --no-ui|--no-webui
    --reasoning-preserve|--no-reasoning-preserve  --skip-chat-parsing|--no-skip-chat-parsing
    --prefill-assistant|--no-prefill-assistant  --spec-draft-cpu-moe|-cmoed|--cpu-moe-draft
    --spec-draft-backend-sampling|--no-spec-draft-backend-sampling  --spec-default
    --log-prefix|--no-log-prefix  --log-timestamps|--no-log-timestamps
"""
_WITH_VALUE: Final = """
    -t|--threads  -tb|--threads-batch  -C|--cpu-mask  -Cr|--cpu-range  --cpu-strict  --poll
    -Cb|--cpu-mask-batch  -Crb|--cpu-range-batch  --cpu-strict-batch  --poll-batch  -n|--predict|--n-predict  --keep
    --rope-freq-base  --rope-freq-scale  --yarn-ext-factor  --yarn-attn-factor  --yarn-beta-slow  --yarn-beta-fast
    -gan|--grp-attn-n  -gaw|--grp-attn-w
    -dt|--defrag-thold  -lm|--load-mode  -lzm|--lazy-mode  --numa  -dev|--device  -sm|--split-mode  -ts|--tensor-split
    -mg|--main-gpu  -ncffn|--n-cpu-ffn
    --samplers  -s|--seed  --sampler-seq|--sampling-seq  --temp|--temperature  --top-k  --top-p  --min-p
    --top-nsigma|--top-n-sigma  --xtc-probability  --xtc-threshold  --typical|--typical-p  --repeat-last-n
    --repeat-penalty  --presence-penalty  --frequency-penalty  --dry-multiplier  --dry-base  --dry-allowed-length
    --dry-penalty-last-n  --dry-sequence-breaker  --adaptive-target  --adaptive-decay  --dynatemp-range  --dynatemp-exp
    --mirostat  --mirostat-lr  --mirostat-ent  -l|--logit-bias  --grammar  -j|--json-schema
    --kv-unified-per-slot  -ctxcp|--ctx-checkpoints|--swa-checkpoints  -cms|--checkpoint-min-step  -cram|--cache-ram
    -r|--reverse-prompt  --pooling  -mmdev|--mmproj-device  --image-min-tokens  --image-max-tokens
    --mtmd-batch-max-tokens  --video-fps  --video-timestamp-interval  --tags  --embd-normalize
    --chat-template  --chat-template-kwargs  -to|--timeout  --sse-ping-interval  --threads-http  --cache-reuse
    --reasoning-format  -rea|--reasoning  --reasoning-effort  -sps|--slot-prompt-similarity  --sleep-idle-seconds
    --spec-draft-type-k|-ctkd|--cache-type-k-draft  --spec-draft-type-v|-ctvd|--cache-type-v-draft
    --spec-draft-threads|-td|--threads-draft  --spec-draft-threads-batch|-tbd|--threads-batch-draft
    --spec-draft-cpu-mask|-Cd|--cpu-mask-draft  --spec-draft-cpu-range|-Crd|--cpu-range-draft
    --spec-draft-cpu-strict|--cpu-strict-draft  --spec-draft-poll|--poll-draft
    --spec-draft-cpu-mask-batch|-Cbd|--cpu-mask-batch-draft  --spec-draft-cpu-range-batch|-Crbd|--cpu-range-batch-draft
    --spec-draft-cpu-strict-batch|--cpu-strict-batch-draft  --spec-draft-poll-batch|--poll-batch-draft
    --spec-draft-override-tensor|-otd|--override-tensor-draft
    --spec-draft-n-cpu-moe|--spec-draft-ncmoe|-ncmoed|--n-cpu-moe-draft
    --spec-draft-sampling  --spec-draft-n-min|--draft-min|--draft-n-min  --spec-draft-p-split|--draft-p-split
    --spec-draft-device|-devd|--device-draft  --spec-draft-ngl|-ngld|--gpu-layers-draft|--n-gpu-layers-draft
    --spec-draft-ctx-size|-cd|--ctx-size-draft  --spec-synth-len  --spec-synth-rates
    --spec-ngram-mod-n-min  --spec-ngram-mod-n-max  --spec-ngram-mod-n-match  --spec-ngram-size-n  --spec-ngram-size-m
    --spec-ngram-min-hits  --spec-ngram-simple-size-n  --spec-ngram-simple-size-m  --spec-ngram-simple-min-hits
    --spec-ngram-map-k-size-n  --spec-ngram-map-k-size-m  --spec-ngram-map-k-min-hits  --spec-ngram-map-k4v-size-n
    --spec-ngram-map-k4v-size-m  --spec-ngram-map-k4v-min-hits
"""

# -- what a field says too --------------------------------------------------------------------------------------------

_FIELD_SWITCHES: Final[Mapping[str, str]] = {
    "spec.noKvOffload": "-nkvo|--no-kv-offload|-kvo|--kv-offload",
    "spec.moeCPUOffload": "-cmoe|--cpu-moe",
    "spec.noWarmup": "--warmup|--no-warmup",
    "spec.jinja": "--jinja|--no-jinja",
    "spec.mode": "--embedding|--embeddings --rerank|--reranking",
}
_FIELDS: Final[Mapping[str, str]] = {
    "spec.contextSize": "-c|--ctx-size",
    "spec.parallelSlots": "-np|--parallel",
    "spec.flashAttention": "-fa|--flash-attn",
    "the Model's spec.hardware.gpu.layers": "-ngl|--gpu-layers|--n-gpu-layers",
    "spec.aliases": "-a|--alias",
    "spec.batchSize": "-b|--batch-size",
    "spec.uBatchSize": "-ub|--ubatch-size",
    "spec.cacheTypeK": "-ctk|--cache-type-k",
    "spec.cacheTypeV": "-ctv|--cache-type-v",
    "spec.moeCPULayers": "-ncmoe|--n-cpu-moe",
    "spec.tensorOverrides": "-ot|--override-tensor",
    "spec.metadataOverrides": "--override-kv",
    "spec.ropeScaling.type": "--rope-scaling",
    "spec.ropeScaling.factor": "--rope-scale",
    "spec.ropeScaling.originalContext": "--yarn-orig-ctx",
    "spec.reasoningBudget": "--reasoning-budget",
    "spec.reasoningBudgetMessage": "--reasoning-budget-message",
    "spec.speculativeDecoding.draftModelRef": "-md|--model-draft|--spec-draft-model",
    "spec.speculativeDecoding.type": "--spec-type",
    "spec.speculativeDecoding.nDraftMax": "--spec-draft-n-max|--draft-max|--draft|--draft-n",
    "spec.speculativeDecoding.pMin": "--spec-draft-p-min|--draft-p-min",
}

# -- what is written here: these flags are on every command line ------------------------------------------------------

_OURS: Final[Mapping[str, str]] = {
    "the Model's spec.source": "-m|--model",
    "LLMKube, which listens where only the host's own gateway or the cluster reaches it": "--host",
    "LLMKube, which takes a free one": "--port",
    "LLMKube, which places models itself": "--fit|-fit --fit-target|-fitt --fit-ctx|-fitc",
    "LLMKube, which asks /health whether the engine is ready": "--api-prefix",
}
_OUR_SWITCHES: Final[Mapping[str, str]] = {
    "LLMKube, which takes a port of its own": "--reuse-port",
}
_WEB: Final = "LLMKube: web pages reach a model by the gateway, which looks at their origin"
_LOGGED: Final = "LLMKube, which reads in the log how much memory the engine takes, and keeps prompts out of it"
_SLOTS: Final = "LLMKube, which sees by /slots whether an engine that works still moves"
_OURS_ON_HOSTS: Final[Mapping[str, str]] = {
    "LLMKube, which gives each engine a key of its own": "--api-key-file",
    _WEB: "--cors-origins --cors-methods --cors-headers --ui-config|--webui-config",
    _LOGGED: "-lv|--verbosity|--log-verbosity --log-colors",
}
_OUR_SWITCHES_ON_HOSTS: Final[Mapping[str, str]] = {
    _WEB: "--cors-credentials|--no-cors-credentials --ui|--webui",
    _LOGGED: "-v|--verbose|--log-verbose --log-disable --log-jsonl|--no-log-jsonl",
    _SLOTS: "--slots|--no-slots",
}

# -- what reaches out of the engine -----------------------------------------------------------------------------------

_READS: Final = "names a file or a folder of the host"
_WRITES: Final = "makes the engine write to the host's disk"
_DOWNLOADS: Final = "makes the engine download, past the rules for a Model's source"
_RUNS: Final = "lets requests run programs on the host, or send requests from it"
_PUBLIC: Final = "holds a secret, and a command line is public"
_EXITS: Final = "makes the engine print something and exit"
_PRIORITY: Final = "takes processor time from what else runs on the host"
_SETTINGS: Final = "lets every client change the settings of the engine for all others"
_SEVERAL: Final = "is for a server of several models, which LLMKube does not know of"

_REFUSED: Final[Mapping[str, str]] = {
    _READS: """
        --lora --lora-scaled --control-vector --control-vector-scaled -mm|--mmproj -mv|--model-vocoder
        --tts-speaker-file -lcs|--lookup-cache-static --path --media-path --ui-config-file|--webui-config-file
        --ssl-key-file --ssl-cert-file
    """,
    f"{_READS}: write the grammar itself, by --grammar": "--grammar-file",
    f"{_READS}: write the schema itself, by --json-schema": "-jf|--json-schema-file",
    f"{_READS}: write the template itself, by --chat-template": "--chat-template-file",
    _WRITES: "-lcd|--lookup-cache-dynamic --slot-save-path --log-file --log-prompts-dir",
    _RUNS: "--video-ffmpeg-dir --rpc --tools --tools-runtime --mcp-servers-config --mcp-servers-json",
    _DOWNLOADS: """
        -mu|--model-url -mmu|--mmproj-url -dr|--docker-repo -hf|-hfr|--hf-repo -hff|--hf-file -hfv|-hfrv|--hf-repo-v
        -hffv|--hf-file-v --spec-draft-hf|-hfd|-hfrd|--hf-repo-draft
    """,
    _SEVERAL: "--models-dir --models-preset --models-max",
    _PRIORITY: "--prio --prio-batch --spec-draft-prio|--prio-draft --spec-draft-prio-batch|--prio-batch-draft",
}
_DEFAULT_MODELS: Final = """
    --embd-bge-small-en-default --embd-e5-small-en-default --embd-gte-small-default --embd-gemma-default
    --fim-qwen-1.5b-default --fim-qwen-3b-default --fim-qwen-7b-default --fim-qwen-7b-spec --fim-qwen-14b-spec
    --fim-qwen-30b-default --gpt-oss-20b-default --gpt-oss-120b-default --vision-gemma-4b-default
    --vision-gemma-12b-default
"""
_REFUSED_SWITCHES: Final[Mapping[str, str]] = {
    _SETTINGS: "--lora-init-without-apply --props",
    _RUNS: "-ag|--agent|-no-ag|--no-agent --ui-mcp-proxy|--webui-mcp-proxy|--no-ui-mcp-proxy|--no-webui-mcp-proxy",
    _SEVERAL: "--models-autoload|--no-models-autoload --tts-use-guide-tokens",
    _DOWNLOADS: _DEFAULT_MODELS,
}
_REFUSED_IN_PODS_TOO: Final[Mapping[str, str]] = {
    f"{_PUBLIC}; the engine's keys belong into a Secret": "--api-key",
    f"{_PUBLIC}; the Model's spec.sourceSecretRef names a Secret": "-hft|--hf-token",
}
_EXITING: Final[Mapping[str, str]] = {
    _EXITS: "-h|--help|--usage --version -cl|--cache-list --completion-bash --list-devices",
}


def _verdicts() -> Iterator[Verdict]:
    def rows(kind: Kind, table: Mapping[str, str], *, values: int, in_pods: bool = False) -> Iterator[Verdict]:
        for says, flags in table.items():
            for names in flags.split():
                yield Verdict(kind, tuple(names.split("|")), values, says, in_pods)

    yield from rows(Kind.ALLOWED, {"": _SWITCHES}, values=0)
    yield from rows(Kind.ALLOWED, {"": _WITH_VALUE}, values=1)
    yield from rows(Kind.FIELD, _FIELD_SWITCHES, values=0, in_pods=True)
    yield from rows(Kind.FIELD, _FIELDS, values=1, in_pods=True)
    yield from rows(Kind.OURS, _OUR_SWITCHES, values=0, in_pods=True)
    yield from rows(Kind.OURS, _OURS, values=1, in_pods=True)
    yield from rows(Kind.OURS, _OUR_SWITCHES_ON_HOSTS, values=0)
    yield from rows(Kind.OURS, _OURS_ON_HOSTS, values=1)
    yield from rows(Kind.REFUSED, _REFUSED_SWITCHES, values=0)
    yield from rows(Kind.REFUSED, _REFUSED, values=1)
    yield from rows(Kind.REFUSED, {_READS: "--control-vector-layer-range"}, values=2)
    yield from rows(Kind.REFUSED, _REFUSED_IN_PODS_TOO, values=1, in_pods=True)
    yield from rows(Kind.REFUSED, _EXITING, values=0, in_pods=True)


VERDICTS: Final[Mapping[str, Verdict]] = {flag: verdict for verdict in _verdicts() for flag in verdict.spellings}
"""The verdict on each flag, by each of its names."""

_ACCESS: Final = frozenset({"--api-key-file", "--cors-origins"})
OURS: Final = _ACCESS | {flag for flag, verdict in VERDICTS.items() if verdict.kind is Kind.OURS and verdict.in_pods}
"""The flags that stand on every command line, or would contradict one that does: no owner can allow them."""


def spellings_of(flag: str) -> tuple[str, ...]:
    """Return all names of a flag and of its opposite; of one without a verdict, itself."""
    verdict = VERDICTS.get(flag)
    return verdict.spellings if verdict else (flag,)
