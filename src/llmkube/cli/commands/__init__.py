"""The commands, by subject; each module has one command, or one part of it.

programs   agent, controller, apiserver, up: what runs until it is stopped
services   run, deploy, pull, list, status, ps, top, queue, scale, restart, delete, logs
inference  chat, port-forward: what talks to an engine
models     inspect, fit, cache, catalog: model files
router     router: which way a request takes, and whether a log of decisions is whole
tools      crds, rbac, convert, completion, man: what prints manifests, scripts and pages
"""
