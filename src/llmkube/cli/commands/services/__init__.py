"""Commands that write and read InferenceServices and Models; objects has status, scale, restart and delete, ps queue.

arrival          the wait until a service is ready, and what Ctrl-C says
field_flags      flags made from the fields of the CRDs
tail, pod_logs   lines of a log file; what pods write, through the API server
footprint        the engine of a service on this machine, and its memory
"""
