"""Commands that write and read InferenceServices and Models: deploy, list, status, scale, delete, logs.

field_flags      flags made from the fields of the CRDs
tail, pod_logs   lines of a log file; what pods write, through the API server
footprint        memory of an engine
"""
