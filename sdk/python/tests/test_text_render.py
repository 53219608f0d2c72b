"""Plain text, escapes, and half Markdown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_texts import READER, anything, markdown, tokens

from turnway.text import escape, heal, to_plain
from turnway.text.blocks import read_lines
from turnway.text.inline import parse_inline

COMPLETE = [
    "", "plain words", "a **bold** word", "*a* and _b_ and ~~c~~", "`code` and ``a ` b``", "[link](http://x.y)",
    "```py\ncode\n```\n", "~~~\n```\n~~~", "> a quote\n> of two lines", "1. one\n2. two\n", "snake_case_name",
    "2 * 3 * 4", "a\\*b", "***both***", "- item with `code`\n- **bold**\n", "![image](u)", "# heading\n\ntext", "---\n", "a\n---\nb",
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("a **bold** and *em* and ~~gone~~", "a bold and em and gone"),
        ("***both*** and **bold *em***", "both and bold em"),
        ("snake_case_name and 2 * 3 * 4", "snake_case_name and 2 * 3 * 4"),
        ("`a * b` and ``c ` d``", "a * b and c ` d"),
        ("# Title #\n\ntext", "Title\n\ntext"),
        ("```py\nx = 1\n```\nafter", "x = 1\nafter"),
        ("- item\n  ```\n  code\n  ```", "- item\ncode\n"),
        ("* one\n+ two\n3. three", "- one\n- two\n3. three"),
        ("> quoted **bold**", "> quoted bold"),
        ("[text](http://x.y/a_b) ![alt](u)", "text (http://x.y/a_b) alt (u)"),
        ("[http://x.y](http://x.y) <http://a.b>", "http://x.y http://a.b"),
        ("\\*not\\* \\_em\\_ \\\\", "*not* _em_ \\"),
        ("a &amp; b `&amp;`", "a & b &amp;"),
        ("one  \ntwo\\\nthree", "one\ntwo\nthree"),
        ("unclosed ** and ` and [", "unclosed ** and ` and ["),
    ],
)
def test_markdown_becomes_plain_text(text: str, plain: str) -> None:
    assert to_plain(text) == plain


def shown(text: str) -> str:
    """Returns the text of paragraphs and code as markdown-it shows it, without spaces."""
    found: list[str] = []
    for token in tokens(text):
        if token.type == "fence":
            found.append(token.content)
        for child in token.children or []:
            found.append(child.content if child.type in ("text", "code_inline") else " ")
    return "".join("".join(found).split())


SIGNS = ["a", "b c", "*", "**", "_", "***", "`", "``", "\\", " ", ".", "é", "(", "日"]
emphasis = st.lists(st.sampled_from(SIGNS), max_size=14)


@given(emphasis.map("".join))
def test_inline_markup_is_read_as_commonmark_reads_it(text: str) -> None:
    text = "x" + text + "x"
    assert "".join(to_plain(text).split()) == shown(text)


@given(st.text(alphabet=st.characters(exclude_categories=["Cs", "Cc"]), max_size=80))
def test_escaped_text_is_shown_as_it_is(text: str) -> None:
    assert to_plain(escape(text)).replace("\xa0", " ") == text.replace("\xa0", " ")
    inline = READER.parse(escape(text))
    if text.strip():
        assert [token.type for token in inline] == ["paragraph_open", "inline", "paragraph_close"]
        assert "".join(shown(escape(text)).split()) == "".join(text.split())


@given(anything)
def test_plain_text_is_never_an_error(text: str) -> None:
    to_plain(text)
    escape(text)


@pytest.mark.parametrize("text", COMPLETE)
def test_complete_text_stays_as_it_is(text: str) -> None:
    assert heal(text) == text


@pytest.mark.parametrize(
    ("half", "healed"),
    [
        ("a **bol", "a **bol**"),
        ("a **bold*", "a **bold**"),
        ("a **", "a "),
        ("a **bold and *em", "a **bold and *em***"),
        ("a **bold ", "a **bold** "),
        ("`co", "`co`"),
        ("text `", "text "),
        ("> ``code`\n", "> ``code``\n"),
        ("``a ` b", "``a ` b``"),
        ("**bold `co", "**bold `co`**"),
        ("```py\ncode", "```py\ncode\n```"),
        ("```py", "```py\n```"),
        ("```py\ncode\n``", "```py\ncode\n```"),
        ("> ```\n> co", "> ```\n> co\n> ```"),
        ("- a\n  ```\n  co", "- a\n  ```\n  co\n  ```"),
        ("see [the li", "see the li"),
        ("see [the link](http://x", "see the link"),
        ("see [the link]", "see the link"),
        ("see ![an ima", "see "),
        ("text\n-", "text"),
        ("~~gon", "~~gon~~"),
        ("*half an escape\\", "*half an escape*"),
        ("see [`co", "see `co`"),
    ],
)
def test_half_markdown_is_completed(half: str, healed: str) -> None:
    assert heal(half) == healed


@given(st.one_of(markdown, st.sampled_from(COMPLETE)), st.integers(min_value=0, max_value=2000))
def test_healed_text_has_nothing_open_and_stays(text: str, end: int) -> None:
    healed = heal(text[:end])
    assert heal(healed) == healed
    lines = read_lines(healed)
    assert not lines or lines[-1].role not in ("open", "code")


@given(st.sampled_from(COMPLETE), st.integers(min_value=0, max_value=60))
def test_no_sign_of_emphasis_shows_while_it_is_written(text: str, end: int) -> None:
    healed = heal(text[:end])
    if "`" not in text and "\\" not in text and " * " not in text:
        found = parse_inline(healed)
        assert found.open_code is None and not found.open_delimiters
