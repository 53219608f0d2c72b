"""The lines of a Markdown text with their block structure: quotes, list items and fenced code.

Follows CommonMark for fences in quotes and lists. Indented code is read as text: chats do not use it. Used by the
other modules of this package.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Role = Literal["text", "blank", "open", "code", "close"]

LINE_END = re.compile(r"(?<=\n)|(?<=\r)(?!\n)")
QUOTE = re.compile(r"(?: {0,3}> ?)+")
MARKER = re.compile(r"([-*+]|\d{1,9}[.)])( +|\t+|$)")
FENCE = re.compile(r"(`{3,})([^`\n]*)$|(~{3,})([^\n]*)$")
HEADING = re.compile(r"#{1,6}(?: |\t|$)")
RULE = re.compile(r" {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$")


@dataclass(frozen=True, slots=True)
class Fence:
    """The opening line of a fenced code block."""

    marker: str
    info: str
    prefix: str
    indent: int
    # Content column of the list item that contains the fence; 0 outside of lists.
    item: int


@dataclass(slots=True)
class Line:
    """A line: text[start:end], with its line end."""

    start: int
    end: int
    # Where the text begins, behind the quote prefix, the indentation and the list marker.
    content: int
    role: Role
    # The quote prefix that applies, also where the line has none of its own.
    prefix: str
    has_own_prefix: bool
    # Content column of the list item; 0 outside of lists.
    item: int
    has_marker: bool
    is_heading: bool
    fence: Fence | None


class Reader:
    """The state between two lines."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.lines: list[Line] = []
        self.fence: Fence | None = None
        self.items: list[int] = []
        self.prefix = ""

    def read(self) -> list[Line]:
        """Returns all lines."""
        start = 0
        for piece in LINE_END.split(self.text):
            if piece:
                self.lines.append(self.read_line(start, piece))
                start += len(piece)
        return self.lines

    def read_line(self, start: int, piece: str) -> Line:
        """Returns the next line, and keeps what it opens."""
        end = start + len(piece)
        body = piece.rstrip("\r\n")
        quote = QUOTE.match(body)
        prefix = quote[0] if quote else ""
        rest = body[len(prefix) :]
        indent = len(rest) - len(rest.lstrip(" \t"))
        is_blank = not rest.strip()
        if self.fence is not None:
            if line := self.read_code(start, end, prefix, rest, indent, is_blank):
                return line
            self.fence = None
        previous = self.lines[-1] if self.lines else None
        continues = previous is not None and previous.role == "text" and not previous.is_heading
        if is_blank:
            if not prefix:
                self.prefix = ""
            return Line(start, end, end, "blank", prefix, bool(prefix), 0, False, False, None)
        return self.read_text(start, end, prefix, rest, indent, continues)

    def read_code(
        self, start: int, end: int, prefix: str, rest: str, indent: int, is_blank: bool
    ) -> Line | None:
        """Returns a line of the open fence, or None if the fence has ended without a closing line."""
        fence = self.fence
        assert fence is not None
        if fence.prefix and not prefix:
            return None
        if not fence.prefix and prefix:
            # A line of code may look like a quote.
            rest, prefix = prefix + rest, ""
            indent = len(rest) - len(rest.lstrip(" \t"))
            is_blank = False
        if fence.item and not is_blank and indent < fence.item:
            return None
        stripped = rest.strip()
        closes = len(stripped) >= len(fence.marker) and not stripped.strip(fence.marker[0])
        if closes and stripped and indent <= fence.item + 3:
            self.fence = None
            return Line(start, end, end, "close", prefix, bool(prefix), fence.item, False, False, fence)
        content = start + len(prefix)
        return Line(start, end, content, "code", prefix, bool(prefix), fence.item, False, False, fence)

    def read_text(self, start: int, end: int, prefix: str, rest: str, indent: int, continues: bool) -> Line:
        """Returns a line outside of a fence; it may open one."""
        if depth(prefix) != depth(self.prefix) and (prefix or not continues):
            self.items = []
        own = bool(prefix)
        marker = MARKER.match(rest, indent) if not RULE.match(rest) else None
        opens = FENCE.match(rest, indent)
        is_heading = bool(HEADING.match(rest, indent))
        is_lazy = continues and not marker and not opens and not is_heading
        if is_lazy and not own:
            prefix = self.prefix
        if not is_lazy:
            while self.items and indent < self.items[-1]:
                self.items.pop()
        self.prefix = prefix
        content = indent
        if marker:
            content = marker.end() if 1 <= len(marker[2]) <= 4 else marker.end(1) + min(1, len(marker[2]))
            self.items.append(content if marker[2] else content + 1)
            opens = FENCE.match(rest, content)
            is_heading = bool(HEADING.match(rest, content))
        item = self.items[-1] if self.items else 0
        at = start + (len(prefix) if own else 0) + content
        if opens and content <= item + 3:
            fence = Fence(opens[1] or opens[3], (opens[2] or opens[4] or "").strip(), prefix, content, item)
            self.fence = fence
            return Line(start, end, at, "open", prefix, own, item, bool(marker), False, fence)
        return Line(start, end, at, "text", prefix, own, item, bool(marker), is_heading, None)


def read_lines(text: str) -> list[Line]:
    """Returns the lines of a text; joined, they are the text."""
    return Reader(text).read()


def depth(prefix: str) -> int:
    """Returns the number of quotes that a prefix is within."""
    return prefix.count(">")


def paragraphs(lines: list[Line]) -> list[list[Line]]:
    """Returns the lines of text in groups: within one, inline markup may reach from line to line."""
    groups: list[list[Line]] = []
    previous: Line | None = None
    for line in lines:
        if line.role == "text":
            begins = line.has_marker or line.is_heading or previous is None or previous.role != "text"
            if previous and not begins and not previous.is_heading and depth(previous.prefix) == depth(line.prefix):
                groups[-1].append(line)
            else:
                groups.append([line])
        previous = line
    return groups
