"""What users hold in their hands: a host gives out leases, a lease gives a box, a box runs things."""

from dutyfree.client.box import Box
from dutyfree.client.local import LocalHost, local
from dutyfree.client.stream import Stream

__all__ = ["Box", "LocalHost", "Stream", "local"]
