"""Saves figures: SVG for the page and for print, PNG for other uses. Needs no display and no global state."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from dutyfree.measure.report.inline import shrink
from dutyfree.measure.report.style import GRID, INK, MUTED, PAPER, PNG_DPI
from dutyfree.measure.stats.estimate import Caveat

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SVG: Final = "http://www.w3.org/2000/svg"
_XLINK: Final = "http://www.w3.org/1999/xlink"
_HREF: Final = f"{{{_XLINK}}}href"
_TITLE: Final = "title-in-figure"
_POINTS_PER_IN: Final = 72
TITLE_IN: Final = 0.36
"""The height of a title within a figure."""
_REFERENCE: Final = re.compile(r"url\(#([^)]+)\)")
_THEMED: Final = {INK: "--ink", MUTED: "--muted", GRID: "--grid", PAPER: "--paper"}


@dataclass(frozen=True)
class Drawn:
    """A figure with its texts."""

    figure: Figure
    title: str
    """What the figure shows, in one line."""
    caption: str
    alt: str
    """The most important numbers as text, for readers who cannot see the figure."""
    paper: str = ""
    """What the paper published about this, for comparison."""
    caveats: tuple[Caveat, ...] = ()


@dataclass(frozen=True)
class Absent:
    """Why there is no such figure, and what a study needs for it."""

    title: str
    reason: str


@dataclass(frozen=True)
class Picture:
    """A saved figure."""

    name: str
    svg: bytes
    """The content of an SVG file."""
    inline: str
    """The drawing for a page: no namespace, ids that are unique on the page, and the page's colours of text."""
    png: bytes


def save(name: str, drawn: Drawn) -> Picture:
    """The figure in both formats. Equal figures give equal bytes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    vector, pixels = io.BytesIO(), io.BytesIO()
    raster: Any = FigureCanvasAgg(drawn.figure)
    _entitle(drawn)
    drawn.figure.set_facecolor(PAPER)
    raster.print_png(pixels, metadata={"Software": None})
    # The layout is the same for both formats; computing it again takes longer than drawing.
    drawn.figure.set_layout_engine("none")
    drawn.figure.set_facecolor("none")
    drawing: Any = FigureCanvasSVG(drawn.figure)  # not before: it changes the figure's resolution
    drawing.print_svg(vector, metadata={"Date": None})
    root = _tidied(vector.getvalue(), name, drawn)
    return Picture(name, _as_file(root), _as_part_of_a_page(root), pixels.getvalue())


def new_figure(height_in: float, width_in: float) -> Figure:
    """An empty figure with a constrained layout."""
    from matplotlib.figure import Figure as NewFigure

    figure = NewFigure(figsize=(width_in, height_in), dpi=PNG_DPI, layout="constrained")
    _set_layout(figure, w_pad=0.06, h_pad=0.06)
    return figure


def _entitle(drawn: Drawn) -> None:
    """Put the title in a band on top. A page has headings, and cuts the band off."""
    figure = drawn.figure
    height_in = figure.get_figheight() + TITLE_IN
    figure.set_figheight(height_in)
    _set_layout(figure, rect=(0, 0, 1, 1 - TITLE_IN / height_in))
    title = figure.text(0.008, 1 - 0.09 / height_in, drawn.title, va="top", fontsize=11, fontweight="bold")
    title.set_gid(_TITLE)
    title.set_in_layout(False)


def _set_layout(figure: Figure, **settings: Any) -> None:
    engine: Any = figure.get_layout_engine()
    engine.set(**settings)


def _tidied(svg: bytes, name: str, drawn: Drawn) -> ET.Element:
    """The drawing with a title and a description, without metadata, and with ids that begin with the figure's name."""
    root = ET.fromstring(svg)
    for metadata in root.findall(f"{{{_SVG}}}metadata"):
        root.remove(metadata)
    used = set(_REFERENCE.findall(svg.decode())) | {
        target[1:] for each in root.iter() if (target := each.get(_HREF, "")).startswith("#")
    }
    for each in root.iter():
        known = each.attrib.pop("id", None)
        if known in used or known == _TITLE:
            each.set("id", f"{name}-{known}")
        if each.get(_HREF, "").startswith("#"):
            each.set(_HREF, f"#{name}-{each.attrib[_HREF][1:]}")
        for attribute, value in each.attrib.items():
            if "url(#" in value:
                each.set(attribute, _REFERENCE.sub(rf"url(#{name}-\1)", value))
    for position, (tag, text) in enumerate((("title", drawn.title), ("desc", drawn.alt))):
        element = ET.Element(f"{{{_SVG}}}{tag}", {"id": f"{name}-{tag}"})
        element.text = text
        root.insert(position, element)
    root.set("role", "img")
    root.set("aria-labelledby", f"{name}-title {name}-desc")
    return root


def _as_file(root: ET.Element) -> bytes:
    ET.register_namespace("", _SVG)
    ET.register_namespace("xlink", _XLINK)
    data: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return data


def _as_part_of_a_page(root: ET.Element) -> str:
    copy = ET.fromstring(ET.tostring(root))
    for definitions in copy.findall(f"{{{_SVG}}}defs"):
        # A style sheet in a figure would apply to the whole page, which has these rules already.
        for sheet in definitions.findall(f"{{{_SVG}}}style"):
            definitions.remove(sheet)
    for each in copy.iter():
        each.tag = each.tag.removeprefix(f"{{{_SVG}}}")
        if _HREF in each.attrib:
            each.set("href", each.attrib.pop(_HREF))
        if "style" in each.attrib:
            style = each.attrib["style"]
            for colour, variable in _THEMED.items():
                style = style.replace(colour, f"var({variable}, {colour})")
            each.set("style", style)
    name = root.attrib["aria-labelledby"].split("-title ")[0]
    for parent in list(copy.iter()):
        for child in [each for each in parent if each.get("id") == f"{name}-{_TITLE}"]:
            parent.remove(child)
    left, top, width, height = map(float, copy.attrib["viewBox"].split())
    band = TITLE_IN * _POINTS_PER_IN
    copy.set("viewBox", f"{left:g} {top + band:g} {width:g} {height - band:g}")
    # A size in points would override the page's; the viewBox keeps the shape.
    for attribute in ("width", "height", "version"):
        copy.attrib.pop(attribute, None)
    shrink(copy, f"f{name.split('-')[1]}" if name.startswith("figure-") else name)
    return ET.tostring(copy, encoding="unicode")
