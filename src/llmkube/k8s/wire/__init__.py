"""What agent, controller and command line say to each other through objects. Pure.

reasons               every reason, and what it means to a reader
conditions            set, find and compare them
names, owners, times  labels and names, ownerReferences, RFC 3339
termination_message   what a Job's container leaves behind
"""
