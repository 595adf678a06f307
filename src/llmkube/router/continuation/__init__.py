"""An answer whose engine died goes on at another engine of the same model. Pure.

continuable    whether the answer to a request can go on at all, and why not
joined_answer  what was said so far, and the pieces of several engines as one stream; where it may go on
token_count    how many tokens all engines took
"""
