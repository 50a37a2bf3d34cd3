"""Terms of measuring are defined in each document that uses them: a reader may begin with any of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.repository import ROOT

DOCUMENTS = [ROOT / "README.md", *sorted(path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "adr")]
DEFINED = {
    r"\barms?\b": r"substrate with its options",
    r"\bthe paper\b": r"arXiv 2607\.01415",
    r"\bT[012]\b": r"minimal commands|code inspection|a repair\b|inspects? code",
}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
@pytest.mark.parametrize("term", DEFINED)
def test_a_term_is_defined_where_it_is_used(path: Path, term: str) -> None:
    text = " ".join(path.read_text().replace("*", "").split())
    if re.search(term, text):
        assert re.search(DEFINED[term], text), f"{path.name} uses {term} and does not say what it is"
