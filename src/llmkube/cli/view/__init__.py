"""How things look on a terminal, and the wait that is shown there. Nothing here asks an API server.

describe, locations                 one object explained; where its parts are
advice, readiness                   what to do about a failure; waiting until a service is ready
progress, progress_line, live_view  how far a service has come; the terminal, with NO_COLOR in no style
output, formats                     tables, JSON, YAML
"""
