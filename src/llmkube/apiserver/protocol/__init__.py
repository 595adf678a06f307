"""HTTP as kube-apiserver speaks it: what a request means, and what an answer looks like. It decides no write.

negotiation                       media types
request_bodies                    JSON, YAML and protobuf (protobuf_bodies) into objects
list_query                        lists in pages
watch_stream                      watches with bookmarks
responses, table                  objects, Tables for `kubectl get`, watch lines
server_info, discovery, openapi*  the URL; what the server says of itself
"""
