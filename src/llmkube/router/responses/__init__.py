"""Responses that a router keeps, so that a client can go on with one by its id: bounded, in memory, each its tenant's.

What is kept has the data classes and regions of the requests that made it (`router.policy.data_limits`).

store          what is kept, and what gives way; pure
stored_pages   what `GET` and `DELETE` on `/v1/responses/…` answer; pure
conversations  joins a request with what it continues, and keeps its answer
"""
