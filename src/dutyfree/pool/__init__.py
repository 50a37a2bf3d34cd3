"""Pools: sandboxes that are ready before they are requested, and the leases on them.

`core` decides, without I/O: which sandboxes to create, keep and destroy (`planner`), which idle sandbox is closest to
the wanted state (`routing`), which request is served next (`queue`). `pool` drives the core with asyncio;
`dutyfree.simulate` drives the same core with virtual time. A host without a pool uses a pool with the policy `cold`,
which keeps no warm sandboxes.
"""
