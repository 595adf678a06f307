"""Estimate which engine has the start of a prompt in its cache, from what engines report in their answers. Pure.

warm_prefixes   the prompts that each backend has computed, separately for each tenant
tenant_prompts  the recent prompts of each tenant, within bounds
"""
