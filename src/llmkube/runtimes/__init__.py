"""Plan the engine of an InferenceService, as a process or a container: functions from objects to plans. Pure.

    registry                              the runtime of a service, on hosts and in pods
    plan                                  a LaunchPlan: argv with placeholders, environment, digest
    process                               engines as processes on a host
    container                             engines as containers in pods; plug-ins
    arguments, llama_fields, llama_flags  command lines, and llama.cpp's flags
    llama_verdicts                        which of these flags a service may use in its own arguments
    swap                                  which loaded models make room for those that requests wait for
    devices                               GPUs: what the machine has, and what an engine can use
    allowances                            flags, variables and engines that the owner of a host adds
Nothing is started here: see `supervisor/engine` and `controller/render`.
"""
