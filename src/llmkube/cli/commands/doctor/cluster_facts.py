"""What the probes of the cluster find. Pure."""

import datetime

import attrs


@attrs.frozen
class LanAccess:
    """What the job has found about its own network; empty when it has found nothing.

    Attributes:
        found: In the words of `lan_access`.
        job: Whether a job of launchd is to find it.
        daemon: Whether that is a daemon.
    """

    found: str
    job: bool
    daemon: bool


@attrs.frozen
class NoCluster:
    """No cluster was named; `home` is the context of kubectl's own file, if there is one."""

    home: str = ""


@attrs.frozen(kw_only=True)
class ApiServer:
    """What the API server answered.

    Attributes:
        server: Its URL.
        context: Of the kubeconfig.
        version: What it is.
        problem: Why it did not answer.
        code: The HTTP status of that answer; 0 without one.
        installed: Whether it serves our kinds.
        lacking: What the agent may not do: `create leases in llmkube-system`.
        rights: The command that prints the roles.
        skew: How far its clock is ahead of ours; None when it does not say.
        own: Whether it is that of `llmkube up`.
        agent: Whether an agent of this machine works with these credentials.
    """

    server: str
    context: str = ""
    version: str = ""
    problem: str = ""
    code: int = 0
    installed: bool = True
    lacking: tuple[str, ...] = ()
    rights: str = ""
    skew: datetime.timedelta | None = None
    own: bool = False
    agent: bool = False


@attrs.frozen
class Advertised:
    """The address at which a cluster's pods reach engines of this host; empty when there is none."""

    address: str
    given: bool = False


@attrs.frozen(kw_only=True)
class PodReach:
    """What a pod found.

    Attributes:
        job: The Job that tried, `namespace/name`.
        address: What it tried.
        error: The errno of the try, by name; empty when it got through.
        problem: Why there was no try.
    """

    job: str
    address: str
    error: str = ""
    problem: str = ""
