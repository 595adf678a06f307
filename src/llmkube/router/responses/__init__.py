"""Responses that a router keeps, so that a client can go on with one by its id: bounded, in memory, each its tenant's.

store          what is kept, with its data classes and regions, and what gives way; what is answered about it; pure
conversations  joins a request with what it continues, and keeps its answer
"""
