"""Commands about model files, one module each.

inspect, fit  a file's metadata; whether the model fits into memory
plan, plan_file  what a set of hosts would hold: decided; read and shown
cache         the model files on this machine
catalog       the models that can be deployed by name
"""
