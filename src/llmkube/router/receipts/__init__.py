"""Decisions as a chain that shows when one of them was changed, left out or put in: pure.

chain   writes: each line carries its own hash and that of the line before
verify  reads: names the first line that does not follow, and says when an end is missing
"""
