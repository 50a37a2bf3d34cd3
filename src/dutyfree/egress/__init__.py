"""Egress by name: the host's side of every connection that programs in a sandbox make to the outside.

The guest listens on the sandbox's own loopback and carries bytes; it decides nothing. Here, names are checked, looked
up and connected to.
"""
