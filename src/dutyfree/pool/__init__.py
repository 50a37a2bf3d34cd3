"""Pools: sandboxes that are ready before they are asked for, and the leases on them.

`core` decides, without I/O: what to make, keep and end (`planner`), which idle sandbox is closest to what is wanted
(`routing`), which request comes next (`queue`). `pool` drives it with asyncio; `dutyfree.simulate` drives the same core
with virtual time. A host without a pool is a pool with the policy `cold`: it keeps nothing warm.
"""
