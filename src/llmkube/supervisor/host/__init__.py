"""What the kernel says of this machine: memory, processes, listeners.

    sample, pressure_level               values and rules; pure
    procfs                               the one reader of /proc; each file's content as a value
    linux                                Linux's memory: meminfo, limits, stalls, proportional sizes
    darwin, mach                         macOS, from Mach calls and sysctl
    processes                            which process is which, what a tree of them holds; this machine's addresses
    exit_events                          how macOS tells that a process ends
    tcp_listeners                        which ports have a listener, and at which a client waits
    this_machine                         picks the readers of this platform

A reader reports and decides nothing: what follows from a figure is the business of `supervisor/memory`.
"""
