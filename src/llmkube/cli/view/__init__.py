"""Terminal output, and the wait for a service to become ready.

describe, locations                 the explanation of one object; hosts and engines
advice, readiness                   the fix for a failure; the wait until a service is ready
progress, progress_line, live_view  steps of a start; their display, without color if NO_COLOR is set
output, formats                     tables, JSON, YAML
"""
