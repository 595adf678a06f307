"""`llmkube doctor`: what of this machine, its programs and its cluster is well, and what mends the rest.

command                              the options, and which probes they ask for
installation                         which of our programs is here, and with which settings
probing                              probes side by side, each with a deadline of its own
machine_probes, mac_probes           the machine: system, memory, disk, power, what macOS allows
program_probes                       ours: engine, job, ports, listeners, how engines ended
ollama_probe, ollama                 an Ollama on this machine: what it has in memory, and what that means
cluster_probes, pod_probe            the API server as this host sees it, and this host as a pod sees it
facts                                what the probes find; values
judge                                facts to findings: by machine_verdicts, program_verdicts, cluster_verdicts; pure
findings, report                     pass, warn or fail with its fix; for people and for programs

Nothing is changed by it, nothing is asked of a cluster that was not named, and no secret is printed.
"""
