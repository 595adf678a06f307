"""How backends do while no request says so: probes that a spec asks for, and engines that have stopped to answer.

probe_state   when a probe's answers make a backend unhealthy, and healthy again; pure
silence       when an engine that says nothing is frozen, and when it only computes; pure
probes        one task for each backend with a healthCheck
cache_use     how full an engine's KV cache is, as it says at /slots; pure
cache_watch   asks engines for that while requests are under way
engine_watch  asks an engine while requests wait for it, and takes them away from one that is frozen
"""
