"""What OpenSSH's client is told, and what machines are told at their first boot."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from dutyfree.substrates.vm.seed import Identity, documents, write
from dutyfree.substrates.vm.ssh import Login, known_hosts_line

LOGIN = Login("127.0.0.1", 2222, "root", Path("/keys/key"), Path("/keys/known hosts"))
IDENTITY = Identity("box", "0" * 32, "PRIVATE\nKEY\n", "ssh-ed25519 AAAA host", "ssh-ed25519 BBBB ours")


def options(argv: list[str]) -> dict[str, str]:
    pairs = [argv[index + 1] for index, word in enumerate(argv) if word == "-o"]
    return {name: value for name, _, value in (pair.partition("=") for pair in pairs)}


def test_nothing_of_the_users_own_configuration_is_used() -> None:
    argv = LOGIN.argv("true")
    assert argv[:3] == ["ssh", "-F", "none"]
    told = options(argv)
    assert told["IdentitiesOnly"] == told["BatchMode"] == "yes"
    assert told["IdentityAgent"] == told["ControlPath"] == "none"
    assert told["GlobalKnownHostsFile"] == "/dev/null"
    assert argv[-3:] == ["--", "127.0.0.1", "true"]


def test_the_machine_must_show_the_key_that_it_was_given() -> None:
    told = options(LOGIN.argv("true"))
    assert told["StrictHostKeyChecking"] == "yes"
    assert told["UserKnownHostsFile"] == '"/keys/known hosts"'
    first = Login("h", 22, "root", Path("/k"), Path("/h"), trust_first=True)
    assert options(first.argv("true"))["StrictHostKeyChecking"] == "accept-new"
    assert known_hosts_line("127.0.0.1", 2222, "ssh-ed25519 AAAA comment") == "[127.0.0.1]:2222 ssh-ed25519 AAAA\n"


def test_openssh_itself_finds_the_key_whatever_the_port(tmp_path: Path) -> None:
    if shutil.which("ssh-keygen") is None:
        pytest.skip("machines: OpenSSH's client is not installed")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "key"], check=True)
    known_hosts = tmp_path / "known_hosts"
    for port, asked in ((22, "10.0.0.1"), (2222, "[10.0.0.1]:2222")):
        known_hosts.write_text(known_hosts_line("10.0.0.1", port, (tmp_path / "key.pub").read_text()))
        found = subprocess.run(["ssh-keygen", "-F", asked, "-f", known_hosts], capture_output=True, check=False)
        assert found.returncode == 0, asked


def test_a_silent_cut_is_noticed_within_five_seconds() -> None:
    told = options(LOGIN.argv("true"))
    assert int(told["ServerAliveInterval"]) * (int(told["ServerAliveCountMax"]) + 1) < 5


def test_a_connection_is_offered_by_one_and_reused_by_others() -> None:
    offered = options(LOGIN.argv("guest", shared=Path("/run/50%/1.ssh"), sharing=True))
    assert (offered["ControlMaster"], offered["ControlPath"]) == ("yes", "/run/50%%/1.ssh")
    reused = options(LOGIN.argv("guest", shared=Path("/run/1.ssh")))
    assert (reused["ControlMaster"], reused["ControlPath"]) == ("no", "/run/1.ssh")


def test_others_than_root_use_sudo() -> None:
    assert LOGIN.as_root("sh", "-c", "echo a b") == "sh -c 'echo a b'"
    other = Login("h", 22, "debian", Path("/k"), Path("/h"))
    assert other.as_root("/guest", "--stdio") == "sudo -n -- /guest --stdio"


def test_both_readers_of_the_seed_are_told_the_same() -> None:
    told = documents(IDENTITY)
    head, _, body = told["user-data"].partition("\n")
    config = json.loads(body)
    assert head == "#cloud-config"
    assert config["ssh_keys"]["ed25519_private"] == told["host_key"] == IDENTITY.host_key
    assert config["ssh_authorized_keys"] == [told["authorized_keys"].strip()]
    assert json.loads(told["meta-data"])["local-hostname"] == told["hostname"].strip() == "box"


def test_nobody_else_can_read_the_seed(tmp_path: Path) -> None:
    write(tmp_path / "seed", IDENTITY)
    assert (tmp_path / "seed").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "seed").iterdir()} == {0o600}
