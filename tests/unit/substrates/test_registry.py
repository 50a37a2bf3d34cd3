"""The registry finds substrates by name, imports them late, and names a broken plugin."""

import subprocess
import sys
from pathlib import Path

import pytest

from dutyfree.errors import InvalidRequest, SubstrateUnavailable
from dutyfree.substrates import load, names
from dutyfree.substrates.fake import FakeSubstrate


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed distribution that adds substrates; its module is written by the test."""
    info = tmp_path / "acme_boxes-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-boxes\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[dutyfree.substrates]\nacme = acme_boxes:Acme\nhollow = acme_boxes:hollow\nfake = acme_boxes:Acme\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "acme_boxes", raising=False)
    return tmp_path / "acme_boxes.py"


def test_the_built_in_names_are_there() -> None:
    assert {"process", "cell", "fake"} <= set(names())


def test_load_makes_a_new_substrate_each_time() -> None:
    first, second = load("fake", seed=1), load("fake")
    assert isinstance(first, FakeSubstrate)
    assert first is not second


def test_an_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(InvalidRequest, match=r"'dokcer'.*cell.*fake.*process"):
        load("dokcer")


def test_an_unknown_option_is_the_callers_fault() -> None:
    with pytest.raises(InvalidRequest, match="colour"):
        load("fake", colour="red")


def test_a_plugin_is_listed_and_loaded(plugin: Path) -> None:
    plugin.write_text("from dutyfree.substrates.fake import FakeSubstrate\nclass Acme(FakeSubstrate):\n    pass\n")
    assert "acme" in names()
    assert type(load("acme", seed=3)).__name__ == "Acme"


def test_a_plugin_cannot_take_over_a_built_in_name(plugin: Path) -> None:
    plugin.write_text("from dutyfree.substrates.fake import FakeSubstrate\nclass Acme(FakeSubstrate):\n    pass\n")
    assert type(load("fake")) is FakeSubstrate


@pytest.mark.parametrize("source", ["import no_such_module_at_all", "1/0", "", "class Acme:\n  x = 1", "def ("])
def test_a_broken_plugin_is_named_and_only_when_asked_for(plugin: Path, source: str) -> None:
    plugin.write_text(source)
    assert "acme" in names()
    with pytest.raises(SubstrateUnavailable, match=r"acme.*acme_boxes:Acme.*acme-boxes"):
        load("acme")


def test_a_plugin_that_gives_something_else_is_broken(plugin: Path) -> None:
    plugin.write_text("def hollow():\n    return None\n")
    with pytest.raises(SubstrateUnavailable, match="NoneType"):
        load("hollow")


def test_asking_for_the_names_imports_no_substrate() -> None:
    program = (
        "import sys; from dutyfree.substrates import names; names(); print([m for m in sys.modules if 'fake' in m])"
    )
    seen = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert seen.stdout.strip() == "[]"
