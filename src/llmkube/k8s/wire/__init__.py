"""The vocabulary that agent, controller and command line share in objects. Pure.

service_health        the health of a service, which all readers share
reasons               the reasons of conditions and what they mean to a reader
conditions            condition types; create, find and compare conditions
names, times          labels, annotations and names; RFC 3339
name_rules            the validation of names, with kube-apiserver's messages
termination_message   the result that a Job's container leaves for the controller
"""
