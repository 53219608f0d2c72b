"""Many mutants in one build: every function that has mutants gets their bodies beside its own.

The environment variable SELECTED names the number of the mutant whose body runs; without it all functions are as they
were. Where REACHED names a folder, a process leaves a file there for each function with mutants that it has called, so
that tests which do not get to a mutant need not run against it.
"""
import re

SELECTED, REACHED = "MUTATION", "MUTATIONS_REACHED"
# Whatever can hold a brace that is none: comments, strings, characters. Comments within comments are counted apart.
TOKEN = re.compile(
    r"""//[^\n]*|/\*|\b(?:b|c)?r(\#*)".*?"\1|"(?:\\.|[^"\\])*"|'(?:\\(?:u\{[^}]*\}|x[0-9a-fA-F]{2}|.)|[^\\'])'|[{}]""",
    re.DOTALL | re.ASCII,
)
COMMENT = re.compile(r"/\*|\*/")


def offset(text, place):
    """Where a line and a column are in a text. Both start at 1, and columns count characters."""
    at = 0
    for _ in range(place["line"] - 1):
        at = text.index("\n", at) + 1
    return at + place["column"] - 1


def span(text, of):
    return offset(text, of["start"]), offset(text, of["end"])


def replaced(text, mutant):
    """The text with a mutant in place of what it changes."""
    start, end = span(text, mutant["span"])
    return text[:start] + mutant["replacement"] + text[end:]


def replaced_all(text, numbered):
    """The text with mutants of functions that do not overlap, and each function's bytes with its mutant's number."""
    pieces, regions, copied, length = [], [], 0, 0
    for number, mutant in sorted(numbered, key=lambda one: offset(text, one[1]["span"]["start"])):
        begin, end = span(text, mutant["function"]["span"])
        changed = replaced(text, mutant)
        for piece in (text[copied:begin], changed[begin : end + len(changed) - len(text)]):
            pieces.append(piece)
            before, length = length, length + len(piece.encode())
        regions.append((before, length, [number]))
        copied = end
    return "".join([*pieces, text[copied:]]), regions


def is_apart(mutant, others):
    """Whether the function of a mutant overlaps with none of the others' functions."""
    def lines(one):
        return one["file"], one["function"]["span"]["start"]["line"], one["function"]["span"]["end"]["line"]

    name, start, end = lines(mutant)
    return all(name != other or end < begun or ended < start for other, begun, ended in map(lines, others))


def braces(text, start, end):
    """Every brace of the code between two places, and where it is."""
    at = start
    while token := TOKEN.search(text, at, end):
        at = token.end()
        if token[0] == "/*":
            at = end_of_comment(text, at, end)
        elif token[0] in "{}":
            yield token[0], token.start()


def end_of_comment(text, at, end):
    depth = 1
    while depth and (mark := COMMENT.search(text, at, end)):
        depth += 1 if mark[0] == "/*" else -1
        at = mark.end()
    return at if depth == 0 else end


def body(text, function):
    """Where a function's body begins and ends, with its braces; none if that is not to be seen."""
    start, end = span(text, function["span"])
    opened = []
    for brace, at in braces(text, start, end):
        if brace == "{":
            opened.append(at)
        elif not opened:
            return None
        else:
            begun = opened.pop()
            if at == end - 1:
                return None if opened else (begun, end)
    return None


def is_embeddable(text, mutant):
    """Whether a mutant changes the body of a function that can choose at run time."""
    if not mutant["function"]:
        return False
    around = body(text, mutant["function"])
    if not around:
        return False
    head = text[offset(text, mutant["function"]["span"]["start"]) : around[0]]
    head = re.sub(r"//[^\n]*", "", head)
    start, end = span(text, mutant["span"])
    return around[0] < start and end < around[1] and not re.search(r"\bconst\s+(unsafe\s+|async\s+)*fn\b", head)


def choice(number):
    """The beginning of a function's new body. The number is that of the function's first mutant."""
    read = f'::std::env::var("{SELECTED}").ok().and_then(|number| number.parse().ok()).unwrap_or(0)'
    told = f'let _ = ::std::env::var_os("{REACHED}").map(|to| ::std::fs::write(::std::path::Path::new(&to).join("{number}"), ""));'
    static = "static SELECTED_MUTATION: ::std::sync::LazyLock<u32> = ::std::sync::LazyLock::new"
    return f"{{ {static}(|| {{ {told} {read} }}); match *SELECTED_MUTATION {{"


class Embedded:
    """A file's text with mutants in it, and which bytes of it belong to which mutants.

    `regions` are (first byte, byte after the last, numbers of mutants): the narrow ones, of one mutant each, come first.
    `group` has for each mutant the number of its function's first one.
    """

    def __init__(self, text, numbered):
        self.original, self.regions, self.group = text, [], {}
        functions = {}
        for number, mutant in numbered:
            functions.setdefault(body(text, mutant["function"]), []).append((number, mutant))
        self.pieces, self.bytes, self.open = [], 0, {}
        cuts = [(begin, 1, key) for key in functions for begin in key[:1]]
        cuts += [(end, 0, key) for key in functions for end in key[1:]]
        copied = 0
        for at, is_start, key in sorted(cuts):
            self.add(text[copied:at])
            copied = at
            self.begin(key, functions[key]) if is_start else self.finish(key, functions[key])
        self.add(text[copied:])
        self.text = "".join(self.pieces)
        self.regions.sort(key=lambda region: (len(region[2]), region[1] - region[0]))

    def add(self, piece):
        self.pieces.append(piece)
        self.bytes += len(piece.encode())

    def begin(self, key, mutants):
        """The bodies of mutants, each of the text as it was; then comes the function's own."""
        self.open[key] = self.bytes
        first = mutants[0][0]
        self.add(choice(first))
        begin, end = key
        for number, mutant in mutants:
            self.group[number] = first
            changed = replaced(self.original, mutant)
            own = changed[begin : end + len(changed) - len(self.original)]
            self.add(f"\n{number} => ")
            at = self.bytes
            self.add(own)
            self.regions.append((at, self.bytes, [number]))
        self.add("\n_ => ")

    def finish(self, key, mutants):
        self.add(" } }")
        self.regions.append((self.open[key], self.bytes, [number for number, _ in mutants]))


def places(spans):
    """The files and bytes that spans of the compiler name, also those that macros were called from."""
    for one in spans:
        while one:
            yield one["file_name"], one["byte_start"], one["byte_end"]
            one = (one.get("expansion") or {}).get("span")


def blamed(message, regions):
    """The mutants that an error of the compiler is about, by the regions of each file; none if it does not say."""
    every = [message, *message.get("children", [])]
    main = [one for one in message["spans"] if one["is_primary"]]
    for spans in (main, [one for part in every for one in part["spans"]]):
        for name, start, end in places(spans):
            for begun, ended, numbers in regions.get(name, []):
                if begun <= start and end <= ended:
                    return numbers
    return []
