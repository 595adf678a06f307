"""`llmkube doctor`: what of this machine, its programs and its cluster is well, and what mends the rest.

command                              the options, and which probes they ask for
installation                         which of our programs is here, and with which settings
probes                               look at the machine, our programs, an Ollama, an oMLX and the cluster, side by side
facts                                what the probes find; values
ollama, omlx                         what an Ollama or an oMLX beside our engines has in memory, and what that means
judge                                facts to findings: by machine_verdicts, program_verdicts, cluster_verdicts; pure
findings, report                     pass, warn or fail with its fix; for people and for programs

Nothing is changed by it, nothing is asked of a cluster that was not named, and no secret is printed.
"""
