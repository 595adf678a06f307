"""How things look on a terminal. Nothing here asks an API server or decides anything.

describe, locations                 one object explained; where its parts are
progress, progress_line, live_view  how far a service has come
output, formats                     tables, JSON, YAML
"""
