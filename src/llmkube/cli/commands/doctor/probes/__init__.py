"""Look at this machine, its programs and its cluster: what is found, without what it means.

probing                              probes side by side, each with a deadline of its own
machine_probes, mac_probes           the machine: system, memory, disk, power, what macOS allows
program_probes                       ours: engine, job, ports, listeners, how engines ended
ollama_probe, omlx_probe             an Ollama, an oMLX on this machine: what they have in memory
cluster_probes, pod_probe            the API server as this host sees it, and this host as a pod sees it
"""
