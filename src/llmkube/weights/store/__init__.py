"""Model files on this disk, by digest. Everything blocks, so it is called in threads.

blobs, partial  whole files, and files on their way
index           which blobs a source led to
cache           list and prune
disk            free space, reserved before it is used
local_files     files that are not ours
"""
