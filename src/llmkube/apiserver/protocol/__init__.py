"""HTTP as kube-apiserver speaks it: parses requests and formats responses. It decides no write.

negotiation                       media types
request_bodies                    JSON, YAML and protobuf (protobuf_bodies) into objects
list_query                        lists in pages
watch_stream                      watches with bookmarks
responses, table                  objects, Tables for `kubectl get`, watch lines
server_info, discovery, openapi*  URLs; health, version, discovery and OpenAPI
"""
