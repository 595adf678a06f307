"""HTTP as kube-apiserver speaks it: what a request means, and what an answer looks like. It decides no write.

routes, negotiation               the URL, and media types
request_bodies                    JSON, YAML and protobuf (protobuf, protobuf_bodies) into objects
list_query, list_page             lists in pages
watch_stream                      watches with bookmarks
responses, table, ages            objects, Tables for `kubectl get`, watch lines
server_info, discovery, openapi*  what the server says of itself
"""
