"""What runs beside an engine in its pod, from our image. It knows no cluster, only its arguments.

key_proxy  asks the engine's clients for their keys
"""
