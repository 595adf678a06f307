"""How backends do while no request says so: probes that a spec asks for, and engines that have stopped to answer.

signs         what probes, an engine's silence and its /slots tell; pure
probes        one task for each backend with a healthCheck
cache_watch   asks engines how full their KV caches are while requests are under way
engine_watch  asks an engine while requests wait for it, and takes them away from one that is frozen
"""
