"""The user's side: a host gives out leases, a lease gives a box, and a box runs commands."""

from dutyfree.client.box import Box
from dutyfree.client.local import LocalHost, local
from dutyfree.client.process import Process
from dutyfree.client.stream import Stream

__all__ = ["Box", "LocalHost", "Process", "Stream", "local"]
