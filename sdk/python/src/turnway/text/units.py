"""Lengths of texts in the units of platforms, and the places between characters as people see them."""

from __future__ import annotations

import unicodedata
from typing import get_args

from turnway.capabilities import Unit

__all__ = ["Unit", "boundaries", "check_unit", "length", "width"]

ZERO_WIDTH_JOINER = 0x200D
VIRAMA_CLASS = 9


def check_unit(unit: str) -> None:
    """Raises `ValueError` for an unknown unit."""
    if unit not in get_args(Unit):
        raise ValueError(f"the unit {unit!r} is not one of {', '.join(get_args(Unit))}")


def width(character: str, unit: Unit) -> int:
    """Returns the length of one code point."""
    code = ord(character)
    if unit == "chars":
        return 1
    if unit == "utf16":
        return 2 if code > 0xFFFF else 1
    return 1 if code < 0x80 else 2 if code < 0x800 else 3 if code < 0x10000 else 4


def length(text: str, unit: Unit = "utf16") -> int:
    """Returns the length of a text: code points, UTF-16 code units, or bytes of UTF-8."""
    check_unit(unit)
    return sum(width(character, unit) for character in text)


def _extends(code: int, character: str) -> bool:
    """Returns whether a character belongs to the one before it."""
    if code < 0x300:
        return False
    if code in (0x200C, ZERO_WIDTH_JOINER) or 0xFE00 <= code <= 0xFE0F or 0x1F3FB <= code <= 0x1F3FF:
        return True
    return 0xE0020 <= code <= 0xE01EF or unicodedata.category(character) in ("Mn", "Me", "Mc")


def _hangul(code: int) -> str:
    """Returns the class of a Hangul character: L, V, T, LV or LVT; empty for any other character."""
    if 0x1100 <= code <= 0x115F or 0xA960 <= code <= 0xA97C:
        return "L"
    if 0x1160 <= code <= 0x11A7 or 0xD7B0 <= code <= 0xD7C6:
        return "V"
    if 0x11A8 <= code <= 0x11FF or 0xD7CB <= code <= 0xD7FB:
        return "T"
    if 0xAC00 <= code <= 0xD7A3:
        return "LV" if (code - 0xAC00) % 28 == 0 else "LVT"
    return ""


def _joins_hangul(before: int, after: int) -> bool:
    first, second = _hangul(before), _hangul(after)
    if not first or not second:
        return False
    if first == "L":
        return second != "T"
    return second in ("V", "T") if first in ("V", "LV") else second == "T"


def boundaries(text: str) -> bytearray:
    """Returns for each position whether a cut there separates no characters as people see them (1), or does (0).

    The rules are those of Unicode's extended grapheme clusters, and slightly wider after joiners and viramas.
    """
    found = bytearray(b"\x01") * (len(text) + 1)
    flags = 0  # regional indicators directly before: two of them are one flag
    for position in range(1, len(text)):
        before, after = ord(text[position - 1]), ord(text[position])
        flags = flags + 1 if 0x1F1E6 <= before <= 0x1F1FF else 0
        if before < 0x300 and after < 0x300:
            found[position] = not (before == 0x0D and after == 0x0A)
        elif before in (0x0A, 0x0D):
            continue
        elif (
            _extends(after, text[position])
            or before == ZERO_WIDTH_JOINER
            or unicodedata.combining(text[position - 1]) == VIRAMA_CLASS
            or (flags % 2 == 1 and 0x1F1E6 <= after <= 0x1F1FF)
            or (0xD800 <= before <= 0xDBFF and 0xDC00 <= after <= 0xDFFF)
            or _joins_hangul(before, after)
        ):
            found[position] = 0
    return found
