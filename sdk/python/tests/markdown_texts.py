"""Random Markdown for property tests, and CommonMark as markdown-it reads it."""

from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

FAMILY = "👨‍👩‍👧‍👦"
ACCENT = "é" * 3 + "a\u0301\u0323"
PIECES = [
    "word", "two words", " ", " ", "\n", "\n\n", "a sentence. And one more! ", "日本語。", "𝄞", FAMILY, ACCENT, "🇩🇪🇯🇵",
    "👍🏽", "각", "क्षि", "`code`", "``a ` b``", "`", "``", "```", "**bold**", "**", "*", "_", "__", "~~gone~~",
    "[a link](http://x.y/z)", "[", "](", "![i](u)", "\\*", "\\", "# ", "> ", "- ", "1. ", "    ", "<http://a.b>", "&amp;", "x" * 90, "|",
    "---", "\r\n", "\r",
]  # fmt: skip

plain_lines = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)
CODE = ["x = 1", "", "    indented", "y" * 150, "``", "> z", "日本", "# no heading"]
code_lines = st.lists(st.sampled_from(CODE), max_size=40)


@st.composite
def fenced(draw: st.DrawFn) -> str:
    """A fenced block, alone, in a quote or in a list item."""
    marker = draw(st.sampled_from(["```", "````", "~~~"]))
    info = draw(st.sampled_from(["", "py", "python title=x", "i" * 40, "i" * 1990]))
    lines = [marker + info, *draw(code_lines), marker]
    match draw(st.sampled_from(["", "> ", "- "])):
        case "> ":
            lines = ["> " + line for line in lines]
        case "- ":
            lines = ["- item", *("  " + line for line in lines)]
    return "\n" + "\n".join(lines) + "\n"


quoted = st.lists(plain_lines, min_size=1, max_size=5).map(
    lambda lines: "\n" + "\n".join("> " + " ".join(line.split("\n")) for line in lines) + "\n"
)
listed = st.lists(plain_lines, min_size=1, max_size=6).map(
    lambda lines: "\n" + "\n".join(f"{n + 1}. " + " ".join(line.split("\n")) for n, line in enumerate(lines)) + "\n"
)
blocks = st.one_of(plain_lines, fenced(), quoted, listed, st.just("word " * 90), st.just("> " + "quoted " * 60 + "\n"))
markdown = st.lists(blocks, max_size=6).map("\n".join)
anything = st.one_of(markdown, st.text(max_size=400), st.text(alphabet="`*_~[]()>-#\n ab1.\\", max_size=200))

READER = MarkdownIt("commonmark").disable("code").enable("strikethrough")


def tokens(text: str) -> list[Token]:
    """Returns the block tokens."""
    return READER.parse(text)


def code_of(text: str) -> str:
    """Returns what stands in fenced code, without line ends and indentation."""
    found = [token.content for token in tokens(text) if token.type == "fence"]
    return "".join("".join(found).split())


def inline_of(text: str, kind: str) -> str:
    """Returns the text within the inline markup of a kind, such as `strong`, without spaces."""
    found: list[str] = []
    for token in tokens(text):
        depth = 0
        for child in token.children or []:
            depth += {f"{kind}_open": 1, f"{kind}_close": -1}.get(child.type, 0)
            if depth or (kind == "code_inline" and child.type == kind):
                found.append(child.content)
    return "".join("".join(found).split())
