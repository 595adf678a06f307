"""Building blocks that know nothing about language models or Kubernetes. Imports no other package of this program.

http                    HTTP/1.1 server and client, on Trio
errors                  error classes: invalid input, or an external failure
settings, units, times  flags, environment and files; bytes and durations; the wall clock
log, messages           structured logs; redaction of credentials
lazy_log                a logger for modules that short commands import
event_stream            parser of server-sent events
backoff, mailbox        retry delays; a one-slot mailbox
waiting                 wait for the first of several events, or for a tick that all tasks share
private_files           files that only their owner can read, and tokens stored in them
probes                  /healthz, /readyz, /metrics
trusted_paths           which users can change where a path leads
json_text               JSON as bytes
package_data            tables and texts packaged with a module
full_disk               detection of a full disk, and the message for it
loop_shares             shares of the event loop for clients and for steps on large bodies
loop_watchdog           detection of a stalled event loop
"""
