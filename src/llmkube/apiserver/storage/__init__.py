"""Objects and their revisions: in memory for readers, in SQLite for the next start.

    revisions        the store: objects, a log of changes per kind, transactions
    write_ahead_log  makes changes durable before they are shown
    encoding         an object as JSON, made once
    committer        decides writes one after another, syncs them in groups
    event_expiry     Events live for an hour
What a write may do is decided in `writes`; here it is only kept.
"""
