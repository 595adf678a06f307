"""Objects and their revisions: in memory for readers, in SQLite for the next start.

    revisions        the store: objects, a log of changes per kind, transactions, an object as JSON
    write_ahead_log  makes changes durable before they are shown
    committer        decides writes one after another, syncs them in groups
`writes` decides what a write may do; this package only stores the result.
"""
