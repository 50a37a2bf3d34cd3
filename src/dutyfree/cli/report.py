"""`dutyfree report`: a study's results as a page with figures and tables."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dutyfree.cli.measure_extra import measure_extra
from dutyfree.cli.outcome import ExitCode
from dutyfree.formatting import plain

if TYPE_CHECKING:
    from dutyfree.measure.report.write import Written


def register(commands: Any) -> None:
    """Add this command to the command line."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "report",
        help="write a page with the results of a study",
        description="Write a page with figures and tables of a study's results: one file that works offline, and the "
        "figures beside it as SVG and PNG. A summary is printed, too. An arm is one substrate with its options, as "
        "the study compares it.",
        epilog="example: dutyfree report results --baseline docker",
    )
    parser.add_argument("results", type=Path, metavar="DIR", help="the results of a study")
    parser.add_argument("--output", type=Path, metavar="DIR", help="where to write (default: DIR/report)")
    parser.add_argument("--markdown", action="store_true", help="write report.md, too")
    parser.add_argument(
        "--compact",
        type=Path,
        metavar="NEW_DIR",
        help="write a small copy of the results, without the journal, to NEW_DIR, and the page alone to NEW_DIR/report",
    )
    parser.add_argument("--baseline", metavar="ARM", help="the arm that others are compared with (default: the first)")
    parser.add_argument("--open", choices=("yes", "no"), default="no", help="show the page in a browser (default: no)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the summary")
    parser.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Write the report and print its path."""
    with measure_extra():
        from dutyfree.codec import BILL
        from dutyfree.measure.report.terminal import summary
        from dutyfree.measure.report.write import write_report
        from dutyfree.measure.results.compact import write_compact
        from dutyfree.measure.results.directory import load_results
        from dutyfree.measure.stats.analysis import analyse

    results = load_results(options.results)
    analysis = analyse(results, baseline=options.baseline)
    source = options.results
    if options.compact is not None:
        write_compact(results, source, options.compact)
        source = options.compact
    directory = options.output if options.output is not None else source / "report"
    with measure_extra():
        written = write_report(
            results, analysis, directory, markdown=options.markdown, small=options.compact is not None
        )
    if options.json:
        bill = None if results.bill is None else BILL.encode(results.bill)
        print(json.dumps(_as_json(written) | {"bill": bill}, indent=2))
    else:
        columns = min(120, shutil.get_terminal_size().columns)
        ascii_only = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
        print(plain(summary(results, analysis, width=columns, ascii_only=ascii_only)))
        print(f"\npage: {plain(str(written.page))}")
    if options.open == "yes":
        _open(written.page)
    return ExitCode.DONE


def _as_json(written: Written) -> dict[str, Any]:
    report = written.report
    return {
        "study": report.study,
        "page": str(written.page),
        "markdown": None if written.markdown is None else str(written.markdown),
        "analysis": None if written.analysis is None else str(written.analysis),
        "figures": [str(path) for path in written.figures],
        "not_shown": {each.name: each.reason for each in report.figures if each.picture is None},
        "says": [each.text for each in report.says],
        "caveats": {each.code: [text for text, _ in each.texts] for each in report.footnotes},
    }


def _open(page: Path) -> None:
    import webbrowser

    if not webbrowser.open(page.resolve().as_uri()):
        print("warning: there is no browser here to show the page", file=sys.stderr)
