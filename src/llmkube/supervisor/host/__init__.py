"""Kernel interfaces of this machine: memory, processes, listeners.

    sample, pressure_level               values and rules; pure
    procfs                               the only reader of /proc/PID; each file's content as a value
    linux                                Linux's memory: meminfo, limits, stalls, proportional set sizes
    darwin, mach                         macOS's memory, from Mach calls and sysctl
    processes                            identity of processes, memory of process trees; this machine's addresses
    exit_events                          process exits on macOS
    devices                              GPUs, from the files of their drivers
    tcp_listeners                        ports with a listener, and those at which a client waits
    this_machine                         selects the readers of this platform

These modules report figures and decide nothing; `supervisor/memory` decides.
"""
