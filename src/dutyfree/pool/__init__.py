"""Warm pools: sandboxes that are ready before somebody asks, and leases on them.

Decisions are pure and take their time from whoever asks: `planner` (what to make, keep and end), `routing` (which idle
sandbox is closest to what is wanted), `leases` (who has what, until when), `admission` (whose turn it is), `isolation`
(which substrate, for whose code). `pool` carries them out.
"""
