#!/usr/bin/env python3
"""Unit tests of mutants_embed.py: bodies are found, mutants stand beside them, and errors find their mutants.

    python3 tests/mutants_embed_tests.py

The test `tidy` runs them.
"""
import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from mutants_embed import REACHED, SELECTED, Embedded, blamed, body, is_apart, is_embeddable, replaced, replaced_all


def place(text, at):
    before = text[:at].split("\n")
    return {"line": len(before), "column": len(before[-1]) + 1}


def spanned(text, part, after=0):
    at = text.index(part, after)
    return {"start": place(text, at), "end": place(text, at + len(part))}


def mutant(text, function, old, new):
    """A mutant as cargo-mutants lists it; `function` is the whole text of the function."""
    changed = spanned(text, old, text.index(function) if function else 0)
    return {"function": function and {"span": spanned(text, function)}, "span": changed, "replacement": new}


def body_of(text):
    around = body(text, {"span": spanned(text, text)})
    return around and text[slice(*around)]


class Bodies(unittest.TestCase):
    def test_braces_of_strings_comments_and_characters_do_not_count(self):
        for inside in ['"}"', r'"\"}"', 'r#"}"}"#', 'b"}"', "'}'", r"'\''; '}'", "'\\u{7d}'", "/* } /* } */ } */", "// }\n"]:
            with self.subTest(inside):
                self.assertEqual(body_of(f"fn f() {{ {inside} }}"), f"{{ {inside} }}")

    def test_lifetimes_are_not_characters(self):
        self.assertEqual(body_of("fn f<'a>(x: &'a str) -> &'a str { x }"), "{ x }")

    def test_braces_before_the_body_do_not_count(self):
        self.assertEqual(body_of('#[doc = "{"]\n/// {\nfn f(x: A<{ 1 }>) -> [u8; { 2 }] { x }'), "{ x }")

    def test_inner_blocks_belong_to_the_body(self):
        self.assertEqual(body_of("fn f() { if a { b } else { c } }"), "{ if a { b } else { c } }")

    def test_declaration_has_no_body(self):
        self.assertIsNone(body_of("fn f();"))

    def test_columns_count_characters(self):
        text = 'fn f() -> bool { "héllo 語" == x }'
        self.assertEqual(replaced(text, mutant(text, text, "==", "!=")), 'fn f() -> bool { "héllo 語" != x }')


class Replaced(unittest.TestCase):
    def test_several_functions_are_changed_and_their_bytes_are_known(self):
        text = "fn é() { 1 + 2 }\nfn g() {}\nfn f() { 3 - 4 }\n"
        second = (5, mutant(text, "fn f() { 3 - 4 }", "-", "é *"))
        changed, regions = replaced_all(text, [second, (3, mutant(text, "fn é() { 1 + 2 }", "+", ""))])
        self.assertEqual(changed, "fn é() { 1  2 }\nfn g() {}\nfn f() { 3 é * 4 }\n")
        found = {numbers[0]: changed.encode()[start:end].decode() for start, end, numbers in regions}
        self.assertEqual(found, {3: "fn é() { 1  2 }", 5: "fn f() { 3 é * 4 }"})

    def test_overlapping_functions_are_not_apart(self):
        text = "fn f() {\nfn g() { 1 + 2 }\n}\nfn h() { 3 - 4 }\n"
        inner = {**mutant(text, "fn g() { 1 + 2 }", "+", "-"), "file": "a.rs"}
        outer = {**mutant(text, "fn f() {\nfn g() { 1 + 2 }\n}", "+", "*"), "file": "a.rs"}
        other = {**mutant(text, "fn h() { 3 - 4 }", "-", "+"), "file": "a.rs"}
        self.assertFalse(is_apart(inner, [other, outer]))
        self.assertTrue(is_apart(inner, [other, {**outer, "file": "b.rs"}]))


class Embeddable(unittest.TestCase):
    def test_function_is(self):
        text = "/// const fn\npub async fn f() { a + b }"
        self.assertTrue(is_embeddable(text, mutant(text, text, "+", "-")))

    def test_const_function_is_not(self):
        text = "pub const fn f() -> u8 { a + b }"
        self.assertFalse(is_embeddable(text, mutant(text, text, "+", "-")))

    def test_constant_is_not(self):
        text = "const A: u8 = 1 + 2;"
        self.assertFalse(is_embeddable(text, mutant(text, None, "+", "-")))

    def test_change_of_a_signature_is_not(self):
        text = "fn f(x: [u8; 1 + 2]) { x }"
        self.assertFalse(is_embeddable(text, mutant(text, text, "+", "-")))


class Errors(unittest.TestCase):
    def setUp(self):
        self.text = "fn e() {}\nfn f() -> u8 { a + b }\n"
        function = "fn f() -> u8 { a + b }"
        self.mutants = [(7, mutant(self.text, function, "+", "-")), (9, mutant(self.text, function, "a + b", "é()"))]
        self.embedded = Embedded(self.text, self.mutants)

    def blamed(self, part, is_primary=True, expansion=None):
        at = self.embedded.text.encode().index(part.encode())
        span = {"file_name": "x.rs", "byte_start": at, "byte_end": at + len(part.encode())}
        if expansion:
            span = {"file_name": "macros.rs", "byte_start": 0, "byte_end": 1, "expansion": {"span": span}}
        message = {"spans": [{**span, "is_primary": is_primary}], "children": []}
        return blamed(message, {"x.rs": self.embedded.regions})

    def test_error_in_a_body_blames_its_mutant(self):
        self.assertEqual(self.blamed("a - b"), [7])
        self.assertEqual(self.blamed("é()"), [9])

    def test_error_in_a_macro_blames_the_mutant_that_calls_it(self):
        self.assertEqual(self.blamed("a - b", expansion=True), [7])

    def test_secondary_place_counts_where_the_primary_says_nothing(self):
        self.assertEqual(self.blamed("a - b", is_primary=False), [7])

    def test_error_in_the_choice_blames_all_mutants_of_the_function(self):
        self.assertEqual(self.blamed("static"), [7, 9])
        self.assertEqual(self.blamed("a + b"), [7, 9])

    def test_error_elsewhere_blames_none(self):
        self.assertEqual(self.blamed("fn e() {}"), [])


PROGRAM = """
#[derive(Debug)]
struct Count(u32);
impl Count {
    /// Adds, with a brace: }
    #[expect(clippy::unused_self, reason = "{")]
    fn add(&self, more: u32) -> Result<u32, std::num::ParseIntError> {
        fn twice(of: u32) -> u32 { of * 2 }
        if more == 3 { return Ok('}' as u32); }
        let one: u32 = "1".parse()?;
        Ok(twice(more) + one)
    }
}
fn first<'a>(of: &'a [String]) -> Option<&'a str> { of.first().map(|one| one.as_str()) }
fn never(of: bool) -> u32 { match of { true => 5, false => panic!("}}") } }
fn uncalled() -> u32 { 1 }
fn main() {
    let of = vec![String::from("a")];
    println!("{:?} {:?} {:?} {}", Count(1).add(4), Count(1).add(3), first(&of), never(true));
    if of.is_empty() { uncalled(); }
}
"""


def function(name):
    """The text of a function of PROGRAM."""
    start = PROGRAM.index(f"fn {name}")
    text = PROGRAM[start:]
    return text[: text.index("\n    }\n") + 6] if name == "add" else text[: text.index(" }\n") + 2]


@unittest.skipUnless(shutil.which("rustc"), "no rustc")
class Runs(unittest.TestCase):
    """A program with mutants of every kind, built once and run with each of them."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        home = Path(cls.folder.name)
        mutants = [
            mutant(PROGRAM, function("add"), "twice(more) + one", "twice(more) - one"),
            mutant(PROGRAM, function("twice"), "of * 2", "of / 2"),
            mutant(PROGRAM, function("add"), "more == 3", "more != 3"),
            mutant(PROGRAM, function("first"), "of.first().map(|one| one.as_str())", "None"),
            mutant(PROGRAM, function("never"), "true => 5,", "true => 6,"),
            mutant(PROGRAM, function("uncalled"), "1", "0"),
        ]
        cls.embedded = Embedded(PROGRAM, list(enumerate(mutants, 1)))
        (home / "main.rs").write_text(cls.embedded.text)
        cls.program = home / "main"
        subprocess.run(["rustc", "--edition", "2024", home / "main.rs", "-o", cls.program], check=True, capture_output=True)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def told(self, **environment):
        ran = subprocess.run([self.program], env={**os.environ, **environment}, capture_output=True, text=True, check=True)
        return ran.stdout.strip()

    def test_without_a_selection_nothing_is_changed(self):
        self.assertEqual(self.told(), 'Ok(9) Ok(125) Some("a") 5')

    def test_each_number_selects_its_mutant(self):
        expected = {
            1: 'Ok(7) Ok(125) Some("a") 5',
            2: 'Ok(3) Ok(125) Some("a") 5',
            3: 'Ok(125) Ok(7) Some("a") 5',
            4: "Ok(9) Ok(125) None 5",
            5: 'Ok(9) Ok(125) Some("a") 6',
            6: 'Ok(9) Ok(125) Some("a") 5',
        }
        self.assertEqual({number: self.told(**{SELECTED: str(number)}) for number in expected}, expected)

    def test_reached_functions_leave_the_number_of_their_first_mutant(self):
        with tempfile.TemporaryDirectory() as folder:
            self.told(**{REACHED: folder})
            self.assertEqual(sorted(path.name for path in Path(folder).iterdir()), ["1", "2", "4", "5"])
        self.assertEqual(self.embedded.group, {1: 1, 2: 2, 3: 1, 4: 4, 5: 5, 6: 6})


if __name__ == "__main__":
    unittest.main()
