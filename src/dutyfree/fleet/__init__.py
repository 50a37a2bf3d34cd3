"""Fleets of nodes: which node serves a request."""
