"""Commands about model files, one module each.

inspect, fit  what a file says; whether it fits
cache         what is on disk
catalog       what can be deployed by name
"""
