"""Commands for InferenceServices and Models: `objects` has status, scale, restart and delete; `ps` has queue.

readiness_wait   wait until a service is ready; the message at Ctrl-C
field_flags      flags that set fields of the CRDs
tail, pod_logs   read a log file, and the logs of pods through the API server
footprint        the engine of a service on this machine, and its memory
"""
