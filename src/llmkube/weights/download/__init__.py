"""Download one file or all parts of a model from a server into the store.

fetch, downloader                  a source, at most once at a time for all waiters
resolver, progress                 the files of a source and their URLs; their total progress
transfer, retry                    one file: resumed and retried
body_pipe                          its bytes: written and hashed while they stream, without copies
redirects, guarded_transport       one request; every address is checked first
hugging_face, buckets, registry    the kinds of servers
remote_header                      the header of a file without its body
"""
