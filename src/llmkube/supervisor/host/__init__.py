"""What the kernel says of this machine: memory, processes, listeners.

    sample, pressure_level, rates        values and rules; pure
    procfs                               the one reader of /proc; each file's content as a value
    linux, cgroups, psi, pss             Linux's memory: meminfo, limits, stalls, proportional sizes
    darwin, mach                         macOS, from Mach calls and sysctl
    processes, process_trees             which process is which, and what a tree of them holds
    exit_events                          how macOS tells that a process ends
    tcp_listeners                        which ports have a listener, and at which a client waits
    interfaces                           the addresses of this machine
    this_machine                         picks the readers of this platform

A reader reports and decides nothing: what follows from a figure is the business of `supervisor/memory`.
"""
