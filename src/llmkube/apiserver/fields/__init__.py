"""Field ownership: server-side apply, managedFields and strategic merge patches. Pure.

    ownership         an apply or an update: merged object, conflicts, new managedFields
    merge, fieldset   merge and compare by schema; sets of paths (`f:`, `k:`, `v:`)
The algorithm is that of sigs.k8s.io/structured-merge-diff; no object is read or stored here.
"""
