"""The cloud's file, and what is not tried for lack of a cloud."""

from pathlib import Path

import pytest

from dutyfree.errors import InvalidRequest
from dutyfree.substrates.registry import load
from dutyfree.substrates.vm.cloud_config import parse, read

WHOLE = {"provider": "ec2", "image": "ami-1", "size": "small", "private_key": "/k"}


def test_credentials_come_from_the_environment_and_are_not_shown() -> None:
    config = parse({"cloud": {**WHOLE, "driver": {"key": "$KEY", "region": "eu"}}}, {"KEY": "secret"})
    assert config.driver == {"key": "secret", "region": "eu"}
    assert "secret" not in repr(config)
    with pytest.raises(InvalidRequest, match="'KEY'"):
        parse({"cloud": {**WHOLE, "driver": {"key": "$KEY"}}}, {})


def test_no_message_tells_a_secret_however_it_is_quoted() -> None:
    table = {"key": "abc/d+e f", "token": "abc", "region": "eu"}
    config = parse(
        {"cloud": {**WHOLE, "driver": table, "node": {"password": "$PASSWORD", "size": "big"}}}, {"PASSWORD": "p"}
    )
    message = config.hide("https://eu/?k=abc%2Fd%2Be%20f&l=abc%2Fd%2Be+f&m=abc/d%2Be%20f&n=abc/d+e f&t=abc big p")
    assert message == "htt***s://eu/?k=***&l=***&m=***&n=***&t=*** big ***"


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, r"no table \[cloud\]"),
        ({"cloud": {"provider": "ec2"}}, "image, size, private_key"),
        ({"cloud": {**WHOLE, "sise": "big"}}, "unknown field 'sise'"),
        ({"cloud": {**WHOLE, "port": "22"}}, "wrong type"),
        ({"cloud": {**WHOLE, "driver": "key"}}, "wrong type"),
    ],
)
def test_what_is_wrong_in_the_file_is_named(document: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        parse(document, {})


def test_the_file_is_named_by_an_option_or_a_variable(tmp_path: Path) -> None:
    file = tmp_path / "cloud.toml"
    file.write_text('[cloud]\nprovider = "dummy"\nimage = "1"\nsize = "1"\nprivate_key = "/k"\n')
    assert read(file, {}).provider == "dummy"
    assert read(None, {"DUTYFREE_CLOUD": str(file)}).provider == "dummy"
    with pytest.raises(InvalidRequest, match="which cloud"):
        read(None, {})
    with pytest.raises(InvalidRequest, match="cannot read the cloud's file"):
        read(tmp_path / "nowhere", {})


@pytest.mark.parametrize(
    "options", [{"provider": "cumulus"}, {"boot": "warm"}, {"accelerator": "magic"}, {"base": "/x", "boot": "restore"}]
)
def test_options_that_mean_nothing_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest):
        load("vm", **options)
