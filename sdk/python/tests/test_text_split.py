"""Cuts of Markdown: the limit, nothing lost, and markup that survives. markdown-it judges the last."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_texts import FAMILY, anything, code_of, inline_of, markdown, tokens

from turnway.text import Unit, length, split, split_parts, split_rendered, to_plain
from turnway.text.units import boundaries

units = st.sampled_from(["utf16", "chars", "bytes"])
limits = st.sampled_from([64, 65, 80, 200, 2000])


@given(anything, limits, units)
def test_parts_are_within_the_limit_and_nothing_is_lost(text: str, limit: int, unit: Unit) -> None:
    parts = split_parts(text, limit, unit)
    assert "".join(part.body for part in parts) == text
    assert all(length(part.text, unit) <= limit for part in parts)
    for part in parts:
        assert "".join(part.body.split()) in "".join(part.text.split()), "closing and opening only add"


@given(anything, limits)
def test_text_within_the_limit_is_one_part(text: str, limit: int) -> None:
    if text.strip() and length(text) <= limit:
        assert split(text, limit) == [text.strip("\r\n")]


@given(anything, limits, units)
def test_cut_never_separates_a_character_as_people_see_it(text: str, limit: int, unit: Unit) -> None:
    whole = boundaries(text)
    position = 0
    for part in split_parts(text, limit, unit)[:-1]:
        position += len(part.body)
        around = [at for at in range(len(text) + 1) if whole[at]]
        cluster = max(at for at in around if at <= position), min(at for at in around if at >= position)
        assert whole[position] or length(text[slice(*cluster)], unit) > limit // 2


@pytest.mark.parametrize("cluster", [FAMILY, "a\u0301", "🇩🇪", "👍🏽", "𝄞", "각", "क्षि", "\r\n"])
@pytest.mark.parametrize("unit", ["utf16", "chars", "bytes"])
def test_known_clusters_are_whole(cluster: str, unit: Unit) -> None:
    parts = split_parts(cluster * 200, 64, unit)
    assert all(len(part.body) % len(cluster) == 0 for part in parts)


@given(markdown, st.sampled_from([150, 400, 2100]))
def test_fenced_code_stays_fenced_code(text: str, limit: int) -> None:
    """Each part has the code of the source, as another reader of CommonMark sees it."""
    if "i" * 1990 in text and limit < 2100:
        return  # the name of the language itself is cut, and its rest becomes code
    parts = split(text, limit)
    assert "".join(code_of(part) for part in parts) == code_of(text)


@pytest.mark.parametrize("limit", [64, 1993, 1997, 1998, 2000, 2100])
@pytest.mark.parametrize("marker", ["```", "~~~~"])
def test_long_info_line_survives(limit: int, marker: str) -> None:
    text = f"before\n\n{marker}{'i' * 1990}\ncode 1\ncode 2\n{marker}\n\nafter"
    parts = split_parts(text, limit)
    assert "".join(part.body for part in parts) == text
    assert all(length(part.text) <= limit for part in parts)
    for part in parts:
        opened = [token for token in tokens(part.text) if token.type == "fence"]
        assert len(opened) == part.text.count(marker) / 2, part.text
    assert "code 1" in "".join(code_of(part.text) for part in parts).replace("code1", "code 1")


def test_code_is_opened_again_with_its_language() -> None:
    text = "```python title=x\n" + "print('hello')\n" * 40 + "```\n"
    parts = split(text, 200)
    assert all(part.startswith("```python") and part.endswith("\n```") for part in parts)
    assert "".join(code_of(part) for part in parts) == code_of(text)


@pytest.mark.parametrize(("kind", "sign"), [("code_inline", "`"), ("strong", "**"), ("em", "*"), ("s", "~~")])
def test_long_inline_markup_is_closed_and_opened_again(kind: str, sign: str) -> None:
    text = f"before {sign}{'some words, ' * 30}end{sign} after"
    parts = split(text, 100)
    assert len(parts) > 3 and "".join(inline_of(part, kind) for part in parts) == inline_of(text, kind)


def test_short_markup_is_not_cut() -> None:
    pieces = (f"{'word ' * (n % 5)}[a link {n}](http://example.org/{n}) **bold {n}** `code {n}`" for n in range(40))
    text = " ".join(pieces)
    for part in split(text, 120):
        assert part.count("**") % 2 == 0 and part.count("`") % 2 == 0 and part.count("[") == part.count(")")


def test_code_between_tildes_keeps_its_line_ends() -> None:
    parts = split("~~~\nx = 1\n" + "y" * 140 + "\n~~~\n", 150)
    assert parts == ["~~~\nx = 1\n~~~", "~~~\n" + "y" * 140 + "\n~~~"]


def test_cut_makes_no_fence_of_a_code_span() -> None:
    text = "> " + "x" * 140 + " ```\n> words in code```\n"
    parts = split(text, 150)
    assert "".join(code_of(part) for part in parts) == "" and "".join(split_parts(text, 150)[0].body)[-1] == "x"


def test_quote_continues_as_a_quote() -> None:
    parts = split("> " + "quoted words " * 40 + "\nstill quoted", 100)
    assert all(part.startswith("> ") for part in parts)


def test_list_is_cut_between_its_items() -> None:
    text = "\n".join(f"{n}. item {n} with some words" for n in range(1, 30))
    parts = split(text, 100)
    numbers = [int(line.split(".")[0]) for part in parts for line in part.splitlines()]
    assert numbers == list(range(1, 30))


def test_paragraphs_are_preferred_to_lines_and_lines_to_words() -> None:
    assert split("a " * 30 + "\n\n" + "b " * 30, 100) == ["a " * 30, "b " * 30]
    assert split("a " * 30 + "\n" + "b " * 30, 100) == ["a " * 30, "b " * 30]
    assert split("word " * 30 + "x", 103)[0] == "word " * 20


def test_cut_makes_no_new_heading_or_list() -> None:
    text = "some words # no heading " * 20 + "and - no item " * 20 + "in 1. no number " * 20
    for part in split(text, 100):
        assert [token.type for token in tokens(part)][:1] == ["paragraph_open"], part


@given(anything, st.sampled_from([64, 200, 2000]), units)
def test_rendered_parts_are_within_the_limit(text: str, limit: int, unit: Unit) -> None:
    assert all(length(part, unit) <= limit for part in split_rendered(text, to_plain, limit, unit))


def test_rendering_that_grows_is_cut_again() -> None:
    parts = split_rendered("some words " * 40, lambda text: text.replace("o", "&#111;"), 128)
    assert all(len(part) <= 128 for part in parts) and len(parts) > 5


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 64"):
        split("x", 63)
    with pytest.raises(ValueError, match="unit"):
        split("x", 100, "words")  # type: ignore[arg-type]


def test_long_texts_are_cut_in_linear_time() -> None:
    for piece in ("`", "*a ", "[", "> ", "```\n", "_a*", "](", "- ", "**a_ ", "`a`\n", "*a* ", "![a", "> `a`\n"):
        text = piece * (24_000 // len(piece))
        assert "".join(part.body for part in split_parts(text, 2000)) == text
