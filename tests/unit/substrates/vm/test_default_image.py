"""Machines start from their base disk: neither `doctor` nor "auto" may ask for an image."""

from __future__ import annotations

from pathlib import Path

import pytest

from dutyfree.substrates.vm import VMSubstrate


def test_a_machine_needs_no_image(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DUTYFREE_IMAGE", raising=False)
    assert VMSubstrate(store=tmp_path).has_default_image
