"""Responses of a Mac's kernel, as bytes laid out by hand."""

GIB, PAGE = 1 << 30, 16384
# The fields of vm_statistics64 in the order of osfmk/mach/vm_statistics.h, with their widths in bytes.
STATISTICS = [
    ("free_count", 4),
    ("active_count", 4),
    ("inactive_count", 4),
    ("wire_count", 4),
    ("zero_fill_count", 8),
    ("reactivations", 8),
    ("pageins", 8),
    ("pageouts", 8),
    ("faults", 8),
    ("cow_faults", 8),
    ("lookups", 8),
    ("hits", 8),
    ("purges", 8),
    ("purgeable_count", 4),
    ("speculative_count", 4),
    ("decompressions", 8),
    ("compressions", 8),
    ("swapins", 8),
    ("swapouts", 8),
    ("compressor_page_count", 4),
    ("throttled_count", 4),
    ("external_page_count", 4),
    ("internal_page_count", 4),
    ("total_uncompressed_pages_in_compressor", 8),
]
# The fields of rusage_info_v0 after its uuid, in the order of bsd/sys/resource.h; all are 64 bits wide.
RUSAGE = [
    "ri_user_time",
    "ri_system_time",
    "ri_pkg_idle_wkups",
    "ri_interrupt_wkups",
    "ri_pageins",
    "ri_wired_size",
    "ri_resident_size",
    "ri_phys_footprint",
    "ri_proc_start_abstime",
    "ri_proc_exit_abstime",
]


def statistics(**fields):
    """Lay out a struct as a C compiler does: each field at a multiple of its own width."""
    data = b""
    for name, width in STATISTICS:
        data += bytes(-len(data) % width)
        data += fields.get(name, 0).to_bytes(width, "little")
    return data + bytes(-len(data) % 8)


def rusage(**fields):
    return b"u" * 16 + b"".join(fields.get(name, 0).to_bytes(8, "little") for name in RUSAGE)
