"""Where the beginning of a prompt is in an engine's cache, as the engines' own answers have taught. Pure.

warm_prefixes  which backend has computed which prompts, for each tenant by itself; pure
own_prompts    the prompts that each tenant was answered of late, in bounds; pure
"""
