"""Commands that write and read InferenceServices and Models: deploy, list, status, scale, delete, logs.

field_flags      flags made from the fields of the CRDs
tail, footprint  lines of a log file; memory of an engine
"""
