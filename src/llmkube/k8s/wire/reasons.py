"""The reasons of conditions, and what each means to a reader. Pure.

Agents and the controller write them; readers decide by `Reason.meaning`. The reasons that the kubelet and other
programs give for pods (`OutOfcpu` …) are not all listed: `Reason.of` returns None for an unknown one, and the condition
`Degraded` then states whether the service fails.
"""

import enum
from collections.abc import Mapping
from typing import Final, Self


class Meaning(enum.Enum):
    """The meaning of a reason to a reader, and the action to take."""

    FINE = enum.auto()
    """Nothing is wrong."""

    STOPPED = enum.auto()
    """Nothing runs, as the spec requests."""

    WAITING = enum.auto()
    """In progress: wait."""

    RECOVERING = enum.auto()
    """A problem from which the program recovers by itself: wait."""

    RETRIED = enum.auto()
    """An attempt has failed and is retried; see the engine's log."""

    USER = enum.auto()
    """Persists until the user edits an object or fixes what it refers to."""

    HOST = enum.auto()
    """Persists until the host or the cluster is fixed."""

    @property
    def is_failing(self) -> bool:
        """Whether to report a failure instead of waiting."""
        return self in {Meaning.RETRIED, Meaning.USER, Meaning.HOST}


class Reason(enum.StrEnum):
    """A reason that our programs write, with its meaning."""

    meaning: Meaning

    def __new__(cls, word: str, meaning: Meaning) -> Self:
        """Create a member whose value is the word, with the meaning as an attribute."""
        member = str.__new__(cls, word)
        member._value_ = word
        member.meaning = meaning
        return member

    # Loaded, for an engine on a host
    PENDING = "Pending", Meaning.WAITING
    WAITING_FOR_MODEL = "WaitingForModel", Meaning.WAITING
    INSUFFICIENT_MEMORY = "InsufficientMemory", Meaning.RECOVERING
    EXCEEDS_MEMORY = "ExceedsMemory", Meaning.USER
    MEMORY_CHECK_FAILED = "MemoryCheckFailed", Meaning.RECOVERING
    EVICTED = "Evicted", Meaning.RECOVERING
    LOADING = "Loading", Meaning.WAITING
    LOADED = "Loaded", Meaning.FINE
    NOT_ANSWERING = "NotAnswering", Meaning.RECOVERING
    RESTARTING = "Restarting", Meaning.RECOVERING
    STOPPING = "Stopping", Meaning.WAITING
    RELEASED = "Released", Meaning.WAITING
    IDLE = "Idle", Meaning.FINE
    SCALED_TO_ZERO = "ScaledToZero", Meaning.STOPPED
    ENGINE_EXITED = "EngineExited", Meaning.RETRIED
    CRASH_LOOP = "CrashLoopBackOff", Meaning.RETRIED
    LOAD_STALLED = "LoadStalled", Meaning.RETRIED
    HUNG = "Hung", Meaning.RETRIED
    METAL_ERROR = "MetalError", Meaning.RETRIED
    COMPUTE_FAILED = "ComputeFailed", Meaning.RETRIED
    INTERNAL_ERROR = "InternalError", Meaning.RETRIED
    PORT_TAKEN = "PortTaken", Meaning.HOST
    ADDRESS_MISSING = "AddressMissing", Meaning.HOST
    ENGINE_NOT_FOUND = "EngineNotFound", Meaning.HOST
    ENGINE_STUCK = "EngineStuck", Meaning.HOST
    JOURNAL_NOT_WRITTEN = "JournalNotWritten", Meaning.HOST
    API_KEYS_UNAVAILABLE = "APIKeysUnavailable", Meaning.USER
    API_KEYS_NOT_READ = "APIKeysNotRead", Meaning.RECOVERING

    # Accepted, SpecHonoured
    ACCEPTED = "Accepted", Meaning.FINE
    INVALID = "Invalid", Meaning.USER
    NOT_SUPPORTED = "NotSupported", Meaning.USER
    NOT_ALLOWED = "NotAllowed", Meaning.USER
    HONOURED = "Honoured", Meaning.FINE
    FIELDS_IGNORED = "FieldsIgnored", Meaning.FINE
    NOT_PLANNED = "NotPlanned", Meaning.WAITING
    NAME_TAKEN = "NameTaken", Meaning.USER
    BACKENDS_UNAVAILABLE = "BackendsUnavailable", Meaning.RECOVERING

    # UpToDate, Published, MemoryPressure, on a host
    UP_TO_DATE = "UpToDate", Meaning.FINE
    REPLACING = "Replacing", Meaning.WAITING
    NOT_SERVING = "NotServing", Meaning.WAITING
    PUBLISHED = "Published", Meaning.FINE
    NO_ADDRESS = "NoAddress", Meaning.HOST
    REFUSED = "Refused", Meaning.HOST
    NORMAL = "Normal", Meaning.FINE
    WARNING = "Warning", Meaning.WAITING
    CRITICAL = "Critical", Meaning.WAITING
    UNKNOWN = "Unknown", Meaning.WAITING
    NOT_STATED = "NotStated", Meaning.FINE

    # Available, Progressing, Degraded, Suspended, RolloutDeferred
    INFERENCE_READY = "InferenceReady", Meaning.FINE
    NO_READY_REPLICAS = "NoReadyReplicas", Meaning.WAITING
    CREATING = "Creating", Meaning.WAITING
    MODEL_NOT_FOUND = "ModelNotFound", Meaning.USER
    NO_HOST = "NoHost", Meaning.HOST
    NOT_CLAIMED = "NotClaimed", Meaning.WAITING
    MANUALLY_SCALED_TO_ZERO = "ManuallyScaledToZero", Meaning.STOPPED
    SUSPENDED = "Suspended", Meaning.STOPPED
    NOT_SUSPENDED = "NotSuspended", Meaning.FINE
    PODS_BUSY = "PodsBusy", Meaning.WAITING
    NOTHING_WAITS = "NothingWaits", Meaning.FINE

    # Deployments and their pods: the reasons that a reader can act on
    WAITING_FOR_GPU = "WaitingForGPU", Meaning.WAITING
    INSUFFICIENT_GPU = "InsufficientGPU", Meaning.WAITING
    UNSCHEDULABLE = "Unschedulable", Meaning.RECOVERING
    QUOTA_EXCEEDED = "QuotaExceeded", Meaning.WAITING
    QUOTA_REFUSED = "QuotaRefused", Meaning.USER
    WAITING_FOR_QUOTA = "WaitingForQuota", Meaning.WAITING
    WAITING_FOR_POOL = "WaitingForPool", Meaning.WAITING
    ALLOCATED = "Allocated", Meaning.FINE
    ALL_RESOLVED = "AllResolved", Meaning.FINE
    MISSING_MEMBERS = "MissingMembers", Meaning.USER
    NOT_DEFERRED = "NotDeferred", Meaning.FINE
    KUBERNETES_GPU = "KubernetesGPU", Meaning.FINE
    METAL_MEMBERS_UNSUPPORTED = "MetalMembersUnsupported", Meaning.USER
    CONTAINER_FAILED = "ContainerFailed", Meaning.RECOVERING
    OOM_KILLED = "OOMKilled", Meaning.RETRIED
    REPLICA_FAILURE = "ReplicaFailure", Meaning.HOST
    POD_SECURITY = "PodSecurity", Meaning.USER
    ERR_IMAGE_PULL = "ErrImagePull", Meaning.HOST
    IMAGE_PULL_BACK_OFF = "ImagePullBackOff", Meaning.HOST
    INVALID_IMAGE_NAME = "InvalidImageName", Meaning.USER
    ERR_IMAGE_NEVER_PULL = "ErrImageNeverPull", Meaning.HOST
    REGISTRY_UNAVAILABLE = "RegistryUnavailable", Meaning.HOST
    CREATE_CONTAINER_CONFIG_ERROR = "CreateContainerConfigError", Meaning.USER
    CREATE_CONTAINER_ERROR = "CreateContainerError", Meaning.HOST
    RUN_CONTAINER_ERROR = "RunContainerError", Meaning.HOST
    PROGRESS_DEADLINE_EXCEEDED = "ProgressDeadlineExceeded", Meaning.HOST
    REPLICA_SET_CREATE_ERROR = "ReplicaSetCreateError", Meaning.HOST

    # Fetched, on a host; and the failures of a fetch, also in a pod
    FETCHED = "Fetched", Meaning.FINE
    FETCHING = "Fetching", Meaning.WAITING
    FETCH_FAILED = "FetchFailed", Meaning.RECOVERING
    STALLED = "Stalled", Meaning.RECOVERING
    THROTTLED = "Throttled", Meaning.RECOVERING
    RANGE_REFUSED = "RangeRefused", Meaning.RECOVERING
    WRONG_SIZE = "WrongSize", Meaning.RECOVERING
    SOURCE_INVALID = "SourceInvalid", Meaning.USER
    SOURCE_UNSUPPORTED = "SourceUnsupported", Meaning.USER
    SOURCE_NOT_ALLOWED = "SourceNotAllowed", Meaning.USER
    SOURCE_NOT_FOUND = "SourceNotFound", Meaning.USER
    SOURCE_REFUSED = "SourceRefused", Meaning.USER
    SOURCE_AMBIGUOUS = "SourceAmbiguous", Meaning.USER
    FILE_NOT_FOUND = "FileNotFound", Meaning.USER
    ACCESS_DENIED = "AccessDenied", Meaning.USER
    REDIRECT_REFUSED = "RedirectRefused", Meaning.USER
    ADDRESS_BLOCKED = "AddressBlocked", Meaning.USER
    INVALID_FILE_SET = "InvalidFileSet", Meaning.USER
    NOT_MLX = "NotMLX", Meaning.USER
    NOT_GGUF = "NotGGUF", Meaning.USER
    DIGEST_MISMATCH = "DigestMismatch", Meaning.USER
    TOKEN_UNAVAILABLE = "TokenUnavailable", Meaning.USER
    NO_SPACE = "NoSpace", Meaning.HOST

    # Available, Progressing, Degraded, Inspected, QuantizationMatches, UpToDate of a Model
    MODEL_READY = "ModelReady", Meaning.FINE
    DOWNLOAD_STARTED = "DownloadStarted", Meaning.WAITING
    COPY_STARTED = "CopyStarted", Meaning.WAITING
    RUNTIME_RESOLVED = "RuntimeResolved", Meaning.FINE
    WORKLOAD_RESOLVED = "WorkloadResolved", Meaning.FINE
    NODE_PATH = "NodePath", Meaning.FINE
    PVC_MODEL_READY = "PVCModelReady", Meaning.FINE
    PVC_NOT_BOUND = "PVCNotBound", Meaning.WAITING
    PVC_NOT_FOUND = "PVCNotFound", Meaning.USER
    NO_RESULT = "NoResult", Meaning.RECOVERING
    HEADER_READ = "HeaderRead", Meaning.FINE
    INSPECTING = "Inspecting", Meaning.WAITING
    NOT_IN_USE = "NotInUse", Meaning.WAITING
    JOB_REFUSED = "JobRefused", Meaning.HOST
    INSPECTION_FAILED = "InspectionFailed", Meaning.RETRIED
    NOT_COMPARED = "NotCompared", Meaning.FINE
    MATCHES = "Matches", Meaning.FINE
    QUANTIZATION_MISMATCH = "QuantizationMismatch", Meaning.USER
    IN_SYNC = "InSync", Meaning.FINE
    LOOK_FAILED = "LookFailed", Meaning.RECOVERING
    NOT_FETCHED = "NotFetched", Meaning.WAITING

    @classmethod
    def of(cls, word: str) -> "Reason | None":
        """Return the reason of a word; None for another program's."""
        return _BY_WORD.get(word)


_BY_WORD: Final[Mapping[str, Reason]] = {reason.value: reason for reason in Reason}


def is_failing(word: str, *, unknown: bool) -> bool:
    """Return whether a reason means failure, so that waiting will not help; `unknown` for another program's reason."""
    reason = Reason.of(word)
    return unknown if reason is None else reason.meaning.is_failing
