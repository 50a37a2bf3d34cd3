"""The configuration of the cloud provider, a TOML file: the cloud, the kind of machine, and the login.

::

    [cloud]
    provider = "ec2"                    # as Apache Libcloud calls it
    image = "ami-0123456789abcdef0"     # by id or by name; so are sizes and locations
    size = "t3.small"
    location = "us-east-1a"             # optional
    user = "admin"                      # root, or a user with sudo and no password
    private_key = "~/.ssh/rollouts"     # of a key pair that the image accepts
    user_data = "ex_userdata"           # optional: the driver's name for cloud-init's user data, see below

    [cloud.driver]                      # the driver's own arguments; $NAME is taken from the environment
    key = "$AWS_ACCESS_KEY_ID"
    secret = "$AWS_SECRET_ACCESS_KEY"
    region = "us-east-1"

    [cloud.node]                        # further arguments of its create_node
    ex_keyname = "rollouts"

With `user_data`, each machine gets its own SSH host key, which is checked; without it, the first host key that a
machine shows is trusted.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

from dutyfree.errors import InvalidRequest
from dutyfree.tables import read_document

VARIABLE = "DUTYFREE_CLOUD"
"""The environment variable with the file's path, for substrates without `config=`."""
_PLACES = frozenset({"region", "host", "path", "datacenter", "project", "location", "zone", "api_version"})


@dataclass(frozen=True, slots=True)
class CloudConfig:
    """The content of the file; the module's docstring explains the fields."""

    provider: str
    image: str
    size: str
    private_key: Path
    user: str = "root"
    port: int = 22
    location: str | None = None
    user_data: str | None = None
    boot_timeout_s: float = 600.0
    driver: Mapping[str, Any] = field(default_factory=dict, repr=False)
    node: Mapping[str, Any] = field(default_factory=dict, repr=False)
    secrets: frozenset[str] = field(default=frozenset(), repr=False)
    """Values of the two tables that no message may contain."""

    def hide(self, text: str) -> str:
        """The text with secrets replaced by ***, also where a URL has them percent-encoded."""
        forms = {form for each in self.secrets for form in (each, quote(each), quote(each, safe=""), quote_plus(each))}
        for form in sorted(forms, key=len, reverse=True):
            text = text.replace(form, "***")
        return text


def read(path: str | Path | None, environment: Mapping[str, str] = os.environ) -> CloudConfig:
    """Read the file, and take its $NAME values from the environment. Raises InvalidRequest."""
    chosen = path or environment.get(VARIABLE)
    if not chosen:
        hint = f"pass config=FILE, or set {VARIABLE} to the file's path"
        raise InvalidRequest("no configuration says which cloud to use", hint=hint)
    return parse(read_document(Path(chosen).expanduser(), "cloud's file"), environment)


def parse(document: Mapping[str, Any], environment: Mapping[str, str]) -> CloudConfig:
    """The configuration in a parsed file. Raises InvalidRequest for a missing, unknown or wrongly typed value."""
    cloud = document.get("cloud")
    if not isinstance(cloud, dict):
        raise InvalidRequest("the file has no table [cloud]")
    kinds = {
        "provider": str, "image": str, "size": str, "private_key": str, "user": str, "port": int, "location": str,
        "user_data": str, "boot_timeout_s": (int, float), "driver": dict, "node": dict,
    }  # fmt: skip
    for name, value in cloud.items():
        if name not in kinds:
            raise InvalidRequest(f"[cloud] has an unknown field {name!r}", hint=f"the fields are: {', '.join(kinds)}")
        if not isinstance(value, kinds[name]):  # type: ignore[arg-type]
            raise InvalidRequest(f"{name!r} in [cloud] has the wrong type: {value!r:.80}")
    missing = [name for name in ("provider", "image", "size", "private_key") if not cloud.get(name)]
    if missing:
        raise InvalidRequest(f"[cloud] lacks: {', '.join(missing)}")
    values = dict(cloud)
    values["private_key"] = Path(values["private_key"]).expanduser()
    for table in ("driver", "node"):
        values[table] = {name: _expanded(value, environment) for name, value in cloud.get(table, {}).items()}
    return CloudConfig(**values, secrets=_secrets(cloud, values))


def _secrets(written: Mapping[str, Any], values: Mapping[str, Any]) -> frozenset[str]:
    """All arguments of the driver except locations (`_PLACES`), and all values that came from the environment."""
    found = {value for name, value in values["driver"].items() if name not in _PLACES}
    for table in ("driver", "node"):
        of_environment = (name for name, value in written.get(table, {}).items() if str(value).startswith("$"))
        found |= {values[table][name] for name in of_environment}
    return frozenset(each for each in found if isinstance(each, str) and each)


def _expanded(value: Any, environment: Mapping[str, str]) -> Any:
    if not isinstance(value, str) or not value.startswith("$"):
        return value
    if value[1:] not in environment:
        raise InvalidRequest(f"the environment has no {value[1:]!r}, which the cloud configuration refers to")
    return environment[value[1:]]
