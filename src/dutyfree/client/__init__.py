"""The user's side: a host gives out leases, a lease gives a box, and a box runs commands."""
