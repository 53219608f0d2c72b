"""Inline markup of a paragraph: code spans, emphasis, links and escapes, by the rules of CommonMark.

Strikethrough (`~~`) is read, too. Raw HTML, entities and reference links are text here.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

Kind = Literal["code", "emphasis", "strong", "strike", "link", "image", "autolink", "escape"]

PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
AUTOLINK = re.compile(r"<([A-Za-z][A-Za-z0-9+.-]{1,31}:[^\s<>]*|[\w.+-]+@[\w-]+(?:\.[\w-]+)+)>")
# The destination and an optional title: ](url "title")
DESTINATION = re.compile(
    r"""\(\s*(?:<([^<>\n]*)>|((?:[^\s()\\]|\\.|\((?:[^\s()\\]|\\.)*\))*))(?:\s+(?:"[^"]*"|'[^']*'))?\s*\)"""
)


@dataclass(frozen=True, slots=True)
class Span:
    """Markup from `start` to `end`, around the text from `inner_start` to `inner_end`."""

    kind: Kind
    start: int
    inner_start: int
    inner_end: int
    end: int
    url: str = ""


@dataclass(slots=True)
class Delimiter:
    """A run of `*`, `_` or `~` whose characters from `start` to `end` are not used up yet."""

    character: str
    start: int
    end: int
    can_open: bool
    can_close: bool
    length: int

    @property
    def count(self) -> int:
        """Returns the number of characters that are not used up."""
        return self.end - self.start


@dataclass
class Inline:
    """The markup of a paragraph, and what was opened without an end."""

    spans: list[Span]
    # In order; each may be emphasis whose end has not been written yet.
    open_delimiters: list[Delimiter]
    # Position and length of the first run of backticks without an end.
    open_code: tuple[int, int] | None


class InlineParser:
    """A parser of text[start:end]."""

    def __init__(self, text: str, start: int, end: int) -> None:
        self.text, self.start, self.end = text, start, end
        self.spans: list[Span] = []
        self.delimiters: list[Delimiter] = []
        # Position of the bracket, whether it begins an image, and the number of delimiters before it.
        self.brackets: list[tuple[int, bool, int]] = []
        self.open_code: tuple[int, int] | None = None
        self.runs: dict[int, list[int]] = defaultdict(list)
        for run in re.finditer("`+", text[start:end]):
            self.runs[len(run[0])].append(start + run.start())
        for positions in self.runs.values():
            positions.reverse()

    def parse(self) -> Inline:
        """Returns the markup."""
        position = self.start
        while position < self.end:
            position = self.step(position)
        self.pair(0)
        spans = sorted(self.spans, key=lambda span: (span.start, -span.end))
        opened = [delimiter for delimiter in self.delimiters if delimiter.can_open and delimiter.count > 0]
        return Inline(spans, opened, self.open_code)

    def step(self, position: int) -> int:
        """Reads what begins at a position; returns the position behind it."""
        character = self.text[position]
        if character == "\\" and position + 1 < self.end and self.text[position + 1] in PUNCTUATION:
            self.spans.append(Span("escape", position, position + 1, position + 2, position + 2))
            return position + 2
        if character == "`":
            return self.read_code(position)
        if character == "<" and (found := AUTOLINK.match(self.text, position, self.end)):
            self.spans.append(Span("autolink", position, found.start(1), found.end(1), found.end(), found[1]))
            return found.end()
        if character == "[" or (character == "!" and self.text.startswith("![", position, self.end)):
            self.brackets.append((position, character == "!", len(self.delimiters)))
            return position + (2 if character == "!" else 1)
        if character == "]":
            return self.read_link(position)
        if character in "*_~":
            return self.read_delimiter(position)
        return position + 1

    def run_end(self, position: int) -> int:
        """Returns the position behind the run of equal characters that begins here."""
        end = position
        while end < self.end and self.text[end] == self.text[position]:
            end += 1
        return end

    def read_code(self, position: int) -> int:
        """Reads a code span, or a run of backticks without an end."""
        opened = self.run_end(position)
        count = opened - position
        positions = self.runs[count]
        while positions and positions[-1] < opened:
            positions.pop()
        if not positions:
            self.open_code = self.open_code or (position, count)
            return opened
        closing = positions.pop()
        self.spans.append(Span("code", position, opened, closing, closing + count))
        return closing + count

    def read_link(self, position: int) -> int:
        """Reads the end of a link or an image, whose text is known by now."""
        if not self.brackets:
            return position + 1
        start, is_image, first = self.brackets.pop()
        found = DESTINATION.match(self.text, position + 1, self.end)
        if not found:
            return position + 1
        self.pair(first)
        inner = start + (2 if is_image else 1)
        url = found[1] if found[1] is not None else found[2]
        self.spans.append(Span("image" if is_image else "link", start, inner, position, found.end(), url))
        if not is_image:
            # A link contains no link.
            self.brackets = [bracket for bracket in self.brackets if bracket[1]]
        return found.end()

    def read_delimiter(self, position: int) -> int:
        """Reads a run of `*`, `_` or `~`."""
        end = self.run_end(position)
        character = self.text[position]
        before = self.text[position - 1] if position > self.start else "\n"
        after = self.text[end] if end < self.end else "\n"
        left = is_left_flanking(before, after)
        right = is_left_flanking(after, before)
        can_open, can_close = left, right
        if character == "_":
            can_open = left and (not right or is_punctuation(before))
            can_close = right and (not left or is_punctuation(after))
        if character == "~" and end - position != 2:
            return end
        self.delimiters.append(Delimiter(character, position, end, can_open, can_close, end - position))
        return end

    def pair(self, first: int) -> None:
        """Matches the delimiters from an index on, and removes them unless they are the last ones of the text."""
        found = self.delimiters[first:]
        # For a kind of closing run: the index below which no opening run fits.
        bottoms: dict[tuple[str, bool, int], int] = {}
        opened: list[Delimiter] = []
        for closer in found:
            while closer.can_close and closer.count > 0:
                kind = (closer.character, closer.can_open, closer.length % 3)
                index = self.find_opener(opened, closer, bottoms.get(kind, 0))
                if index is None:
                    bottoms[kind] = len(opened)
                    break
                self.join(opened[index], closer)
                del opened[index + 1 :]
                if opened[index].count == 0:
                    del opened[index]
                bottoms = {key: min(value, len(opened)) for key, value in bottoms.items()}
            if closer.can_open and closer.count > 0:
                opened.append(closer)
        self.delimiters[first:] = opened if first == 0 else []

    def find_opener(self, opened: list[Delimiter], closer: Delimiter, bottom: int) -> int | None:
        """Returns the index of the run that a closing run ends."""
        for index in range(len(opened) - 1, bottom - 1, -1):
            opener = opened[index]
            if opener.character != closer.character or opener.count == 0:
                continue
            both = opener.can_close or closer.can_open
            if both and (opener.length + closer.length) % 3 == 0 and (opener.length % 3 or closer.length % 3):
                continue
            return index
        return None

    def join(self, opener: Delimiter, closer: Delimiter) -> None:
        """Adds the span between two runs, and uses up their characters."""
        use = 2 if opener.count >= 2 and closer.count >= 2 else 1
        kind: Kind = "strike" if opener.character == "~" else "strong" if use == 2 else "emphasis"
        self.spans.append(Span(kind, opener.end - use, opener.end, closer.start, closer.start + use))
        opener.end -= use
        closer.start += use


def is_punctuation(character: str) -> bool:
    """Returns whether a character counts as punctuation for emphasis."""
    return character in PUNCTUATION or unicodedata.category(character)[0] in "PS"


def is_left_flanking(before: str, after: str) -> bool:
    """Returns whether a run between two characters may begin emphasis. Swapped, whether it may end it."""
    if after.isspace():
        return False
    return not is_punctuation(after) or before.isspace() or is_punctuation(before)


def parse_inline(text: str, start: int = 0, end: int | None = None) -> Inline:
    """Returns the inline markup of text[start:end]."""
    return InlineParser(text, start, len(text) if end is None else end).parse()
