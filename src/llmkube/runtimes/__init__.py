"""What to run for an InferenceService, with no opinion on where: pure functions from objects to plans. Pure.

    registry                              the runtime of a service, for hosts and for pods
    plan                                  a LaunchPlan: argv with placeholders, environment, digest
    process                               engines as processes of a host
    container                             engines as containers of pods; plug-ins
    arguments, llama_fields, llama_flags  command lines, and llama.cpp's flags
    llama_verdicts                        what each of them may do in a service's own arguments
    allowances                            what a host's owner adds to that
Nothing is started here: see `supervisor/engine` and `controller/render`.
"""
