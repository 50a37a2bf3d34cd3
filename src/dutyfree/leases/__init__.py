"""Leases, as every host gives them: the table, the fence in front of a tenant, and what is bound to a lease late."""

from dutyfree.leases.table import Lease, LeaseTable

__all__ = ["Lease", "LeaseTable"]
