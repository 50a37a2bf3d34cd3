"""The SWE-ReX face: the routes of swe-rex 1.4.0, for SWE-ReX, SWE-agent and mini-swe-agent's swerex environments."""

from dutyfree.server.swerex.app import SwerexApp
from dutyfree.server.swerex.settings import Settings

__all__ = ["Settings", "SwerexApp"]
