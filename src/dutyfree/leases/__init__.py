"""Leases of a host: the table, the fence between a tenant and its sandbox, and the binding of secrets and files."""

from dutyfree.leases.table import Lease, LeaseTable

__all__ = ["Lease", "LeaseTable"]
