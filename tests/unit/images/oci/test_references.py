"""Which names are a registry's, and what their addresses are."""

from __future__ import annotations

import pytest

from dutyfree.errors import InvalidRequest
from dutyfree.images.oci.references import REGISTRY_VARIABLE, address_of, import_command
from dutyfree.images.store.names import check_name

DIGEST = "sha256:" + "0123456789abcdef" * 4


@pytest.fixture(autouse=True)
def _no_mirror(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(REGISTRY_VARIABLE, raising=False)


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("python:3.11-slim", "docker://docker.io/library/python:3.11-slim"),
        ("team/app", "docker://docker.io/team/app"),
        ("docker.io/library/python:3", "docker://docker.io/library/python:3"),
        ("ghcr.io/team/app:V1.0_x", "docker://ghcr.io/team/app:V1.0_x"),
        ("localhost/app:1", "docker://localhost/app:1"),
        ("127.0.0.1:5000/team/app:1", "docker://127.0.0.1:5000/team/app:1"),
        ("registry:5000/app", "docker://registry:5000/app"),
        (f"python@{DIGEST}", f"docker://docker.io/library/python@{DIGEST}"),
        (f"python:3.11@{DIGEST}", f"docker://docker.io/library/python@{DIGEST}"),
    ],
)
def test_a_tag_a_digest_or_a_slash_makes_a_reference(name: str, address: str) -> None:
    assert address_of(name) == address
    check_name(name)  # so that the store can keep it under this name


@pytest.mark.parametrize(
    "name",
    [
        *(
            "middle",
            "python",
            "3f2a1b",
            DIGEST,
            DIGEST[:20],
            "",
            ":1",
            "a:",
            "/a:1",
            "a//b:1",
            "a b:1",
            "A/b:1",
            "a/B:1",
        ),
        *("docker://python:3", "../a:1", "a/../b:1", "-a:1", "a:1\n", "a:1 --insecure", "é:1", f"a@{DIGEST[:-1]}"),
    ],
)
def test_other_names_are_fetched_from_nowhere(name: str) -> None:
    assert address_of(name) is None


def test_a_mirror_stands_for_the_default_registry_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(REGISTRY_VARIABLE, "127.0.0.1:5000/hub")
    assert address_of("python:3") == "docker://127.0.0.1:5000/hub/library/python:3"
    assert address_of("docker.io/team/app:1") == "docker://127.0.0.1:5000/hub/team/app:1"
    assert address_of("ghcr.io/team/app:1") == "docker://ghcr.io/team/app:1"
    monkeypatch.setenv(REGISTRY_VARIABLE, "none")
    assert address_of("python:3") is None
    assert address_of("ghcr.io/team/app:1") is None


@pytest.mark.parametrize("registry", ["http://127.0.0.1:5000", "a b", "-x", "host/", "host/UP", "--insecure"])
def test_a_registry_that_is_none_is_refused(registry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(REGISTRY_VARIABLE, registry)
    with pytest.raises(InvalidRequest, match="no registry"):
        address_of("python:3")


def test_the_command_that_imports_a_name() -> None:
    assert import_command("python:3") == "dutyfree image import docker://docker.io/library/python:3 --name python:3"
    assert import_command("python") == "dutyfree image import docker://python --name python"
    assert import_command("no such") is None
    assert import_command(DIGEST) is None
