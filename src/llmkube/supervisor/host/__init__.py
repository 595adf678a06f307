"""What the kernel says of this machine: memory, processes, listeners, power.

    sample, pressure_level, rates        values and rules; pure
    linux, cgroups, psi, pss             Linux, from /proc and /sys
    darwin, mach, power                  macOS, from Mach calls, sysctl and powermetrics
    processes, process_trees             which process is which, and what a tree of them holds
    tcp_listeners                        who listens on which port, and who waits there
    this_machine                         picks the readers of this platform

A reader reports and decides nothing: what follows from a figure is the business of `supervisor/memory`.
"""
