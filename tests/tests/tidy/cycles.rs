//! Call cycles between the files of one type. Reads the methods of a type and the free functions that take the type
//! by reference, and builds the graph of calls between their files. Knows names only, no types of expressions.
use crate::tree::Source;
use std::collections::{BTreeMap, BTreeSet};

/// Types whose functions are checked wherever they stand, as those of [`PARTS`]; other types are checked if
/// [`FILES_MIN`] files implement them.
const ALWAYS: [&str; 2] = ["Switchboard", "SessionRuntime"];
const FILES_MIN: usize = 3;

/// The parts of the switchboard. Only the switchboard itself may change more than one of them.
const PARTS: [&str; 4] = ["RequestRouter", "Delivery", "Ownership", "Membership"];

/// The calls from one file of a type to another that are still permitted although they lie on a cycle, one a line:
/// type, calling file, called file. Every entry must exist, so the list can only get shorter.
pub(crate) const PERMITTED: &str = include_str!("permitted_cycles.txt");

/// A function that belongs to a type: a method, or a free function that takes the type by reference.
#[derive(Debug)]
struct TypeFunction {
    name: String,
    path: String,
    is_method: bool,
    /// Names by which the function's code calls methods: `self`, and the parameters of the type.
    receivers: BTreeSet<String>,
    /// The function's text from its `fn` to its closing brace, without comments and strings.
    code: String,
}

/// An edge between two files that lies on a cycle, with one call as an example.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CyclicCall {
    owner: String,
    from: String,
    to: String,
    example: String,
}

impl CyclicCall {
    /// Returns the line that permits the call.
    fn pair(&self) -> String {
        format!("{} {} {}", self.owner, self.from, self.to)
    }
}

/// Returns a violation for each call on a cycle that is not permitted, and for each permitted pair without a call.
pub(crate) fn violations(sources: &[Source], permitted: &str) -> Vec<String> {
    let calls = cyclic_calls(sources);
    let permitted: BTreeSet<&str> = permitted.lines().collect();
    let pairs: BTreeSet<String> = calls.iter().map(CyclicCall::pair).collect();
    let new = calls.iter().filter(|call| !permitted.contains(call.pair().as_str()));
    let mut found: Vec<String> = new.map(|call| format!("{}: {}", call.pair(), call.example)).collect();
    let gone = permitted.into_iter().filter(|pair| !pairs.contains(*pair));
    found.extend(gone.map(|pair| format!("{pair}: no longer in a cycle, remove the line from permitted_cycles.txt")));
    found
}

/// Returns the functions of a file that take a part of the switchboard by `&mut`; a method's own `&mut self` is none.
pub(crate) fn changed_parts(source: &Source) -> Vec<String> {
    let code = blank_comments_and_strings(&source.text);
    let mut found = Vec::new();
    for (n, line) in code.lines().enumerate() {
        for (at, _) in line.match_indices("mut ").filter(|(at, _)| line[..*at].contains('&')) {
            let target = leading_name(&line[at + 4..]);
            if PARTS.contains(&target) {
                found.push(source.at(n + 1, &format!("takes `&mut {target}`")));
            }
        }
    }
    found
}

/// Returns every edge between two files of a type that lies on a cycle of such edges.
pub(crate) fn cyclic_calls(sources: &[Source]) -> Vec<CyclicCall> {
    let mut found = Vec::new();
    for (owner, functions) in functions_by_type(sources) {
        let edges = file_edges(&functions);
        let reachable = closure(edges.keys().map(|(from, to)| (from.as_str(), to.as_str())).collect());
        for ((from, to), example) in &edges {
            if reachable.contains(&(to.as_str(), from.as_str())) {
                let owner = owner.clone();
                let from = from.clone();
                let to = to.clone();
                found.push(CyclicCall { owner, from, to, example: example.clone() });
            }
        }
    }
    found
}

/// Returns the functions of each checked type. Types of different crates are different, even with one name.
fn functions_by_type(sources: &[Source]) -> BTreeMap<String, Vec<TypeFunction>> {
    let mut files: BTreeMap<(String, String), BTreeSet<&str>> = BTreeMap::new();
    let mut methods: BTreeMap<(String, String), Vec<TypeFunction>> = BTreeMap::new();
    let mut free: BTreeMap<String, Vec<TypeFunction>> = BTreeMap::new();
    for source in sources {
        let crate_name = source.path.split("/src/").next().unwrap_or_default().to_owned();
        let code = without_tests(&blank_comments_and_strings(&source.text));
        for item in top_level_items(&code) {
            if let Some(owner) = implemented_type(item) {
                let key = (crate_name.clone(), owner.clone());
                files.entry(key.clone()).or_default().insert(&source.path);
                let found = functions(item, true).map(|text| type_function(text, &source.path, &owner, true));
                methods.entry(key).or_default().extend(found);
            } else {
                let found = functions(item, false).map(|text| type_function(text, &source.path, "", false));
                free.entry(crate_name.clone()).or_default().extend(found);
            }
        }
    }
    let mut checked = BTreeMap::new();
    for ((crate_name, owner), mut all) in methods {
        let count = files.get(&(crate_name.clone(), owner.clone())).map_or(0, BTreeSet::len);
        let is_named = ALWAYS.contains(&owner.as_str()) || PARTS.contains(&owner.as_str());
        if count < FILES_MIN && !is_named {
            continue;
        }
        for function in free.get(&crate_name).into_iter().flatten() {
            let receivers = reference_parameters(&function.code, &owner);
            if !receivers.is_empty() {
                let name = function.name.clone();
                let path = function.path.clone();
                all.push(TypeFunction { name, path, is_method: false, receivers, code: function.code.clone() });
            }
        }
        checked.insert(owner, all);
    }
    checked
}

fn type_function(text: &str, path: &str, owner: &str, is_method: bool) -> TypeFunction {
    let name = text.split("fn ").nth(1).map(leading_name).unwrap_or_default().to_owned();
    let mut receivers = reference_parameters(text, owner);
    if is_method {
        receivers.extend(reference_parameters(text, "Self"));
        receivers.insert("self".to_owned());
    }
    TypeFunction { name, path: path.to_owned(), is_method, receivers, code: text.to_owned() }
}

/// Returns the edges between different files, each with its first call.
fn file_edges(functions: &[TypeFunction]) -> BTreeMap<(String, String), String> {
    let mut edges = BTreeMap::new();
    for caller in functions {
        for called in functions.iter().filter(|called| called.path != caller.path && calls(caller, called)) {
            let example = format!("`{}` calls `{}`", caller.name, called.name);
            edges.entry((caller.path.clone(), called.path.clone())).or_insert(example);
        }
    }
    edges
}

/// Returns whether a function's code calls another function by name.
fn calls(caller: &TypeFunction, called: &TypeFunction) -> bool {
    caller.code.match_indices(&called.name).any(|(at, name)| {
        let before = &caller.code[..at];
        let after = caller.code[at + name.len()..].trim_start();
        let ends = after.starts_with('(') || after.starts_with("::<") || after.starts_with([',', ')']);
        let own = before.trim_end().ends_with("fn");
        if !ends || own || before.ends_with(is_name_letter) {
            return false;
        }
        let before = before.trim_end();
        let is_called = after.starts_with(['(', ':']);
        match before.strip_suffix('.') {
            Some(receiver) => {
                called.is_method && is_called && caller.receivers.contains(last_name(receiver.trim_end()))
            }
            None => is_called && !called.is_method || before.ends_with("Self::"),
        }
    })
}

/// Returns every pair of files between which a path of edges leads.
fn closure<'a>(mut edges: BTreeSet<(&'a str, &'a str)>) -> BTreeSet<(&'a str, &'a str)> {
    loop {
        let joined: Vec<(&str, &str)> = edges
            .iter()
            .flat_map(|(from, via)| {
                edges.range((*via, "")..).take_while(move |(start, _)| start == via).map(|(_, to)| (*from, *to))
            })
            .filter(|edge| !edges.contains(edge))
            .collect();
        if joined.is_empty() {
            return edges;
        }
        edges.extend(joined);
    }
}

/// Returns a text of the same lines in which comments and the content of strings are blank.
fn blank_comments_and_strings(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        let length = match letter {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => rest.find("*/").map_or(rest.len(), |end| end + 2),
            'r' if rest.starts_with("r#\"") && !code.ends_with(is_name_letter) => {
                rest.find("\"#").map_or(rest.len(), |end| end + 2)
            }
            '"' => string_length(rest),
            '\'' => char_length(rest),
            _ => 0,
        };
        if length == 0 {
            code.push(letter);
            rest = &rest[letter.len_utf8()..];
        } else {
            code.extend(rest[..length].chars().map(|letter| if letter == '\n' { '\n' } else { ' ' }));
            rest = &rest[length..];
        }
    }
    code
}

/// Returns the length of the string literal that a text starts with.
fn string_length(text: &str) -> usize {
    let mut escaped = false;
    for (at, letter) in text.char_indices().skip(1) {
        match letter {
            '"' if !escaped => return at + 1,
            '\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    text.len()
}

/// Returns the length of the character literal that a text starts with; 0 for a lifetime.
fn char_length(text: &str) -> usize {
    let mut letters = text.char_indices().skip(1);
    match letters.next() {
        Some((_, '\\')) => text.char_indices().skip(3).find(|(_, letter)| *letter == '\'').map_or(0, |(at, _)| at + 1),
        _ => letters.next().filter(|(_, letter)| *letter == '\'').map_or(0, |(at, _)| at + 1),
    }
}

/// Removes everything from the file's unit tests on, which stand at its end.
fn without_tests(code: &str) -> String {
    code.split("\n#[cfg(test)]").next().unwrap_or_default().to_owned()
}

/// Returns the items of a formatted file that start at the left margin and end with a closing brace there.
fn top_level_items(code: &str) -> impl Iterator<Item = &str> {
    let starts_item = |line: &str| {
        let line = line
            .strip_prefix("pub")
            .map_or(line, |rest| rest.trim_start_matches("(super)").trim_start_matches("(crate)"));
        let words = line.trim_start();
        words.starts_with("impl")
            || words.starts_with("fn ")
            || words.starts_with("async fn ")
            || words.starts_with("const fn ")
    };
    let mut from = 0;
    let starts = code.split_inclusive('\n').filter_map(move |line| {
        let at = from;
        from += line.len();
        (!line.starts_with(' ') && starts_item(line)).then_some(at)
    });
    starts.map(|at| {
        let item = &code[at..];
        let end = item.find("\n}\n").map_or(item.len(), |end| end + 2);
        let single = item.find('\n').filter(|end| item[..*end].ends_with('}'));
        &item[..single.unwrap_or(end)]
    })
}

/// Returns the type of an `impl` block; `None` for a function.
fn implemented_type(item: &str) -> Option<String> {
    let rest = item.strip_prefix("impl")?;
    let head = rest.split('{').next()?;
    let head = head.strip_prefix('<').map_or(head, |generics| skip_generics(generics));
    let head = head.split(" where").next()?;
    let target = head.rsplit(" for ").next()?.trim();
    let name = target.split('<').next()?.rsplit("::").next()?.trim_start_matches('&').trim();
    (!name.is_empty()).then(|| name.to_owned())
}

/// Returns the text after the `>` that closes an open `<`.
fn skip_generics(text: &str) -> &str {
    let mut depth = 1;
    for (at, letter) in text.char_indices() {
        match letter {
            '<' => depth += 1,
            '>' if text[..at].ends_with('-') => {}
            '>' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return &text[at + 1..];
        }
    }
    text
}

/// Returns the text of each function in an item: the methods of an `impl` block, or the function itself.
fn functions(item: &str, is_impl: bool) -> impl Iterator<Item = &str> {
    let indent = if is_impl { "    " } else { "" };
    let mut from = 0;
    let starts = item.split_inclusive('\n').filter_map(move |line| {
        let at = from;
        from += line.len();
        let inside = line.strip_prefix(indent).is_some_and(|rest| !rest.starts_with(' '));
        (inside && crate::rules::starts_function(line.trim_end())).then_some(at)
    });
    starts.map(move |at| {
        let text = &item[at..];
        let close = format!("\n{indent}}}");
        let end = text.find(&close).map_or(text.len(), |end| end + close.len());
        let single = text.find('\n').filter(|end| text[..*end].trim_end().ends_with(['}', ';']));
        &text[..single.unwrap_or(end)]
    })
}

/// Returns the names of all parameters, also of closures, that are references to a type.
fn reference_parameters(code: &str, owner: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, _) in code.match_indices(": &").filter(|_| !owner.is_empty()) {
        let target = code[at + 3..].trim_start_matches("mut ");
        let target = target.strip_prefix('\'').map_or(target, |rest| rest.split_once(' ').map_or("", |(_, rest)| rest));
        let path_end = target.find(|c: char| !is_name_letter(c) && c != ':').unwrap_or(target.len());
        if target[..path_end].rsplit("::").next() == Some(owner) {
            found.insert(last_name(&code[..at]).to_owned());
        }
    }
    found
}

fn is_name_letter(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

fn leading_name(text: &str) -> &str {
    &text[..text.find(|c: char| !is_name_letter(c)).unwrap_or(text.len())]
}

/// Returns the last name of a text if no path or field leads to it: `a` of `(a`, nothing of `b.a`.
fn last_name(text: &str) -> &str {
    let start = text
        .rfind(|c: char| !is_name_letter(c))
        .map_or(0, |at| at + text[at..].chars().next().map_or(1, char::len_utf8));
    if text[..start].ends_with('.') { "" } else { &text[start..] }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source { path: format!("core/src/{path}"), text: text.to_owned() }
    }

    const PLAIN: &str = "//! Start.\nimpl Switchboard {\n    fn go(&mut self) {\n        self.walk();\n    }\n}\n";

    #[test]
    fn methods_that_call_each_other_across_files_are_a_cycle() {
        let back = "impl Switchboard {\n    fn walk(&mut self) {\n        self.go();\n    }\n}\n";
        let sources = [source("a.rs", PLAIN), source("b.rs", back)];
        let found = violations(&sources, "");
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(found[0], "Switchboard core/src/a.rs core/src/b.rs: `go` calls `walk`");
    }

    #[test]
    fn free_functions_that_take_the_type_are_part_of_the_graph() {
        let one = "impl Switchboard {}\npub(super) fn go(board: &mut Switchboard, n: u8) {\n    b::walk(board);\n}\n";
        let two = "fn walk(board: &'a super::Switchboard) {\n    if true {\n        go(board, 1);\n    }\n}\n";
        let found = violations(&[source("a.rs", one), source("b.rs", two)], "");
        assert_eq!(found.len(), 2, "{found:?}");
    }

    #[test]
    fn cycle_over_three_files_of_any_type_is_found() {
        let file = |own: &str, next: &str| {
            format!(
                "impl<T> Machine<T> for Parcel<T> {{\n    fn {own}(&self) {{\n        let f = |p: &Self| p.{next}();\n    }}\n}}\n"
            )
        };
        let sources =
            [source("a.rs", &file("a", "b")), source("b.rs", &file("b", "c")), source("c.rs", &file("c", "a"))];
        assert_eq!(cyclic_calls(&sources).len(), 3);
        assert_eq!(cyclic_calls(&sources[..2]), []);
    }

    #[test]
    fn calls_in_one_direction_and_calls_of_parts_are_no_cycle() {
        let cases = [
            "impl Switchboard {\n    fn walk(&mut self) {}\n}\n",
            "impl Switchboard {\n    fn walk(&mut self) {\n        self.part.go();\n    }\n}\n",
            "impl Switchboard {\n    fn walk(&mut self) {\n        // self.go();\n        say(\"self.go()\", '\"', \"\\\"\");\n    }\n}\n",
            "impl Other {\n    fn walk(&mut self) {\n        self.go();\n    }\n}\n",
            "impl Switchboard {\n    fn walk(&mut self) {}\n}\n\n#[cfg(test)]\nmod tests {\n    fn f(s: &mut Switchboard) {\n        s.go();\n    }\n}\n",
        ];
        for text in cases {
            assert_eq!(cyclic_calls(&[source("a.rs", PLAIN), source("b.rs", text)]), [], "{text}");
        }
    }

    #[test]
    fn part_that_is_taken_mutably_is_a_violation() {
        let changes = "fn end(&mut self, delivery: &mut Delivery) {}\nfn go(ownership: &'a mut Ownership) {}\n";
        assert_eq!(changed_parts(&source("a.rs", changes)).len(), 2);
        let reads = "// &mut Delivery\nfn read(&mut self, delivery: &Delivery, sink: &mut EffectSink) {}\n";
        assert_eq!(changed_parts(&source("a.rs", reads)), Vec::<String>::new());
    }

    #[test]
    fn permitted_pair_must_exist() {
        let back = "impl Switchboard {\n    fn walk(&mut self) {\n        self.go();\n    }\n}\n";
        let sources = [source("a.rs", PLAIN), source("b.rs", back)];
        let one = "Switchboard core/src/a.rs core/src/b.rs\n";
        let both = format!("{one}Switchboard core/src/b.rs core/src/a.rs\n");
        assert_eq!(violations(&sources, &both), Vec::<String>::new());
        let found = violations(&sources[..1], one);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("no longer in a cycle"), "{found:?}");
    }
}
