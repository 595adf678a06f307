"""After an engine fails, continues its answer on another engine of the same model. Pure.

continuable    whether the answer to a request can be continued, and why not
joined_answer  the answer so far, and the output of several engines as one stream; the engines that may continue it
token_count    tokens of all engines
"""
