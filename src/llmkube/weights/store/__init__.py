"""Model files on this disk, by digest. Everything blocks, so it is called in threads.

blobs, partial  whole files, and files on their way
index           which blobs a source led to, and who may have them
cache           list and prune
disk            free space, reserved before it is used
local_files     files that other programs may change
local_sources   which files of this host an object may name
"""
