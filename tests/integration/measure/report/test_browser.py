"""The page in a real browser, wide and on a phone: no complaint, nothing cut off, nothing fetched."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import zlib
from pathlib import Path

import pytest

from dutyfree.measure.report.write import write_report
from support import report_samples as samples

BROWSER = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--hide-scrollbars", "--enable-logging=stderr", "--v=0"),
)
pytestmark = [
    pytest.mark.xdist_group("report"),
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(BROWSER is None, reason="there is no Chromium here (Debian: apt-get install chromium)"),
]
MEASURE = """<script>parent.postMessage(JSON.stringify([
  document.documentElement.scrollWidth,
  [...document.querySelectorAll("figure svg")].map(each => Math.round(each.getBoundingClientRect().width)),
  [...document.querySelectorAll("figure svg text")].filter(each => !each.getBoundingClientRect().width).length,
]), "*")</script>"""
FRAME = """<!doctype html><title></title><script>onmessage = told => { document.title = told.data }</script>
<iframe src="measured.html" style="border: 0" width="%d" height="2000"></iframe>"""
"""A window is never narrower than 500 pixels; a frame can be."""


@pytest.fixture(scope="module", params=[samples.whole, samples.hostile], ids=["whole", "hostile"])
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(*request.param(), tmp_path_factory.mktemp("page")).page


def browse(page: Path, width: int, profile: Path, *options: str) -> subprocess.CompletedProcess[str]:
    assert BROWSER
    command = [BROWSER, *OPTIONS, f"--user-data-dir={profile}", f"--window-size={width},3000", *options, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


@pytest.mark.parametrize("width", [1200, 390])
def test_the_page_is_shown_without_a_complaint(page: Path, width: int, tmp_path: Path) -> None:
    picture = tmp_path / "page.png"
    done = browse(page, width, tmp_path / "profile", f"--screenshot={picture}")
    assert not [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    size, colours = _looked_at(picture)
    assert size == (width, 3000)
    assert colours > 100, "a blank page has one"


@pytest.mark.parametrize("width", [1200, 390])
def test_nothing_is_wider_than_the_window(page: Path, width: int, tmp_path: Path) -> None:
    # The page itself has no script, and allows none: what measures it goes into a copy.
    text = page.read_text(encoding="utf-8")
    without = re.sub(r"<meta http-equiv=[^>]*>", "", text)
    assert without != text
    (tmp_path / "measured.html").write_text(without.replace("</body>", f"{MEASURE}</body>"), encoding="utf-8")
    frame = tmp_path / "frame.html"
    frame.write_text(FRAME % width)
    done = browse(frame, 1300, tmp_path / "profile", "--virtual-time-budget=3000", "--dump-dom")
    told = re.search(r"<title>\[(\d+),\[([\d,]+)\],(\d+)\]</title>", done.stdout)
    assert told, done.stdout[:400]
    assert int(told[1]) <= width
    drawn = [int(each) for each in told[2].split(",")]
    assert len(drawn) == 13
    assert all(each >= 600 for each in drawn), "legible: what does not fit scrolls within its own frame"
    assert told[3] == "0", "every text of every figure is drawn"


def test_no_script_of_the_results_can_run(tmp_path: Path) -> None:
    """Even if escaping failed, the page's own policy would forbid it."""
    page = write_report(*samples.tiny(), tmp_path / "report").page
    injected = tmp_path / "injected.html"
    text = page.read_text(encoding="utf-8")
    injected.write_text(text.replace("</body>", "<script>document.title = 'run'</script></body>"), encoding="utf-8")
    done = browse(injected, 800, tmp_path / "profile", "--dump-dom")
    assert "<title>run</title>" not in done.stdout
    assert "Content Security Policy" in done.stderr


def _looked_at(path: Path) -> tuple[tuple[int, int], int]:
    """The size of a PNG, and of how many different bytes its (still filtered) pixels consist."""
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", data[16:24])
    place, pixels = 8, b""
    while place < len(data):
        length, kind = struct.unpack(">I4s", data[place : place + 8])
        pixels += data[place + 8 : place + 8 + length] if kind == b"IDAT" else b""
        place += 12 + length
    return (width, height), len(set(zlib.decompress(pixels)))
