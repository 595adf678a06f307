"""Write objects and statuses: only if something differs, and never over an object that the controller does not own.

owned_objects, owned_kinds  server-side applies of the objects of services, Models and routers
status_writer               status of Models, InferenceServices and ModelRouters; Events and metrics of new phases
"""
