"""Sandboxes of a hosted service that speaks E2B's API, through E2B's own SDK (`dutyfree[hosted]`)."""

from dutyfree.substrates.hosted.substrate import HostedSubstrate

__all__ = ["HostedSubstrate"]
