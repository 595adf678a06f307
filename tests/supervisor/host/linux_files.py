"""Files of a Linux kernel, as the kernel writes them."""

MEMINFO = """\
MemTotal:       24684084 kB
MemFree:        20110296 kB
MemAvailable:   23210436 kB
Buffers:           51456 kB
Cached:          3183584 kB
Mapped:           322628 kB
Shmem:            210996 kB
CommitLimit:    12342040 kB
HugePages_Total:       4
Hugepagesize:       2048 kB
"""
