"""How every figure looks. Colours are Okabe and Ito's, which colour-blind readers can distinguish; so are shapes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal

from dutyfree.model import Phase

Dash = Literal["-", "--", "-.", ":"]
INK: Final = "#1f2933"
MUTED: Final = "#5f6b7a"
GRID: Final = "#d5dbe3"
PAPER: Final = "#ffffff"
REFERENCE: Final = "#7b8794"
"""The colour of the paper's own values."""

WIDTH_IN: Final = 8.6
PNG_DPI: Final = 144

_COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#6a51a3", "#7a7a7a")
_MARKERS: Final = ("o", "s", "D", "^", "v", "P", "X", "*")
_DASHES: Final[tuple[Dash, ...]] = ("-", "--", "-.", ":")

PHASE_COLOURS: Final = {
    Phase.QUEUE: "#882255",
    Phase.PLACE: "#aa4499",
    Phase.CREATE: "#d55e00",
    Phase.READY: "#e69f00",
    Phase.SETUP: "#e8d33f",
    Phase.DISPATCH: "#56b4e9",
    Phase.EXECUTE: "#8392a5",
    Phase.OBSERVE: "#0072b2",
    Phase.RESET: "#44aa99",
    Phase.SNAPSHOT: "#117733",
    Phase.FORK: "#999933",
    Phase.DESTROY: "#cc79a7",
    Phase.UNATTRIBUTED: "#c9ced6",
}
"""Execution is grey; everything in colour is tax."""

RC: Final[Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 9.0,
    "text.color": INK,
    # Names come from results: a dollar sign in a name must not start a formula.
    "text.parse_math": False,
    "axes.edgecolor": MUTED,
    "axes.facecolor": "none",
    "axes.labelcolor": INK,
    "axes.labelsize": 9.0,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.linewidth": 0.8,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "figure.facecolor": "none",
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "legend.handlelength": 1.8,
    "legend.columnspacing": 1.4,
    "lines.linewidth": 1.6,
    "lines.markersize": 5.5,
    "hatch.linewidth": 0.6,
    # Text stays text: it can be searched, read aloud and copied, and the file is small.
    "svg.fonttype": "none",
    "svg.hashsalt": "dutyfree",
}


@dataclass(frozen=True)
class Look:
    """How one arm is drawn, the same in every figure."""

    colour: str
    marker: str
    dash: Dash


def look(position: int) -> Look:
    """The look of the arm at this position. After eight arms the dashes change; after 32 the looks repeat."""
    turn = position // len(_COLOURS)
    return Look(
        _COLOURS[position % len(_COLOURS)], _MARKERS[(position + turn) % len(_MARKERS)], _DASHES[turn % len(_DASHES)]
    )


def looks(arms: Sequence[str]) -> dict[str, Look]:
    """The look of each arm."""
    return {arm: look(position) for position, arm in enumerate(arms)}


@contextmanager
def applied() -> Iterator[None]:
    """Apply this style inside the `with` block only."""
    import warnings

    import matplotlib

    with matplotlib.rc_context(RC), warnings.catch_warnings():
        # The font may lack the script of a name: a browser has another font, and a box in a PNG is acceptable.
        warnings.filterwarnings("ignore", message=r"Glyph \d+ .*missing from font")
        yield
