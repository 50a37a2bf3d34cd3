"""Hosts on other machines: `connect(url)` gives leases on the sandboxes of a server."""
