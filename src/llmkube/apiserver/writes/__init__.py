"""What each verb does to an object, decided on a transaction. Nothing here waits for a disk or a socket. Pure.

rest_handlers                 one entry for all verbs
write_planner, apply_planner  create, update, patch; server-side apply
preparation, strategy         decode, default, reset, validate, stamp
request_objects               what was sent reads; uid, resourceVersion, namespace
deletion, garbage_collector   finalizers, propagation, dependents; Events live for an hour
patches                       merge patch and JSON patch
"""
