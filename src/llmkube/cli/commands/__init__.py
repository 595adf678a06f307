"""The commands, by subject; each module has one command, or one part of it.

programs   agent, controller, apiserver, up: what runs until it is stopped
services   deploy, list, status, scale, delete, logs
inference  chat, port-forward: what talks to an engine
models     inspect, fit, cache: model files
tools      crds, rbac, convert, completion: what prints manifests and scripts
"""
