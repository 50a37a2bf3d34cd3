"""The server: a node, which owns sandboxes, and gateways, which speak HTTP for it."""
