"""Model files: sources, downloads, the local store, headers and memory estimates.

    source, urls, address_policy  `spec.source` and `spec.files`; the addresses that may be contacted
    ollama_model                  `ollama://…`
    download                      from Hugging Face, buckets, registries and the web, resumed and verified
    store                         blobs by digest on this disk
    formats                       GGUF headers
    estimate                      the memory that an engine will need
    split_names                   the names of the parts of a split model
    http_responses, errors        the meaning of responses, and the errors
No module here handles Kubernetes objects or starts an engine.
"""
