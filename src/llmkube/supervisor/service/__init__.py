"""One InferenceService on this host, in one nursery.

planner          from the wish to a target: check, fetch, read the header, plan
runner, attempt  one engine after the other, and what one of them goes through
status_manager   from what happens to conditions and Events
"""
