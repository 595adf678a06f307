/* Results of macOS's C library by release, on any system, with the structs and numbers of xnu's headers.
 *
 * osfmk/mach/vm_statistics.h, bsd/sys/resource.h, osfmk/mach/mig_errors.h. The counts, in words of 32 bits: macOS 15
 * fills in 38; macOS 26 has 62, fills in the requested words, and logs an error for a count above its own; macOS 27
 * refuses a count below its own with MIG_ARRAY_TOO_LARGE and returns its own. */
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint32_t natural_t;

struct vm_statistics64 {
    natural_t free_count, active_count, inactive_count, wire_count;
    uint64_t zero_fill_count, reactivations, pageins, pageouts, faults, cow_faults, lookups, hits, purges;
    natural_t purgeable_count, speculative_count;
    uint64_t decompressions, compressions, swapins, swapouts;
    natural_t compressor_page_count, throttled_count, external_page_count, internal_page_count;
    uint64_t total_uncompressed_pages_in_compressor;
} __attribute__((aligned(8)));

struct rusage_info_v0 {
    uint8_t ri_uuid[16];
    uint64_t ri_user_time, ri_system_time, ri_pkg_idle_wkups, ri_interrupt_wkups, ri_pageins, ri_wired_size,
        ri_resident_size, ri_phys_footprint, ri_proc_start_abstime, ri_proc_exit_abstime;
};

_Static_assert(sizeof(struct vm_statistics64) == 152, "38 words");
_Static_assert(sizeof(struct rusage_info_v0) == 96, "a uuid and ten numbers");
_Static_assert(offsetof(struct rusage_info_v0, ri_phys_footprint) == 72, "the eighth number");

size_t vm_kernel_page_size = 16384;

static int release = 27;
int calls, errors_logged, level = 1, wired_limit_mb, refuses;
uint64_t memory_bytes = 128ull << 30, wired_bytes = 4ull << 30, internal_bytes = 10ull << 30;

void set_release(int number) {
    release = number;
    calls = errors_logged = wired_limit_mb = refuses = 0;
    level = 1;
}

/* For a program with this library in LD_PRELOAD. */
static int intel, translated;

__attribute__((constructor)) static void from_environment(void) {
    const char *limit = getenv("MAC_WIRED_LIMIT_MB"), *number = getenv("MAC_RELEASE"), *chip = getenv("MAC_CHIP");
    if (number)
        release = atoi(number);
    if (limit)
        wired_limit_mb = atoi(limit);
    intel = chip && !strcmp(chip, "intel");
    translated = chip && !strcmp(chip, "rosetta");
}

natural_t mach_host_self(void) { return 1; }

int host_statistics64(natural_t host, int flavor, void *out, uint32_t *count) {
    const uint32_t own = release >= 26 ? 62 : 38;
    struct vm_statistics64 now = {0};
    (void)host;
    calls++;
    if (refuses)
        return 5; /* KERN_FAILURE, as during an update of macOS */
    if (flavor != 4)
        return 4; /* KERN_INVALID_ARGUMENT */
    if (release >= 27 && *count < own) {
        *count = own;
        return -307;
    }
    if (release >= 26 && *count > own)
        errors_logged++;
    now.wire_count = wired_bytes / vm_kernel_page_size;
    now.internal_page_count = internal_bytes / vm_kernel_page_size;
    now.purgeable_count = 7;
    now.compressions = 11;
    now.swapouts = 13;
    now.compressor_page_count = 17;
    if (*count > own)
        *count = own;
    memset(out, 0xff, 4 * (size_t)*count); /* words of later releases are not zero */
    memcpy(out, &now, *count < 38 ? 4 * (size_t)*count : sizeof now);
    return 0;
}

int sysctlbyname(const char *name, void *old, size_t *size, void *new, size_t length) {
    (void)new, (void)length;
    if (!strcmp(name, "hw.memsize") && *size >= 8) {
        memcpy(old, &memory_bytes, *size = 8);
        return 0;
    }
    if (!strcmp(name, "kern.memorystatus_vm_pressure_level")) {
        memcpy(old, &level, *size = 4);
        return 0;
    }
    if (!strcmp(name, "iogpu.wired_limit_mb") && release >= 14 && !intel) {
        memcpy(old, &wired_limit_mb, *size = 4);
        return 0;
    }
    if (!strcmp(name, "kern.osproductversion") && *size >= 5) {
        *size = 1 + (size_t)snprintf(old, *size, "%d.1", release);
        return 0;
    }
    if (!strcmp(name, "hw.optional.arm64") && !intel) {
        memcpy(old, &(int){1}, *size = 4);
        return 0;
    }
    if (!strcmp(name, "sysctl.proc_translated") && !intel) {
        memcpy(old, &translated, *size = 4);
        return 0;
    }
    errno = ENOENT;
    return -1;
}

int proc_pid_rusage(int pid, int flavor, void *out) {
    struct rusage_info_v0 now = {.ri_phys_footprint = 3ull << 30, .ri_resident_size = 1ull << 30};
    if (pid <= 0 || flavor != 0) {
        errno = ESRCH;
        return -1;
    }
    memcpy(out, &now, sizeof now);
    return 0;
}
