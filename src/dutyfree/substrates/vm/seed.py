"""The seed disk, which a machine reads at its first boot, in the format that cloud-init calls NoCloud.

Our own base reads plain files; other bases read cloud-init's documents. Both have the same content.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a machine, and the key that may log in."""

    hostname: str
    machine_id: str
    """32 hexadecimal digits."""
    host_key: str
    """The private SSH host key of the machine; `host_key_public` belongs to it."""
    host_key_public: str
    authorised_key: str
    """The public key that may log in as root."""


def documents(identity: Identity) -> dict[str, str]:
    """The files of the seed, by name."""
    return {
        "meta-data": _json({"instance-id": identity.machine_id, "local-hostname": identity.hostname}),
        "user-data": "#cloud-config\n" + _json(_cloud_config(identity)),
        "network-config": _json({"version": 2, "ethernets": {"all": {"match": {"name": "e*"}, "dhcp4": True}}}),
        "hostname": identity.hostname + "\n",
        "host_key": identity.host_key,
        "authorized_keys": identity.authorised_key + "\n",
    }


def write(directory: Path, identity: Identity) -> None:
    """Make the directory that the machine sees as its seed disk."""
    directory.mkdir(mode=0o700)
    for name, content in documents(identity).items():
        with os.fdopen(os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(content)


def _cloud_config(identity: Identity) -> dict[str, object]:
    return {
        "hostname": identity.hostname,
        "disable_root": False,
        "ssh_pwauth": False,
        "ssh_deletekeys": True,
        "ssh_keys": {"ed25519_private": identity.host_key, "ed25519_public": identity.host_key_public},
        "ssh_authorized_keys": [identity.authorised_key],
        "users": ["default", {"name": "root", "ssh_authorized_keys": [identity.authorised_key]}],
    }


def _json(value: object) -> str:
    # JSON is YAML.
    return json.dumps(value, indent=1) + "\n"
