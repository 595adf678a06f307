"""Disk access from Trio: blocking work runs in threads, and free space is reserved before it is used."""

import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import attrs
import trio

from llmkube.weights.errors import NoSpaceError

T = TypeVar("T")

_MAX_MARGIN: Final = 1 << 30
_MIN_MARGIN: Final = 1 << 20

_CORE_FOUNDATION: Final = "/System/Library/Frameworks/CoreFoundation.framework/CoreFoundation"
_CF_NUMBER_SINT64: Final = 4  # kCFNumberSInt64Type of CFNumber.h


class RunSync(Protocol):
    """Runs blocking work outside the event loop and returns its result."""

    async def __call__(self, fn: Callable[[], T], /) -> T:
        """Return the result of `fn`, or raise its exception."""


def in_threads(limiter: trio.CapacityLimiter, *, abandon: bool = False) -> RunSync:
    """Return a function that runs blocking work in worker threads, as many as the limiter allows.

    Args:
        limiter: Shared by all users of the same disk.
        abandon: Abandon a thread when its task is cancelled; only for work that reads.
    """

    async def run_sync(fn: Callable[[], T], /) -> T:
        return await trio.to_thread.run_sync(fn, limiter=limiter, abandon_on_cancel=abandon)

    return run_sync


def free_bytes(folder: Path) -> int:
    """Return the bytes that an unprivileged user may write to the file system of a folder.

    On macOS this includes the space that APFS would purge, which statvfs does not. There, Python up to 3.12 returns the
    number of blocks modulo 2^32 (CPython issue 87804), another reason to use the larger of the two figures.
    """
    found = os.statvfs(folder)
    free = found.f_bavail * found.f_frsize
    return max(free, important_capacity(folder) or 0) if sys.platform == "darwin" else free


def important_capacity(folder: Path) -> int | None:
    """Return `NSURLVolumeAvailableCapacityForImportantUsageKey` of a folder's volume in bytes; None if unknown.

    In C its name is kCFURLVolumeAvailableCapacityForImportantUsageKey, and its value a CFNumber (CFURL.h).
    """
    try:
        library = ctypes.CDLL(_CORE_FOUNDATION)
        return _important_capacity(library, os.fsencode(folder))
    except (OSError, AttributeError, ValueError):
        return None


def _important_capacity(library: Any, path: bytes) -> int | None:
    """Query Core Foundation; results of Create and Copy functions are released, as its naming rule requires."""
    pointer, size = ctypes.c_void_p, ctypes.c_long
    library.CFURLCreateFromFileSystemRepresentation.restype = pointer
    library.CFURLCreateFromFileSystemRepresentation.argtypes = [pointer, ctypes.c_char_p, size, ctypes.c_bool]
    library.CFURLCopyResourcePropertyForKey.restype = ctypes.c_bool
    library.CFURLCopyResourcePropertyForKey.argtypes = [pointer, pointer, ctypes.POINTER(pointer), pointer]
    library.CFNumberGetValue.restype = ctypes.c_bool
    library.CFNumberGetValue.argtypes = [pointer, size, pointer]
    library.CFRelease.restype, library.CFRelease.argtypes = None, [pointer]
    key = pointer.in_dll(library, "kCFURLVolumeAvailableCapacityForImportantUsageKey")
    url = library.CFURLCreateFromFileSystemRepresentation(None, path, len(path), True)
    if not url:
        return None
    try:
        number, value = pointer(), ctypes.c_int64()
        if not library.CFURLCopyResourcePropertyForKey(url, key, ctypes.byref(number), None) or not number.value:
            return None
        try:
            read = library.CFNumberGetValue(number, _CF_NUMBER_SINT64, ctypes.byref(value))
        finally:
            library.CFRelease(number)
        return value.value if read else None
    finally:
        library.CFRelease(url)


def margin_of(needed_bytes: int) -> int:
    """Return the margin to keep free in addition to a reservation: 5 per cent of it, from 1 MiB to 1 GiB."""
    return min(max(needed_bytes // 20, _MIN_MARGIN), _MAX_MARGIN)


@attrs.define(eq=False)
class FreeSpace:
    """Reservations of free space for downloads, so that two of them never fill a disk that has space for one."""

    # `posix_fallocate` would reserve it in the file, but macOS has none, and it hides how much has really arrived.

    folder: Path
    free: Callable[[Path], int] = free_bytes
    _reserved: dict[object, int] = attrs.field(factory=dict)

    def reserve(self, owner: object, needed_bytes: int) -> None:
        """Reserve bytes, replacing the earlier reservation of `owner`; a margin stays free in addition (`margin_of`).

        Raises:
            NoSpaceError: There is not enough free space.
        """
        margin = margin_of(needed_bytes)
        others = sum(size for name, size in self._reserved.items() if name is not owner)
        free = self.free(self.folder) - others
        if needed_bytes > 0 and free < needed_bytes + margin:
            raise NoSpaceError(str(self.folder), needed_bytes=needed_bytes + margin, free_bytes=max(free, 0))
        self._reserved[owner] = needed_bytes

    def consume(self, owner: object, count: int) -> None:
        """Record that reserved bytes are on the disk now."""
        if owner in self._reserved:
            self._reserved[owner] = max(self._reserved[owner] - count, 0)

    def release(self, owner: object) -> None:
        """Release the rest of a reservation."""
        self._reserved.pop(owner, None)
