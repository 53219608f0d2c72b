"""Completes half Markdown, so that an answer can be shown while it is being written."""

from __future__ import annotations

import re

from turnway.text.blocks import Line, paragraphs, read_lines
from turnway.text.inline import Inline, parse_inline

# A link or an image whose address is still being written.
HALF_LINK = re.compile(r"(!?)\[([^\[\]\n]*)(?:\](?:\([^()\s]*)?)?$")
DELIMITERS_AT_END = re.compile(r"[*_~]+$")
SETEXT_AT_END = re.compile(r"\n {0,3}(?:-{1,2}|=+)[ \t]*$")


def heal(text: str) -> str:
    """Returns a text whose code, emphasis and links are closed. A sign without a text behind it is left out.

    Give it the answer so far, not a piece of it. A complete text stays as it is.
    """
    lines = read_lines(text)
    if not lines:
        return text
    last = lines[-1]
    if last.role in ("open", "code"):
        return heal_fence(text, last)
    if last.role != "text":
        return text
    if SETEXT_AT_END.search(text) and len(lines) > 1 and lines[-2].role == "text":
        # The beginning of a list item would make the line above a heading.
        return heal(text[: last.start].rstrip("\n"))
    group = paragraphs(lines)[-1]
    return text[: group[0].content] + heal_paragraph(text[group[0].content :])


def heal_fence(text: str, last: Line) -> str:
    """Closes fenced code."""
    fence = last.fence
    assert fence is not None
    if last.role == "code" and last.end > last.content:
        half = text[last.content : last.end].strip()
        if half and not half.strip(fence.marker[0]) and len(half) < len(fence.marker) and not text.endswith("\n"):
            text = text[: last.start]  # the closing line is being written
    edge = "" if text.endswith("\n") else "\n"
    return f"{text}{edge}{fence.prefix}{' ' * fence.indent}{fence.marker}"


def heal_paragraph(text: str) -> str:
    """Returns a paragraph with its inline markup closed."""
    found = parse_inline(text)
    if found.open_code is not None:
        return heal_code(text, found.open_code)
    if half := half_link(text, found):
        kept = "" if half[1] else half[2]
        return heal_paragraph(text[: half.start()] + kept)
    ending = DELIMITERS_AT_END.search(text.rstrip())
    if ending and (found.open_delimiters or not any(span.end >= ending.end() for span in found.spans)):
        is_written = ending.start() == 0 or text[ending.start() - 1].isspace() or found.open_delimiters
        if is_written and not text[: ending.start()].endswith("\\"):
            # Signs at the end open something new, or are half of what closes.
            return heal_paragraph(text[: ending.start()])
    return close(text, found)


def heal_code(text: str, opened: tuple[int, int]) -> str:
    """Closes a code span, or leaves its opening sign out if nothing follows it."""
    position, count = opened
    if not text[position + count :].strip():
        return heal_paragraph(text[:position])
    # A shorter run at the end is the beginning of the closing one. The closing run must not begin a line, where it
    # would open fenced code.
    end = len(text.rstrip())
    kept = text[position + count : end].rstrip("`").rstrip()
    if not kept:
        return heal_paragraph(text[:position])
    return heal_paragraph(text[: position + count] + kept + "`" * count + text[end:])


def half_link(text: str, found: Inline) -> re.Match[str] | None:
    """Returns the link at the end that is not complete, if there is one."""
    half = HALF_LINK.search(text)
    if half is None or any(span.start <= half.start() < span.end for span in found.spans):
        return None
    return half


def close(text: str, found: Inline) -> str:
    """Closes emphasis, behind the last character that is no space."""
    signs = "".join(opened.character * opened.count for opened in reversed(found.open_delimiters))
    kept = text.rstrip()
    if signs and (len(kept) - len(kept.rstrip("\\"))) % 2:
        return heal_paragraph(kept[:-1])  # half an escape would take the closing sign
    return kept + signs + text[len(kept) :] if signs else text
