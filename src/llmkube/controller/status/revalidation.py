"""Whether what was fetched once still counts: the volume may be another one, and the source may have changed. Pure.

A source that is followed (`refreshPolicy: OnChange`) is looked at again by the same Job, made anew: what it finds
changed it fetches into another folder, and the new path in the status is what replaces the services' pods. Until then,
and when the look fails, the Model stays Ready with what it has; the condition UpToDate says how the last look went.

Weights are on a volume, and go with it: when the claim is not there any more, or was made anew, nothing that was
remembered or told of the old one counts.
"""

import datetime
from typing import Final

import attrs

from llmkube.controller.render.model_sources import (
    follows,
)
from llmkube.controller.settings import WorkloadSettings
from llmkube.controller.status.job_result import (
    Seen,
    ended_at,
    is_complete,
    read_fetched,
)
from llmkube.controller.status.supply import is_remembered
from llmkube.k8s.crd.model import Model
from llmkube.k8s.wire.conditions import Statement, find_condition
from llmkube.k8s.wire.termination_message import Fetched
from llmkube.k8s.wire.times import parse_timestamp
from llmkube.k8s.workloads import Job, PersistentVolumeClaim

UP_TO_DATE: Final = "UpToDate"

_LONG_AGO: Final = datetime.datetime.min.replace(tzinfo=datetime.UTC)


def without_lost_volume(model: Model, claim: PersistentVolumeClaim | None) -> Model:
    """Return the Model without what its status says of a volume that is gone."""
    volume = model.status.cache_volume
    if not volume or (claim is not None and claim.metadata.uid == volume):
        return model
    return attrs.evolve(model, status=attrs.evolve(model.status, path="", cache_volume=""))


def is_from_old_volume(job: Job | None, claim: PersistentVolumeClaim | None) -> bool:
    """Whether what a Job has fetched went with an earlier claim: each Job is made after its claim."""
    if job is None or not ended_at(job):
        return False
    made = job.metadata.creation_timestamp or ""
    return claim is None or (claim.metadata.creation_timestamp or "") > made


def revalidate_in_seconds(
    model: Model, job: Job | None, settings: WorkloadSettings, now: datetime.datetime
) -> float | None:
    """Return how long to wait until a source that has been fetched is looked at again; None when it never is.

    The moments are those of the cluster's clock and `now` is ours; at an hour's interval their difference is nothing.
    """
    if not follows(model.spec) or not is_remembered(model):
        return None
    looks = filter(None, map(parse_timestamp, (model.status.last_revalidated, ended_at(job))))
    since = now - max(looks, default=_LONG_AGO)
    return max(settings.look_seconds - since.total_seconds(), 0.0)


def newer_version(model: Model, seen: Seen) -> Fetched | None:
    """Return what a later look at a source has brought that the status does not tell yet."""
    if not follows(model.spec) or not is_remembered(model) or not is_complete(seen.job):
        return None
    return read_fetched(seen.pods) if ended_at(seen.job) != model.status.last_revalidated else None


def judge_up_to_date(model: Model, seen: Seen) -> Statement:
    """Say how the last look at a source went; what it said stays when its Job is gone."""
    fetched = read_fetched(seen.pods) if is_complete(seen.job) else None
    if fetched is not None and fetched.kept:
        return Statement(
            UP_TO_DATE, holds=False, reason="LookFailed", message=f"the file that is there is kept: {fetched.kept}"
        )
    if fetched is not None:
        return Statement(
            UP_TO_DATE,
            holds=True,
            reason="InSync",
            message="the file is the one that its source had when it was last asked",
        )
    before = find_condition(model.status.conditions, UP_TO_DATE)
    if before is not None and is_remembered(model):
        return Statement(UP_TO_DATE, before.status == "True", before.reason, before.message)
    return Statement(UP_TO_DATE, holds=False, reason="NotFetched", message="nothing has been fetched yet")
