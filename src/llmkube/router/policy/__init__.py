"""Decide from request and config which backends a request may reach, and in which order. Pure.

request_facts  the facts of a request on which policy is based
permits        the backends that a request may reach at all, computed once, before any rule
decision       the rule that applies, and the order of its permitted backends
"""
