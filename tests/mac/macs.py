"""Stand-ins for a Mac, on any system: its C library from `libsystem.c`, and its kqueue."""

import ctypes
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

import attrs
import psutil

from llmkube.supervisor.host.exit_events import NOTE_EXIT, NOTE_EXIT_DETAIL, NOTE_EXITSTATUS
from llmkube.supervisor.host.mach import LibSystem
from waiting import until

RELEASES: Final = (14, 15, 26, 27)
SOURCE: Final = Path(__file__).parent / "libsystem.c"


def compiled(folder: Path) -> Path:
    """Compile the library; fail on a machine without a C compiler."""
    compiler = shutil.which("cc")
    assert compiler is not None, "tests/mac needs a C compiler (cc), which proves the layouts of xnu's structs"
    path = folder / "libsystem.so"
    if not path.exists():
        flags = ("-shared", "-fPIC", "-Wall", "-Werror", "-O1")
        subprocess.run([compiler, *flags, "-o", str(path), str(SOURCE)], check=True, timeout=120)
    return path


@attrs.define(eq=False)
class Mac:
    """The C library of one release, and the calls that it has counted."""

    library: ctypes.CDLL

    @classmethod
    def of(cls, path: Path, release: int) -> "Mac":
        library = ctypes.CDLL(str(path), use_errno=True)
        library.set_release(release)
        return cls(library)

    def kernel(self) -> LibSystem:
        return LibSystem(self.library)

    def set(self, kind: type, **numbers: int) -> None:
        """Set the values that the library returns."""
        for name, number in numbers.items():
            kind.in_dll(self.library, name).value = number

    @property
    def calls(self) -> int:
        return ctypes.c_int.in_dll(self.library, "calls").value

    @property
    def errors_logged(self) -> int:
        return ctypes.c_int.in_dll(self.library, "errors_logged").value


@attrs.define(eq=False)
class StandInKqueue:
    """kqueue's process filter: reports an exit once, and knows no process whose exit has begun.

    Attributes:
        hidden: Pids whose exit has begun; they are not reported.
        details: Further flags of the event by pid, such as NOTE_EXIT_MEMORY.
        refuses: Flags that this user may not request.
    """

    hidden: set[int] = attrs.field(factory=set)
    details: dict[int, int] = attrs.field(factory=dict)
    refuses: int = 0

    async def wait(self, pid: int, flags: int) -> tuple[int, int]:
        if flags & self.refuses:
            raise PermissionError(13, "Permission denied")
        if pid in self.hidden or has_ended(pid):
            raise ProcessLookupError(3, "No such process")
        await until(lambda: pid not in self.hidden and has_ended(pid))
        flags_set = NOTE_EXIT | (flags & NOTE_EXITSTATUS)
        if detail := self.details.get(pid, 0) if flags & NOTE_EXIT_DETAIL else 0:
            flags_set |= NOTE_EXIT_DETAIL | detail
        return flags_set, (status_of(pid) or 0) if flags & NOTE_EXITSTATUS else 0


def has_ended(pid: int) -> bool:
    """Return whether a process is a zombie or gone, whatever its parent is."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def status_of(pid: int) -> int | None:
    """Return the wait(2) status of a child that has exited and was not reaped; None for others."""
    try:
        info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    except ChildProcessError:
        return None
    if info is None:
        return None
    return info.si_status << 8 if info.si_code == os.CLD_EXITED else info.si_status
