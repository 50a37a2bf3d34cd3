"""All probes, by topic."""

from __future__ import annotations

from dutyfree.testing.isolation.accounts import ACCOUNTS
from dutyfree.testing.isolation.caches import CACHES
from dutyfree.testing.isolation.egress import EGRESS
from dutyfree.testing.isolation.egress_load import EGRESS_LOAD
from dutyfree.testing.isolation.exhaustion import EXHAUSTION
from dutyfree.testing.isolation.files import FILES
from dutyfree.testing.isolation.guest import GUEST
from dutyfree.testing.isolation.kernel import KERNEL
from dutyfree.testing.isolation.mounts import MOUNTS
from dutyfree.testing.isolation.network import NETWORK
from dutyfree.testing.isolation.ordinary import ORDINARY
from dutyfree.testing.isolation.ports import PORTS
from dutyfree.testing.isolation.privileges import PRIVILEGES
from dutyfree.testing.isolation.probe import Probe
from dutyfree.testing.isolation.processes import PROCESSES
from dutyfree.testing.isolation.users import USERS

PROBES: tuple[Probe, ...] = tuple(
    probe
    for topic in (
        ORDINARY,
        FILES,
        PROCESSES,
        KERNEL,
        PRIVILEGES,
        NETWORK,
        GUEST,
        EXHAUSTION,
        USERS,
        ACCOUNTS,
        PORTS,
        MOUNTS,
        CACHES,
        EGRESS,
        EGRESS_LOAD,
    )
    for probe in topic.probes
)
