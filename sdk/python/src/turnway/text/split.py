"""Cuts Markdown into parts within the limit of a platform. Nothing is lost, and each part is Markdown of its own.

A cut in fenced code, a code span, emphasis or a quote is closed, and opened again in the next part.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

from turnway.text.blocks import Line, paragraphs, read_lines
from turnway.text.inline import Span, parse_inline
from turnway.text.units import Unit, boundaries, check_unit, length, width

# The gateway counts a smaller limit as this one; closing and opening markup needs some room.
LIMIT_MIN = 64
# A longer name of a language is left out where code is opened again.
LANGUAGE_MAX = 24

# Places for a cut, from the worst to the best. 0 is no place at all.
MARKUP, CHARACTER, WORD, SENTENCE, LINE, PARAGRAPH = 1, 2, 3, 4, 5, 6

SENTENCE_ENDS = frozenset(".!?…:;")
WIDE_SENTENCE_ENDS = frozenset("。！？；：")
LOOKS_LIKE_BLOCK = re.compile(r"[ \t]{0,4}(?:#{1,6}\s|>|[-*+]\s|\d{1,9}[.)]\s|`{3}|~{3}|=+\s*$|-+\s*$|\|)")


def is_closable(span: Span) -> bool:
    """Returns whether markup can be closed at a cut. A run of three backticks at the start of a line is a fence."""
    if span.kind == "code":
        return span.inner_start - span.start < 3
    return span.kind in ("emphasis", "strong", "strike")



class Markup(NamedTuple):
    """The signs that close the markup at a cut, and those that open it again."""

    closing: str
    opening: str
    # Emphasis or a code span, and not fenced code.
    is_inline: bool = False


@dataclass(frozen=True)
class Part:
    """One part: `body` is a piece of the source, `text` is what to send. The bodies joined are the source."""

    body: str
    text: str


class Splitter:
    """One text to cut, with the structure of each position."""

    def __init__(self, text: str, limit: int, unit: Unit) -> None:
        self.text = text
        self.limit = limit
        self.unit: Unit = unit
        self.sums = [0, *accumulate(width(character, unit) for character in text)]
        self.lines = read_lines(text)
        self.starts = [line.start for line in self.lines]
        self.spans: dict[int, list[Span]] = {}
        self.clusters = boundaries(text)
        self.places = bytearray(len(text) + 1)
        for line in self.lines:
            self.rate_within(line)
        for line, following in pairwise(self.lines):
            self.places[line.end] = self.rate_end(line, following)
        for group in paragraphs(self.lines):
            spans = parse_inline(text, group[0].content, group[-1].end).spans
            for line in group:
                self.spans[line.start] = spans
            for span in spans:
                self.rate_span(span, group)

    # Where a cut is good.

    def rate_within(self, line: Line) -> None:
        """Rates the positions between the characters of a line."""
        text = self.text
        is_code = line.role == "code"
        if line.role in ("open", "close", "blank"):
            return
        for position in range(max(line.start, line.content) + 1, line.end):
            if not self.clusters[position]:
                continue
            before, after = text[position - 1], text[position]
            place = CHARACTER
            if before in " \t" and after not in " \t\r\n":
                ends = position - 2 >= line.start and text[position - 2] in SENTENCE_ENDS
                place = SENTENCE if ends and not is_code else WORD
            elif before in WIDE_SENTENCE_ENDS and after not in WIDE_SENTENCE_ENDS:
                place = SENTENCE
            if is_code:
                self.places[position] = CHARACTER if place == CHARACTER else WORD
                continue
            touches = after in "`*_~[]()!<" and not before.isspace()
            if before == "\\" or before in "`*_~[!<" or touches or after in "\r\n":
                place = MARKUP
            if place > MARKUP and LOOKS_LIKE_BLOCK.match(text, position, line.end):
                place = MARKUP
            self.places[position] = place

    def rate_end(self, line: Line, following: Line) -> int:
        """Returns the rate of the position between two lines."""
        if line.role == "code" or line.role == "open":
            ends = line.role == "open" or following.role == "close"
            return PARAGRAPH if following.fence is not line.fence else MARKUP if ends else SENTENCE
        if line.is_heading:
            return CHARACTER
        if following.role == "blank" or line.role != "blank":
            return PARAGRAPH if line.role == "close" or following.role == "open" or following.is_heading else LINE
        # A blank line within a list or a quote separates less than one between blocks.
        return LINE if following.has_own_prefix and line.has_own_prefix else PARAGRAPH

    def rate_span(self, span: Span, group: list[Line]) -> None:
        """Keeps cuts out of markup: never within its signs, and within short spans and links only if need be."""
        for position in (*range(span.start + 1, span.inner_start + 1), *range(span.inner_end, span.end)):
            self.places[position] = 0
        size = self.sums[span.end] - self.sums[span.start]
        if size <= (self.limit // 2 if is_closable(span) else self.limit):
            for position in range(span.inner_start + 1, span.inner_end):
                self.places[position] = min(self.places[position], MARKUP)
        elif group[0].prefix:
            # At the start of a quoted line there is no place for the signs that open the markup again.
            for line in group:
                if span.inner_start < line.end < span.inner_end:
                    self.places[line.end] = min(self.places[line.end], MARKUP)

    # What a cut needs.

    def markup_at(self, position: int) -> Markup:
        """Returns the markup to close and to open at a position, unless it would leave no room for the text."""
        markup = self.whole_markup_at(position)
        is_long = max(length(markup.closing, self.unit), length(markup.opening, self.unit)) > self.limit // 4
        return Markup("", "") if is_long else markup

    def whole_markup_at(self, position: int) -> Markup:
        """Returns the markup to close and to open at a position, however long it is."""
        before = self.lines[bisect_right(self.starts, position - 1) - 1]
        after = self.lines[bisect_right(self.starts, position) - 1]
        is_within_line = before is after
        fence = before.fence if before.role in ("open", "code") else None
        if fence is not None and (is_within_line or after.fence is fence):
            if is_within_line and before.role == "open" and position <= before.content + len(fence.marker):
                return Markup("", "")
            edge = fence.prefix + " " * fence.indent
            words = fence.info.split()
            language = words[0] if words and len(words[0]) <= LANGUAGE_MAX else ""
            opening = fence.prefix + " " * min(fence.indent, 3) + fence.marker + language + "\n"
            if is_within_line:
                return Markup("\n" + edge + fence.marker, opening + fence.prefix)
            return Markup(edge + fence.marker, opening)
        spans = [span for span in self.spans.get(after.start, []) if span.inner_start < position < span.inner_end]
        signs = [self.text[span.start : span.inner_start] for span in spans if is_closable(span)]
        closing = "".join(reversed(signs))
        edge = ""
        if is_within_line:
            edge = after.prefix + " " * min(after.item, 3)
        elif after.prefix and not after.has_own_prefix:
            edge = after.prefix  # the line continues a quote without a sign of its own
        elif after.has_own_prefix:
            return Markup(closing, "", True)
        return Markup(closing, edge + "".join(signs), True)

    # The cuts.

    def parts(self) -> list[Part]:
        """Returns the parts."""
        found: list[Part] = []
        position, opening = 0, ""
        while position < len(self.text):
            end, markup = self.cut_after(position, opening)
            body = self.text[position:end]
            # A sign behind a space does not end emphasis.
            shown = body.rstrip() if markup.is_inline and markup.closing else body
            found.append(Part(body, (opening + shown + markup.closing).strip("\r\n")))
            position, opening = end, markup.opening
        return found

    def cut_after(self, start: int, opening: str) -> tuple[int, Markup]:
        """Returns the end of the part that begins at `start`, and the markup there."""
        budget = self.limit - length(opening, self.unit)
        last = bisect_right(self.sums, self.sums[start] + budget) - 1
        if last >= len(self.text):
            return len(self.text), Markup("", "")
        half = bisect_right(self.sums, self.sums[start] + budget // 2) - 1
        for first, least in ((half, WORD), (start + 1, WORD), (half, MARKUP), (start + 1, MARKUP)):
            limit = last
            while (end := self.best(max(first, start + 1), limit, least)) is not None:
                markup = self.markup_at(end)
                if self.sums[end] - self.sums[start] + length(markup.closing, self.unit) <= budget:
                    return end, markup
                limit = end - 1
        return self.forced_cut(start, last, budget)

    def best(self, first: int, last: int, least: int) -> int | None:
        """Returns the last of the best places from `first` to `last`."""
        window = self.places[first : last + 1]
        highest = max(window, default=0)
        return None if highest < least else first + window.rindex(highest)

    def forced_cut(self, start: int, last: int, budget: int) -> tuple[int, Markup]:
        """Returns a cut where there is no good one: between characters if possible, else between code points."""
        for is_whole in (True, False):
            for end in range(last, start, -1):
                if is_whole and not self.clusters[end]:
                    continue
                markup = self.markup_at(end)
                if self.sums[end] - self.sums[start] + length(markup.closing, self.unit) <= budget:
                    return end, markup
        raise AssertionError("a quarter of the limit is always left for the text")


def split_parts(text: str, limit: int, unit: Unit = "utf16") -> list[Part]:
    """Returns the parts of a text with the piece of the source that each of them has."""
    check_unit(unit)
    if limit < LIMIT_MIN:
        raise ValueError(f"a limit of {limit} {unit}: it must be at least {LIMIT_MIN}")
    return Splitter(text, limit, unit).parts()


def split(text: str, limit: int, unit: Unit = "utf16") -> list[str]:
    """Returns the messages for a text, each at most `limit` long. Parts of blank lines only are left out."""
    return [part.text for part in split_parts(text, limit, unit) if part.text.strip()]


def split_rendered(text: str, render: Callable[[str], str], limit: int, unit: Unit = "utf16") -> list[str]:
    """Returns the rendered messages for a text: each is at most `limit` long after `render`.

    `render` gets Markdown and returns the text of the platform, such as `to_plain`. A part that grows over the limit is
    cut again in smaller pieces.
    """
    found: list[str] = []
    for part in split(text, limit, unit):
        rendered = render(part)
        if length(rendered, unit) <= limit:
            found += [rendered] if rendered.strip() else []
        elif limit // 2 >= LIMIT_MIN and length(part, unit) > LIMIT_MIN:
            smaller = max(LIMIT_MIN, min(length(part, unit), limit) // 2)
            for piece in split(part, smaller, unit):
                found += split_rendered(piece, render, limit, unit)
        else:
            raise ValueError(f"{length(part, unit)} {unit} are rendered as {length(rendered, unit)}: over {limit}")
    return found
