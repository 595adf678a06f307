"""What the controller writes: only on a difference, and never over an object that it does not own.

owned_objects, owned_kinds  server-side applies of what services, Models and routers own
status_writer               status of Models, InferenceServices and ModelRouters; what a new phase causes
"""
