"""Each verb as a decision on a transaction. Nothing here waits for a disk or a socket. Pure.

rest_handlers                 one entry point for all verbs
write_planner, apply_planner  create, update, patch; server-side apply
preparation, strategy         decode, default, reset, validate, stamp
request_objects               check what was sent: type, name, namespace, uid, resourceVersion
deletion, garbage_collector   finalizers, propagation, dependents; Events expire after an hour
patches                       merge patch and JSON patch
"""
