"""Plumbing that knows nothing of language models or Kubernetes. It imports no other room of this program.

http                    HTTP/1.1 server and client, on Trio
errors                  whose fault an error is: the user's or the world's
settings, units, times  flags, environment and files; bytes and durations; the wall clock
log, messages           structured logs; redaction of credentials
backoff, mailbox        retries, one-slot hand-over
waiting                 for one thing or another, and for the same moment as others
private_files           files for the owner only, and tokens that stay in them
probes                  /healthz, /readyz, /metrics
trusted_paths           which users decide where a path leads
json_text               JSON as bytes
tables                  TOML beside the module that reads it
full_disk               a disk without room, and what helps
loop_watchdog           tells of an event loop that stands still
"""
