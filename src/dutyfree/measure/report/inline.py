"""A drawing as a small part of a page: matplotlib's SVG is four times as long as what it draws needs."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from itertools import count
from typing import Final

_NUMBER: Final = re.compile(r"-?\d+\.\d{3,}")
_WITH_NUMBERS: Final = ("d", "x", "y", "width", "height", "points", "transform", "style")
_WITH_TEXT: Final = ("text", "tspan", "title", "desc", "style")
_REFERENCE: Final = re.compile(r"#([^)\s]+)")
_COMMAND: Final = re.compile(r"([A-Za-z])([^A-Za-z]*)")
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"


def shrink(root: ET.Element, prefix: str) -> None:
    """Make a drawing without namespaces shorter; it looks the same.

    Numbers keep two decimals, which is a fiftieth of a pixel; groups without attributes, and space between elements,
    go; a style that several elements have becomes a class. `prefix` begins the names of classes and ids: a page is
    one document, in which no two drawings may have a name in common.
    """
    for each in root.iter():
        each.tail = None
        if each.tag not in _WITH_TEXT:
            each.text = None
        for name in _WITH_NUMBERS:
            if name in each.attrib:
                each.set(name, _NUMBER.sub(_two_decimals, each.attrib[name]))
        if "d" in each.attrib:
            each.set("d", _short_path(each.attrib["d"]))
        if "clip-path" in each.attrib:
            each.set("style", f"{each.get('style', '')}; clip-path: {each.attrib.pop('clip-path')}".removeprefix("; "))
        if each.get("transform", "").startswith("rotate(-0 "):
            del each.attrib["transform"]
    _flatten(root)
    _rename(root, prefix)
    _classify(root, prefix)


def _two_decimals(match: re.Match[str]) -> str:
    return f"{float(match[0]):.2f}".rstrip("0").rstrip(".")


def _short_path(commands: str) -> str:
    """The same path; lines along an axis, which most lines are, name one coordinate."""
    short, last_x, last_y = [], "", ""
    for command, given in _COMMAND.findall(commands):
        numbers = given.split()
        text = f"{command}{' '.join(numbers)}"
        if command == "L" and numbers[1] == last_y:
            text = f"H{numbers[0]}"
        elif command == "L" and numbers[0] == last_x:
            text = f"V{numbers[1]}"
        short.append(text)
        last_x, last_y = numbers[-2:] if numbers else ("", "")
    return "".join(short)


def _flatten(parent: ET.Element) -> None:
    """Replace groups that have no attributes by their content, and drop empty groups."""
    kept: list[ET.Element] = []
    for child in list(parent):
        _flatten(child)
        if child.tag in ("g", "defs") and not len(child):
            continue
        kept += list(child) if child.tag == "g" and not child.attrib else [child]
    parent[:] = kept


def _rename(root: ET.Element, prefix: str) -> None:
    """Short ids, and the references to them."""
    short = {
        each.attrib["id"]: f"{prefix}{_letters(number)}"
        for number, each in enumerate(each for each in root.iter() if "id" in each.attrib)
    }
    for each in root.iter():
        if "id" in each.attrib:
            each.set("id", short[each.attrib["id"]])
        if "aria-labelledby" in each.attrib:
            each.set("aria-labelledby", " ".join(short[name] for name in each.attrib["aria-labelledby"].split()))
        for name in ("href", "style"):
            if name in each.attrib:
                each.set(name, _REFERENCE.sub(lambda match: f"#{short.get(match[1], match[1])}", each.attrib[name]))


def _classify(root: ET.Element, prefix: str) -> None:
    """Move styles to a sheet in the drawing. Its rules win over the page's, which name no class in a drawing."""
    names = (f"{prefix}-{_letters(number)}" for number in count())
    classes: dict[str, str] = {}
    for each in root.iter():
        style = each.attrib.pop("style", None)
        if style is not None:
            if style not in classes:
                classes[style] = next(names)
            each.set("class", classes[style])
    sheet = ET.Element("style")
    rules = "".join(f".{name}{{{style}}}" for style, name in classes.items())
    sheet.text = re.sub(r"([;:,]) ", r"\1", rules)
    root.append(sheet)


def _letters(number: int) -> str:
    """0 is "a", 25 is "z", 26 is "ba"."""
    rest, letter = divmod(number, len(_LETTERS))
    return (_letters(rest) if rest else "") + _LETTERS[letter]
