"""The HTML page: one file without scripts and without references to other files. Text from results is escaped."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dutyfree import __version__
from dutyfree.measure.report.compose import Report
from dutyfree.measure.report.tables import by_letter

if TYPE_CHECKING:
    from jinja2 import Environment

BILL: Final = ("bill", "The bill")
CONTENTS: Final = (
    ("says", "What this says"),
    ("paper", "The paper's figures"),
    ("more", "Beyond the paper"),
    ("numbers", "All numbers"),
    ("caveats", "Caveats"),
    ("conditions", "Conditions"),
    ("protocol", "Protocol"),
)
_HERE: Final = Path(__file__).parent


def page(report: Report) -> str:
    """The report as HTML."""
    from markupsafe import Markup

    parts = {field.name: getattr(report, field.name) for field in fields(report)}
    css = Markup((_HERE / "page.css").read_text(encoding="utf-8"))
    text = (
        _environment()
        .get_template("page.html")
        .render(
            parts,
            title=f"{report.study}: rollout infrastructure tax",
            contents=(*([BILL] if report.bill else ()), *CONTENTS),
            css=css,
            version=__version__,
        )
    )
    # A name may hold an unpaired surrogate, which UTF-8 cannot encode; it is shown as "?".
    return text.encode("utf-8", "replace").decode()


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined)
    # Drawings come from an XML serialiser, which has escaped their texts.
    environment.filters["drawing"] = Markup
    environment.filters["by_letter"] = lambda marks: by_letter(marks).items()
    return environment
