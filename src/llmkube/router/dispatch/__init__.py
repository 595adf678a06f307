"""Carries out routing decisions: tries the permitted backends in order until the client has its answer.

dispatcher         tries backends in order; continues an answer on another engine if its engine fails
backend_call       calls one backend, after queueing if it has slots, and sends its answer to the client
attempt            a request to one backend, until its answer has started; attempt_charges: its budget charges
relay              streams an answer to the client
record             record of a request, which the others update
transport          the only connection to backends: it dials with a Permit
circuits           circuit breakers and statistics of backends
suspects           requests that were in engines when these died
verdicts           failures that cause a fallback; event_stream: events of a stream
request_body       body fields that are forwarded; forwarded_headers: headers that are forwarded
"""
