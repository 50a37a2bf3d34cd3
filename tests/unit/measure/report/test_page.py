"""The report of a study: what is on the page, and that nothing in the results can become part of the page itself."""

from __future__ import annotations

import io
import json
import re
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

from dutyfree.errors import InvalidRequest
from dutyfree.measure.design.study import Arm, Grid, Study, Warmth
from dutyfree.measure.report import findings, paper_tables, style, words
from dutyfree.measure.report.evidence import Evidence
from dutyfree.measure.report.figures import catalogue
from dutyfree.measure.report.picture import Drawn, save
from dutyfree.measure.report.tables import Footnotes
from dutyfree.measure.report.terminal import summary
from dutyfree.measure.report.write import Written, write_report
from dutyfree.measure.results.records import Results
from dutyfree.measure.stats.analysis import Analysis, Metric, Setting, analyse
from support import report_samples as samples
from support.synthetic_results import synthetic_results

pytestmark = pytest.mark.xdist_group("report")  # its pages take seconds to draw: once, not by every worker
NAMES = [entry.name for entry in (*catalogue.OF_THE_PAPER, *catalogue.MORE)]
ALL = [
    samples.whole,
    samples.tiny,
    samples.only_failures,
    samples.hostile,
]
VOID = {"meta", "link", "br", "img", "hr", "input"}


class Page(HTMLParser):
    """Reads a page strictly: every element is closed, in order; keeps elements, texts, ids, tables."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.ids: list[str] = []
        self.texts: list[str] = []
        self.tables: dict[str, list[list[str]]] = {}
        self._table = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)
        known = dict(attrs)
        if tag == "section" and known.get("class") == "table":
            self._table = (known.get("aria-labelledby") or "").removeprefix("table-")
            self.tables[self._table] = []
        elif tag == "tr":
            self.tables[self._table].append([])
        elif tag in ("th", "td"):
            self.tables[self._table][-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id" and value]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.texts.append(data)
            if any(tag in ("th", "td") for tag in self.open) and "sup" not in self.open:
                self.tables[self._table][-1][-1] += data

    @property
    def text(self) -> str:
        return " ".join("".join(self.texts).split())


Sample = Callable[[], tuple[Results, Analysis]]
Reports = Callable[[Sample], Written]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    """Reports of samples, each made once."""
    return cache(lambda sample: write_report(*sample(), tmp_path_factory.mktemp("report"), markdown=True))


@pytest.fixture(params=ALL, ids=[each.__name__ for each in ALL])
def written(request: pytest.FixtureRequest, reports: Reports) -> Written:
    return reports(request.param)


@pytest.fixture
def whole(reports: Reports) -> Written:
    return reports(samples.whole)


def test_every_page_is_well_formed_and_says_something(written: Written) -> None:
    page = Page(written.page.read_text(encoding="utf-8"))
    assert len(page.ids) == len(set(page.ids))
    assert page.text.count("What this says") == 2
    headings = [tag for tag, _ in page.elements if tag in ("h1", "h2")]
    assert headings == ["h1", *["h2"] * 7]
    anchors = [known["href"] for tag, known in page.elements if tag == "a"]
    assert all(anchor and anchor.startswith("#") and anchor[1:] in page.ids for anchor in anchors)
    for each in written.report.says:
        assert " ".join(each.text.split()) in page.text


def test_no_page_needs_anything_else(written: Written) -> None:
    page = Page(written.page.read_text(encoding="utf-8"))
    assert not {tag for tag, _ in page.elements} & {"script", "img", "iframe", "object", "embed", "foreignobject"}
    for tag, known in page.elements:
        for name, value in known.items():
            assert not name.startswith("on")
            assert name != "src"
            if name in ("href", "xlink:href"):
                assert value == "data:," or (value or "").startswith("#"), (tag, value)
            for target in re.findall(r"url\(([^)]*)\)", value or ""):
                assert target.startswith("#")
                assert target[1:] in page.ids
    assert "@import" not in (sheet := written.page.read_text(encoding="utf-8").split("</style>")[0])
    assert "url(" not in sheet


def test_figures_are_drawings_with_a_title_and_a_description(written: Written) -> None:
    shown = [each for each in written.report.figures if each.picture]
    for each in shown:
        assert each.picture
        assert each.picture.png.startswith(b"\x89PNG")
        root = ET.fromstring(each.picture.svg)
        title, description = root[0].text, root[1].text
        assert root.get("role") == "img"
        assert title
        assert description
        assert len([None for node in root.iter() if node.tag.endswith(("path", "use"))]) > 5
        assert title in "".join(root.itertext()).replace(title, "", 1), "the file has its title in the drawing, too"
        assert "<metadata" not in each.picture.svg.decode()
        # On a page the heading is the title.
        assert "".join(ET.fromstring(each.picture.inline).itertext()).count(title) == 1
    assert {path.stem for path in written.figures} == {each.name for each in shown}
    assert all(path.stat().st_size > 1000 for path in written.figures)
    assert all(each.reason for each in written.report.figures if each.picture is None)


def test_figures_fill_their_pictures(whole: Written) -> None:
    for each in whole.report.figures:
        assert each.picture
        pixels = imread(io.BytesIO(each.picture.png))
        ink = np.argwhere(pixels[:, :, :3].min(axis=2) < 0.9)
        height, width = pixels.shape[:2]
        assert width > 1200
        (top, left), (bottom, right) = ink.min(axis=0), ink.max(axis=0)
        assert 0 < top < 0.08 * height, each.name
        assert 0 < left < 0.08 * width, each.name
        assert 0.9 * height < bottom < height - 1, each.name
        assert 0.9 * width < right < width - 1, each.name


def test_a_whole_study_has_every_figure_and_every_table(whole: Written) -> None:
    assert [each.name for each in whole.report.figures] == NAMES
    assert all(each.picture for each in whole.report.figures)
    page = Page(whole.page.read_text(encoding="utf-8"))
    assert [known["id"] for tag, known in page.elements if tag == "figure"] == NAMES
    assert set(page.tables) == {
        *("glance", "overheads", "slowest-and-fastest", "sensitivity", "summary", "ratios", "crossovers", "failures"),
        *("soundness", "floor", "machine", "arms"),
    }
    assert all(len(rows) > 1 for rows in page.tables.values())
    # What the paper published stands beside it.
    assert [row[1:3] for row in page.tables["slowest-and-fastest"][1:]] == [
        ["42.5 s", "11,811 h"],
        ["23.4 s", "6,495 h"],
        ["19.1 s", "5,316 h"],
    ]
    assert [row[-1] for row in page.tables["overheads"][2:5]] == ["278 h", "417 h", "4,167 h"]
    for text in ("110×", "42.5 s, fastest 23.4 s", "1.8×"):  # noqa: RUF001 - the sign for it
        assert text in page.text


def test_numbers_on_the_page_are_those_of_the_analysis(whole: Written) -> None:
    _, analysis = samples.whole()
    page = Page(whole.page.read_text(encoding="utf-8"))
    rows = iter(page.tables["summary"][1:])
    metrics = (Metric.FIRST_OBSERVATION, Metric.TRAJECTORY, Metric.ACTION, Metric.ACTION_TAX)
    seen = 0
    for setting in analysis.settings():
        assert next(rows) == [words.setting_of(setting)]
        for failures in analysis.failures:
            if Setting.of(failures.condition) != setting:
                continue
            row = next(rows)
            assert row[:3] == [
                failures.condition.arm,
                str(failures.attempted - failures.failed),
                str(failures.failed),
            ]
            for place, metric in enumerate(metrics):
                known = analysis.summary(failures.condition, metric)
                for cell, estimate in zip(
                    row[3 + 2 * place : 5 + 2 * place],
                    (known.p50, known.p95) if known else (),
                    strict=known is not None,
                ):
                    value_ms, low_ms, high_ms = _read(cell)
                    assert value_ms == pytest.approx(estimate.value, rel=0.006)
                    assert (
                        low_ms == pytest.approx(estimate.low, rel=0.006) if estimate.low is not None else low_ms is None
                    )
                    assert (
                        high_ms == pytest.approx(estimate.high, rel=0.006)
                        if estimate.high is not None
                        else high_ms is None
                    )
                    seen += 1
    assert next(rows, None) is None
    assert seen > 300


def _read(cell: str) -> tuple[float, float | None, float | None]:
    """Milliseconds, from a cell such as `1.23 s (1.20-?)`."""
    match = re.fullmatch(r"([\d.,]+) (ms|s)(?: \(([\d.,]+|\?)\u2013([\d.,]+|\?)\))?", " ".join(cell.split()))
    assert match, cell
    factor = 1000.0 if match[2] == "s" else 1.0

    def number(text: str | None) -> float | None:
        return None if text in (None, "?") else float(text.replace(",", "")) * factor  # type: ignore[union-attr]

    return number(match[1]) or 0.0, number(match[3]), number(match[4])


def caveat_codes(value: Any) -> set[str]:
    """The codes of all caveats that stand anywhere in it."""
    if isinstance(value, dict):
        own = {str(value["code"])} if value.keys() == {"code", "text"} else set()
        return own.union(*map(caveat_codes, value.values()))
    return set().union(*map(caveat_codes, value)) if isinstance(value, list | tuple) else set()


def test_caveats_stand_beside_numbers_and_in_a_list(whole: Written) -> None:
    _, analysis = samples.whole()
    text = whole.page.read_text(encoding="utf-8")
    codes = {each.code for each in whole.report.footnotes}
    assert {"few-sandboxes", "no-bound", "failures", "emulated"} <= codes
    assert codes <= caveat_codes(asdict(analysis)) | {"extrapolated", "unbalanced-blocks", "few-blocks"}
    for each in whole.report.footnotes:
        assert f'id="caveat-{each.letter}"' in text
        assert f'href="#caveat-{each.letter}"' in text


def test_names_in_results_stay_names(reports: Reports) -> None:
    written = reports(samples.hostile)
    text = written.page.read_text(encoding="utf-8")
    assert all(each.picture for each in written.report.figures)
    for attack in ("<script", "<img", "\x1b", "\x00", "\u202e", "\ud800"):
        assert attack not in text
        assert all(attack not in each.inline for each in written.report.figures)
        assert all(attack not in each.picture.svg.decode() for each in written.report.figures if each.picture)
    assert "&lt;script&gt;alert(1)" in text
    assert "{{ 7 * 7 }}" in Page(text).text
    inline = next(each.inline for each in written.report.figures if each.name == "figure-2-cold-start")
    assert "&lt;script&gt;alert(1)&lt;/s" in inline
    assert r"$\frac{1}{0" in inline
    assert "日本語" in inline
    told = written.markdown.read_text(encoding="utf-8") if written.markdown else ""
    assert "<script" not in told.replace(r"\<script", "")
    assert not re.search(r"(?<!\\)\]\(http", told)
    rows = [line for line in told.splitlines() if line.startswith("| ") and r"\`pipe\`" in line]
    assert rows
    assert all(r"\| \`pipe\`" in row for row in rows)


def test_the_protocol_is_told_in_whole_sentences(whole: Written) -> None:
    told = {rule.title: rule.text for rule in whole.report.protocol}
    assert all(text.endswith(".") for text in told.values())
    assert "verified: page-cache." in told["Cold"]
    assert "A trial may take 600 s." in told["Limits"]


def test_totals_are_made_of_means(whole: Written) -> None:
    """150 actions take 150 times the mean, whatever the median."""
    results, analysis = samples.whole()
    page = Page(whole.page.read_text(encoding="utf-8"))
    (told,) = (row for row in page.tables["overheads"] if row[0].startswith("cell: ") and "per action" in row[0])
    setting = Evidence(results, analysis).long_setting()
    assert setting
    trials = [t for t in results.trials if t.completed and t.condition == setting.on("cell")]
    tax_s = np.mean([action.tax_ns for trial in trials for action in trial.actions]) / 1e9
    assert float(told[-1].split()[0]) == pytest.approx(1e6 * 150 * tax_s / 3600, rel=0.006)


def test_what_the_paper_measured_stands_in_a_figure_of_its_own_workload_only(reports: Reports) -> None:
    other = {each.name: each for each in reports(samples.tiny).report.figures}
    same = {each.name: each for each in reports(samples.whole).report.figures}
    assert "another workload than here" in other["figure-6-worker-hours"].paper
    assert "another workload" not in same["figure-6-worker-hours"].paper
    assert "paper, slowest: 42.5 s" in same["figure-5-completion-time"].inline
    results = synthetic_results(Study("T0", (Arm("cell", "cell"),), (Grid(6, ("T0",), lengths=(1, 150)),)))
    with style.applied():
        drawn = catalogue.OF_THE_PAPER[4].draw(Evidence(results, analyse(results)))
    assert isinstance(drawn, Drawn)
    assert not [text for axes in drawn.figure.axes for text in axes.texts if "paper" in text.get_text()]


@pytest.mark.parametrize(
    ("arms", "grid"),
    [
        (("cell",), Grid(1, ("T0",))),
        (("null",), Grid(2, ("T0",))),
        (("null", "cell"), Grid(2, ("T0", "T2"), lengths=(1, 10))),
        (("process", "cell"), Grid(8, ("T1",), lengths=(3,), concurrencies=(2,))),
        (("process", "cell"), Grid(2, ("T2",), lengths=(2, 5), warmths=(Warmth.IMAGE,))),
        (("cell",), Grid(8, ("T2",), warmths=(Warmth.COLD, Warmth.REPOSITORY), concurrencies=(1, 2))),
    ],
    ids=["one trial", "only null", "one arm", "only at once", "only warm", "warm and at once"],
)
def test_any_study_can_be_drawn_and_told(grid: Grid, arms: tuple[str, ...]) -> None:
    results = synthetic_results(Study("odd", tuple(Arm(arm, arm) for arm in arms), (grid,)))
    evidence, notes = Evidence(results, analyse(results)), Footnotes()
    with style.applied():
        drawn = [entry.draw(evidence) for entry in (*catalogue.OF_THE_PAPER, *catalogue.MORE)]
    assert all(each.title for each in drawn)
    builders = (findings.at_a_glance, findings.every_condition, findings.ratios, findings.crossovers, findings.floor)
    told = [*paper_tables.tables(evidence, notes), *(build(evidence, notes) for build in builders)]
    assert all(len(row) == len(table.columns) for table in told for group in table.groups for row in group.rows)
    assert summary(results, evidence.analysis)


def test_response_time_is_drawn_where_one_concurrency_has_it() -> None:
    """One at a time there is none: a trial begins when it begins."""
    alone = Grid(4, ("T1",), lengths=(3,))
    arms = (Arm("process", "process"), Arm("cell", "cell"))
    study = Study("load", arms, (alone, replace(alone, trials=16, concurrencies=(2,), arms=("cell",))))
    results = synthetic_results(study)
    evidence = Evidence(results, analyse(results))
    for metric, levels in ((Metric.RESPONSE, [2]), (Metric.ACTION, [1, 2])):
        drawn = {line.condition.arm: [point.at for point in line.points] for line in evidence.load_series(metric)}
        assert drawn == {"cell": levels}


def test_a_study_that_failed_has_a_page_that_says_why(tmp_path: Path) -> None:
    results, analysis = samples.only_failures()
    written = write_report(results, analysis, tmp_path)
    page = Page(written.page.read_text(encoding="utf-8"))
    assert [each.name for each in written.report.figures if each.picture] == ["figure-12-failures"]
    assert "4 of 4 trials failed" in page.text
    assert "SubstrateFailed: <script>alert(1)</script>" in page.text
    assert "interrupted </p><script>" in page.text
    assert written.markdown is None
    assert not (tmp_path / "report.md").exists()


def test_a_study_without_trials_is_refused(tmp_path: Path) -> None:
    results, analysis = samples.tiny()
    with pytest.raises(InvalidRequest, match="has no trial yet") as caught:
        write_report(replace(results, trials=()), analysis, tmp_path / "report")
    assert caught.value.hint
    assert not (tmp_path / "report").exists()


def test_a_report_replaces_the_one_before(tmp_path: Path, reports: Reports) -> None:
    shutil.copytree(reports(samples.tiny).page.parent, tmp_path, dirs_exist_ok=True)
    assert len(list((tmp_path / "figures").iterdir())) > 10
    write_report(*samples.only_failures(), tmp_path)
    left = {path.stem for path in (tmp_path / "figures").iterdir()}
    assert left == {"figure-12-failures"}
    assert not list(tmp_path.rglob("*.draft"))
    assert not (tmp_path / "report.md").exists()
    assert json.loads((tmp_path / "analysis.json").read_text())["study"] == "tiny"


def test_equal_figures_are_equal_bytes(reports: Reports) -> None:
    entry = catalogue.OF_THE_PAPER[1]
    with style.applied():
        drawn = entry.draw(Evidence(*samples.tiny()))
        assert isinstance(drawn, Drawn)
        again = save(entry.name, drawn)
    first = next(each.picture for each in reports(samples.tiny).report.figures if each.name == entry.name)
    assert first == again


def test_a_place_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidRequest, match="cannot be written to"):
        write_report(*samples.tiny(), tmp_path / "file" / "report")
