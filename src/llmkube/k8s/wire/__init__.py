"""What agent, controller and command line say to each other through objects. Pure.

service_health        how a service does: the one judgement that all readers share
reasons               every reason, and what it means to a reader
conditions            set, find and compare them
names, times          labels and names, RFC 3339
name_rules            which names are allowed, in kube-apiserver's words
termination_message   what a Job's container leaves behind
"""
