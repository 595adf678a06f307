"""Which backends a request may reach, and in which order they are asked: pure functions of request and config. Pure.

request_facts  what policy knows of a request
permits        which backends it may reach at all, computed once, before any rule is asked
decision       which rule decides, and in which order what is permitted is tried
"""
