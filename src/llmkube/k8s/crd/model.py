"""The kind Model: the source of weights and the hardware that they run on."""

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import attrs

from llmkube.k8s.crd.meta import Condition, LocalObjectReference
from llmkube.k8s.crd.placement import Hardware, ModelResources
from llmkube.k8s.fields import REQUIRED, Column, Rule, SchemaFacts, Wired, field
from llmkube.k8s.resource import Object, Resource, own_resource

FORMATS: Final = ("gguf", "mlx", "safetensors", "pytorch", "custom")
REFRESH_POLICIES: Final = ("IfNotPresent", "OnChange")
MODEL_PHASES: Final = ("Pending", "Downloading", "Copying", "Ready", "Failed")

SOURCE_PATTERN: Final = (
    r"^(https?|file|pvc|hf|s3|oci|builtin|ollama)://.+$"  # a URL
    r"|^/.*\S$"  # an absolute path, which may contain spaces
    r"|^[a-zA-Z0-9][\w./-]+(@[\w./-]+)?$"  # org/repo, optionally at a revision
    r"|^[a-zA-Z0-9][\w.-]*/[\w./-]+:[\w.-]+(@[\w./-]+)?$"  # with a quantization
)


@attrs.frozen(kw_only=True)
class ModelSpec(Wired):
    """Desired weights, their format and the hardware that serves them."""

    RULES: ClassVar = (
        Rule(
            "!has(self.mmproj) || self.mmproj == 'none' || (has(self.files) && self.files.size() > 0)"
            " || self.source.matches('^/|^file://|[.]gguf([@?]|$)|:[^/]+$')",
            "mmproj is a file of the repository that files are fetched from: name the files too",
        ),
    )
    source: str = field(
        "Source of the weights: a URL (http, https, file, pvc, hf, s3, oci, builtin), an absolute path, "
        "a Hugging Face repository as org/repo, org/repo@revision or org/repo:Q4_K_M, or ollama://name:tag for "
        "services on hosts with spec.runtime ollama.",
        REQUIRED,
        pattern=SOURCE_PATTERN,
    )
    format: str = field("File format of the weights.", "gguf", enum=FORMATS)
    quantization: str | None = field("Label for people, such as Q4_K_M; the file's own value is in status.gguf.")
    hardware: Hardware = field("Hardware that serves the model.", Hardware, apply_default=True)
    resources: ModelResources = field("Resources that serving pods request for this model.", ModelResources)
    sha256: str | None = field("SHA-256 that the file must have.", pattern=r"^[a-fA-F0-9]{64}$")
    source_secret_ref: LocalObjectReference | None = field(
        "Secret in the Model's namespace with the credentials for the source: HF_TOKEN for Hugging Face; for a bucket "
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and AWS_REGION or AWS_ENDPOINT_URL.",
        atomic=True,
    )
    files: tuple[str, ...] = field(
        "Files to fetch from a repository or a folder of a bucket; the engine loads the first.",
        (),
        items=SchemaFacts(min_length=1),
    )
    mmproj: str | None = field(
        "Projector that lets the model see pictures: a file in the repository or in the folder of the source, or on "
        "hosts an absolute path; none for none. Unset, hosts look beside a local file and in a repository without "
        "files.",
        min_length=1,
    )
    prefetch: bool | None = field("Whether to fetch the weights before a service refers to the Model.")
    prefetch_tolerations: tuple[Mapping[str, Any], ...] = field(
        "Tolerations of the pods that fetch the weights.", (), pod_part="Toleration"
    )
    refresh_policy: str = field(
        "IfNotPresent fetches only missing weights; OnChange also checks the source, by default every hour, fetches "
        "changed weights and replaces the pods.",
        "IfNotPresent",
        enum=REFRESH_POLICIES,
    )


@attrs.frozen(kw_only=True)
class GGUFStatus(Wired):
    """Facts read from the header of a GGUF file."""

    architecture: str = field("Model architecture, such as llama.", "")
    model_name: str = field("Name in the file's metadata.", "")
    quantization: str = field("Quantization of most tensors.", "")
    context_length: int | None = field("Context length that the model was trained with, in tokens.", format="int64")
    layer_count: int | None = field("Number of transformer blocks.", format="int64")
    embedding_size: int | None = field("Width of the embedding.", format="int64")
    head_count: int | None = field("Number of attention heads.", format="int64")
    tensor_count: int | None = field("Number of tensors.", format="int64")
    file_version: int | None = field("Version of the GGUF container.")
    license: str = field("License in the file's metadata.", "")


@attrs.frozen(kw_only=True)
class ModelStatus(Wired):
    """Observed state of the weights."""

    phase: str = field("Current phase of the Model.", "", enum=MODEL_PHASES)
    conditions: tuple[Condition, ...] = field("Conditions of the Model, one per type.", (), list_map_keys=("type",))
    path: str = field("Path of the file for the engine.", "")
    size: str = field('Size for people, such as "4.5 GiB".', "")
    sha256: str = field("SHA-256 of the file, if it was computed.", "")
    gguf: GGUFStatus | None = field("Facts from the file's header.")
    projector: str = field("Multimodal projector that hosts load with the file: its file, kind and inputs.", "")
    quantization: str = field("Quantization from the file's header, else spec.quantization.", "")
    cache_key: str = field("Key of the source that size and gguf are for; its folder in a shared cache.", "")
    cache_volume: str = field("UID of the PersistentVolumeClaim that holds the weights; a new claim is empty.", "")
    staged_files: tuple[str, ...] = field("Fetched files, if there are several.", ())
    accelerator_ready: bool | None = field("Whether a host or node in the cluster can serve the accelerator.")
    source_etag: str = field("ETag of the source when it was last checked.", "", name="sourceETag")
    source_content_length: int | None = field("Length of the source when it was last checked.", format="int64")
    last_revalidated: str | None = field("When the source was last compared with the fetched file.", format="date-time")
    last_updated: str | None = field("When the Model last became Ready.", format="date-time")

    @property
    def reads_pictures(self) -> bool:
        """Whether the projector that hosts load is one for pictures."""
        return "pictures" in self.projector.rpartition(": ")[2]


@attrs.frozen(kw_only=True)
class Model(Object):
    """Weights that services can refer to by name."""

    RESOURCE: ClassVar[Resource] = own_resource("Model", "mdl")
    COLUMNS: ClassVar = (
        Column("Phase", ".status.phase"),
        Column("Size", ".status.size"),
        Column("Accelerator", ".spec.hardware.accelerator"),
        Column("Quant", ".status.quantization"),
        Column("Arch", ".status.gguf.architecture", wide=True),
        Column("Context", ".status.gguf.contextLength", "integer", wide=True),
        Column("Source", ".spec.source", wide=True),
        Column("Age", ".metadata.creationTimestamp", "date"),
    )
    spec: ModelSpec
    status: ModelStatus = field("Observed state of the weights.", ModelStatus)
