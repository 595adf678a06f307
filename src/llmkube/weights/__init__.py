"""Model files: where they come from, where they are kept, what their headers say, what they need in memory.

    source, urls, address_policy  `spec.source` and `spec.files`; which addresses may be asked
    ollama_model                  `ollama://…`
    download                      from Hugging Face, buckets and the web, resumed and verified
    store                         blobs by digest on this disk
    formats                       GGUF headers
    estimate                      bytes that an engine will take
    split_names                   how the parts of a split model are called
    http_responses, errors        what servers answer, and whose fault it is
Nothing here knows Kubernetes objects or starts an engine.
"""
