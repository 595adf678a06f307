"""What runs beside an engine in its pod, from our image. It knows no cluster, only its arguments.

drain      tells when an engine that has to end has no request left
key_proxy  asks the engine's clients for their keys
"""
