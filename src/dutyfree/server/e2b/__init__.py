"""The E2B face: the interface of E2B's control plane and daemon, over any `Host`."""

from dutyfree.server.e2b.app import E2BApp
from dutyfree.server.e2b.settings import Settings

__all__ = ["E2BApp", "Settings"]
