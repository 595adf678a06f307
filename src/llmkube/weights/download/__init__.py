"""One file or all parts of a model, from a server into the store.

fetch, downloader, single_flight        a source at most once at a time, however many wait
transfer, receiver, retry               one file: resumed, hashed while it streams, tried again
redirects, http_get, guarded_transport  one request; every address is checked first
hugging_face, buckets, freshness        what the servers are like
remote_header                           the header of a file without its body
"""
