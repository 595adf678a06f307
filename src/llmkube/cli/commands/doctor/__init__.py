"""`llmkube doctor`: what of this machine, its programs and its cluster is well, and what mends the rest.

command                              the options; which probes they ask for, side by side with a deadline each
installation                         which of our programs is here, and with which settings
machine, mac                         the machine: system, memory, disk, power, what macOS allows
programs                             ours: engine, job, ports, listeners, how engines ended
daemons                              an Ollama, an oMLX beside our engines: what they have in memory
cluster, from_pod                    the API server as this host sees it, and this host as a pod sees it
findings                             pass, warn or fail with its fix; for people and for programs

Nothing is changed by it, nothing is asked of a cluster that was not named, and no secret is printed.
"""
