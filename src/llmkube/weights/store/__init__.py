"""Model files on this disk, by digest. All functions block, so they are called in threads.

blobs, partial  complete and incomplete files
index           the blobs of each source, and who may use them
cache           list and prune
disk            free space, reserved before it is used
local_files     files that other programs may change
local_sources   the files of this host that an object may use
"""
