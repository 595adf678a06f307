"""One file or all parts of a model, from a server into the store.

fetch, downloader, single_flight   a source at most once at a time, however many wait
resolver, progress                 which files it means, where they are; how far they are together
transfer, retry                    one file: resumed, tried again
body_pipe                          its bytes: written and hashed while they stream, and copied nowhere
redirects, guarded_transport       one request; every address is checked first
hugging_face, buckets, registry    what the servers are like
remote_header                      the header of a file without its body
"""
