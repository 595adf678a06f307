"""`llmkube doctor`: diagnose this machine, its LLMKube programs and its cluster, and suggest fixes.

command            the options, and the probes, which run concurrently with a deadline each
installation       the LLMKube program on this machine, and its settings
machine, mac       the machine: system, memory, disk, power, macOS permissions
programs           LLMKube's programs: engine, job, ports, listeners, exits of engines
daemons            memory of Ollama and oMLX on this machine
cluster, from_pod  the API server as seen from this host, and this host as seen from a pod
findings           the report: pass, warn or fail, each with its fix; text and JSON

It changes nothing on this machine, does not query a cluster that was not named, and prints no secret.
"""
