"""Renders neutral Markdown: as plain text for platforms without markup, and escaped for CommonMark."""

from __future__ import annotations

import html
import re

from turnway.text.blocks import Fence, Line, paragraphs, read_lines
from turnway.text.inline import PUNCTUATION, Span, parse_inline

Edit = tuple[int, int, str]

HEADING_SIGNS = re.compile(r"#{1,6}(?:[ \t]+|$)")
HEADING_END = re.compile(r"[ \t]+#+[ \t]*$")
HARD_BREAK = re.compile(r"(?: {2,}|\\)$")
ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")


def to_plain(text: str) -> str:
    """Returns Markdown as plain text: without signs of emphasis, headings and code, and with the address of links.

    Quotes keep `> `, lists keep `- ` and their numbers: people read these as such.
    """
    lines = read_lines(text)
    edits: list[Edit] = []
    for line in lines:
        edits += line_edits(text, line)
    for group in paragraphs(lines):
        start, end = group[0].content, group[-1].end
        spans = parse_inline(text, start, end).spans
        for span in spans:
            edits += span_edits(text, span)
        edits += entity_edits(text, start, end, spans)
    return apply(text, edits)


def apply(text: str, edits: list[Edit]) -> str:
    """Returns a text with replacements. Of two that overlap, the one that begins first counts."""
    found: list[str] = []
    position = 0
    for start, end, replacement in sorted(edits, key=lambda edit: (edit[0], -edit[1])):
        if start < position:
            continue
        found += [text[position:start], replacement]
        position = end
    return "".join(found) + text[position:]


def line_edits(text: str, line: Line) -> list[Edit]:
    """Returns the replacements of a line's signs."""
    if line.role in ("open", "close"):
        # The line that a list item begins with keeps its marker.
        start = line.content if line.has_marker else line.start
        return [(start, line.end, "")]
    if line.role == "code":
        return code_edits(text, line, line.fence)
    if line.role == "blank":
        return []
    body_end = line.start + len(text[line.start : line.end].rstrip("\r\n"))
    edits: list[Edit] = []
    if line.is_heading and (signs := HEADING_SIGNS.match(text, line.content, body_end)):
        edits.append((signs.start(), signs.end(), ""))
        if ending := HEADING_END.search(text, signs.end(), body_end):
            edits.append((ending.start(), ending.end(), ""))
    elif ending := HARD_BREAK.search(text, line.content, body_end):
        if body_end < len(text):
            edits.append((ending.start(), ending.end(), ""))
    if line.has_marker:
        sign = len(text[: line.content].rstrip(" \t")) - 1
        if text[sign] in "*+":
            edits.append((sign, sign + 1, "-"))
    return edits


def code_edits(text: str, line: Line, fence: Fence | None) -> list[Edit]:
    """Removes the indentation of the fence from a line of code."""
    if fence is None or not fence.indent:
        return []
    end = line.content
    while end < line.end and end - line.content < fence.indent and text[end] == " ":
        end += 1
    return [(line.content, end, "")]


def span_edits(text: str, span: Span) -> list[Edit]:
    """Returns the replacements of the signs around a span."""
    inner = text[span.inner_start : span.inner_end]
    if span.kind == "code":
        start, end = span.inner_start, span.inner_end
        if len(inner) >= 2 and inner[0] in " \n" and inner[-1] in " \n" and inner.strip():
            start, end = start + 1, end - 1
        return [(span.start, span.end, text[start:end])]
    if span.kind in ("link", "image"):
        url = re.sub(r"\\(?=[!-/:-@\[-`{-~])", "", span.url)
        ending = "" if not url or url == inner else f" ({url})" if inner else url
        return [(span.start, span.inner_start, ""), (span.inner_end, span.end, ending)]
    return [(span.start, span.inner_start, ""), (span.inner_end, span.end, "")]


def entity_edits(text: str, start: int, end: int, spans: list[Span]) -> list[Edit]:
    """Returns the replacements of entities such as `&amp;`, outside of code."""
    code = [span for span in spans if span.kind in ("code", "autolink", "escape")]
    edits: list[Edit] = []
    for found in ENTITY.finditer(text, start, end):
        if not any(span.start < found.end() and found.start() < span.end for span in code):
            edits.append((found.start(), found.end(), html.unescape(found[0])))
    return edits


def escape(text: str) -> str:
    """Returns a text that CommonMark shows as it is: every sign escaped, and spaces at the start of lines kept."""
    found: list[str] = []
    for line in text.split("\n"):
        escaped = "".join(f"\\{character}" if character in PUNCTUATION else character for character in line)
        if line[:1] in (" ", "\t"):
            escaped = f"&#{ord(line[0])};" + escaped[1:]
        if line.endswith(" ") and len(line) > 1:
            escaped = escaped[:-1] + "&#32;"  # two spaces would be a line break
        found.append(escaped)
    return "\n".join(found)
