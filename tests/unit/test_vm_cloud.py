"""The cloud's file, and what is not tried for lack of a cloud."""

from pathlib import Path

import pytest

from dutyfree.errors import InvalidRequest
from dutyfree.substrates import claims
from dutyfree.substrates.registry import load
from dutyfree.substrates.vm.cloud import _is_left_over
from dutyfree.substrates.vm.cloud_config import parse, read

WHOLE = {"provider": "ec2", "image": "ami-1", "size": "small", "private_key": "/k"}


def test_credentials_come_from_the_environment_and_are_not_shown() -> None:
    config = parse({"cloud": {**WHOLE, "driver": {"key": "$KEY", "region": "eu"}}}, {"KEY": "secret"})
    assert config.driver == {"key": "secret", "region": "eu"}
    assert "secret" not in repr(config)
    with pytest.raises(InvalidRequest, match="'KEY'"):
        parse({"cloud": {**WHOLE, "driver": {"key": "$KEY"}}}, {})


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ({}, r"no table \[cloud\]"),
        ({"cloud": {"provider": "ec2"}}, "image, size, private_key"),
        ({"cloud": {**WHOLE, "sise": "big"}}, "has no 'sise'"),
        ({"cloud": {**WHOLE, "port": "22"}}, "wrong kind"),
        ({"cloud": {**WHOLE, "driver": "key"}}, "wrong kind"),
    ],
)
def test_what_is_wrong_in_the_file_is_named(document: dict[str, object], told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        parse(document, {})


def test_the_file_is_named_by_an_option_or_a_variable(tmp_path: Path) -> None:
    file = tmp_path / "cloud.toml"
    file.write_text('[cloud]\nprovider = "dummy"\nimage = "1"\nsize = "1"\nprivate_key = "/k"\n')
    assert read(file, {}).provider == "dummy"
    assert read(None, {"DUTYFREE_CLOUD": str(file)}).provider == "dummy"
    with pytest.raises(InvalidRequest, match="which cloud"):
        read(None, {})
    with pytest.raises(InvalidRequest, match="cannot be read"):
        read(tmp_path / "nowhere", {})


@pytest.mark.parametrize(
    "options", [{"provider": "cumulus"}, {"boot": "warm"}, {"accelerator": "magic"}, {"base": "/x", "boot": "restore"}]
)
def test_options_that_mean_nothing_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest):
        load("vm", **options)


def test_only_machines_of_dead_claims_of_this_host_are_left_overs() -> None:
    alive = claims.claim("vm")
    try:
        process, moment, boot = alive.name.split("-")
        assert not _is_left_over(f"dutyfree-{alive.name}-1")
        assert not _is_left_over(f"dutyfree-{process}-{moment}-{'0' * 12}-1")
        assert _is_left_over(f"dutyfree-4194304-{moment}-{boot}-1")
        assert not _is_left_over("web-server-1")
        assert not _is_left_over(None)
    finally:
        alive.release()
