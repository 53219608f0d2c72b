//! Files in deliveries: the references in the Markdown of a part become attachments. Called when an order is rendered.
use super::split::CodeFence;
use crate::id::SessionId;
use crate::limits;
use crate::protocol::file_url::{file_path, parse_file_url};
use serde::Serialize;

/// The words for a file without any.
const UNNAMED: &str = "file";

/// A file of the session that a text refers to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileReference {
    /// The words of the reference; empty if it has none.
    pub name: String,
    /// The SHA-256 of the file's bytes, in hexadecimal.
    pub sha256: String,
    /// Path of the file at each node.
    pub url: String,
    /// The reference is that of a picture, `![name](url)`, and not a link.
    pub inline: bool,
}

/// Takes the references to the session's files out of a Markdown text: the first [`limits::ATTACHMENTS_MAX`] of them. A
/// line that has nothing else goes; elsewhere the words of the reference stay. Code blocks are left as they are.
pub fn take_file_references(session: &SessionId, text: &str) -> (String, Vec<FileReference>) {
    let mut taken = Vec::new();
    let mut lines = String::with_capacity(text.len());
    for (line, is_code) in lines_with_code(text) {
        let before = taken.len();
        let replaced = replace_references(session, line, is_code, &mut |file| {
            let is_taken = taken.len() < limits::ATTACHMENTS_MAX;
            is_taken.then(|| {
                let name = file.name.clone();
                taken.push(file);
                name
            })
        });
        let mut left = taken.len() - before;
        let mut stripped = || {
            replace_references(session, line, is_code, &mut |_| {
                let is_taken = left > 0;
                left = left.saturating_sub(1);
                is_taken.then(String::new)
            })
        };
        if taken.len() == before || !stripped().trim().is_empty() {
            lines.push_str(&replaced);
        }
    }
    if taken.is_empty() { (text.to_owned(), taken) } else { (lines.trim_end().to_owned(), taken) }
}

/// Replaces the references to the session's files in a Markdown text by their words, for a platform that shows no files.
pub fn name_file_references(session: &SessionId, text: &str) -> String {
    let named = |file: FileReference| Some(if file.name.is_empty() { UNNAMED.to_owned() } else { file.name });
    lines_with_code(text).map(|(line, is_code)| replace_references(session, line, is_code, &mut { named })).collect()
}

/// Returns the lines of a text, each with its end, and whether it is in a fenced code block.
fn lines_with_code(text: &str) -> impl Iterator<Item = (&str, bool)> {
    let mut open: Option<CodeFence> = None;
    text.split_inclusive('\n').map(move |line| {
        let content = line.trim_end_matches('\n');
        let was_open = open.is_some();
        match open {
            Some(fence) if fence.closing(content).is_some() => open = None,
            Some(_) => {}
            None => open = CodeFence::opening(content),
        }
        (line, was_open || open.is_some())
    })
}

/// Returns a line whose references are replaced; one without a replacement stays.
fn replace_references(
    session: &SessionId,
    line: &str,
    is_code: bool,
    replacement: &mut dyn FnMut(FileReference) -> Option<String>,
) -> String {
    let mut replaced = String::new();
    let mut rest = line;
    while !is_code && let Some(found) = find_reference(session, rest) {
        let FoundReference { start, end, file } = found;
        replaced.push_str(&rest[..start]);
        match replacement(file) {
            Some(words) => replaced.push_str(&words),
            None => replaced.push_str(&rest[start..end]),
        }
        rest = &rest[end..];
    }
    replaced + rest
}

/// A reference and its place in a line.
struct FoundReference {
    start: usize,
    end: usize,
    file: FileReference,
}

/// Returns the first reference to a file of the session: `[name](url)` or `![name](url)`, without a title.
fn find_reference(session: &SessionId, line: &str) -> Option<FoundReference> {
    let mut from = 0;
    while let Some(middle) = line[from..].find("](").map(|at| from + at) {
        let target = middle + 2;
        let end = target + line[target..].find(')')?;
        from = target;
        let Some(sha256) = parse_file_url(session, &line[target..end]) else { continue };
        let Some(bracket) = line[..middle].rfind('[') else { continue };
        let inline = line[..bracket].ends_with('!');
        let name = line[bracket + 1..middle].trim().to_owned();
        let file = FileReference { name, url: file_path(session, sha256), sha256: sha256.to_owned(), inline };
        return Some(FoundReference { start: bracket - usize::from(inline), end: end + 1, file });
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    fn session() -> SessionId {
        SessionId::parse("s1").expect("a name")
    }

    fn path() -> String {
        format!("/v1/sessions/s1/blobs/{HASH}")
    }

    /// Covers: PR-24.
    #[test]
    fn references_are_taken_out_of_markdown() {
        let at = path();
        for (text, rest, names) in [
            (format!("Look:\n\n![a cat]({at})\n"), "Look:", vec![("a cat", true)]),
            (format!("The [report.pdf]({at}) is done."), "The report.pdf is done.", vec![("report.pdf", false)]),
            (format!("![a]({at}) ![b]({at})\nrest"), "rest", vec![("a", true), ("b", true)]),
            (format!("![]({at})"), "", vec![("", true)]),
            (format!("[x](https://a.example) [y]({at})"), "[x](https://a.example) y", vec![("y", false)]),
            (format!("é [ü]({at}) é"), "é ü é", vec![("ü", false)]),
        ] {
            let (kept, taken) = take_file_references(&session(), &text);
            let found: Vec<_> = taken.iter().map(|file| (file.name.as_str(), file.inline)).collect();
            assert_eq!((kept.as_str(), found), (rest, names), "{text}");
            assert!(taken.iter().all(|file| file.sha256 == HASH && file.url == at));
        }
        for untouched in [
            "plain text\n".to_owned(),
            format!("```\n![a]({at})\n```\n"),
            format!("![a]({})", at.replace("/s1/", "/s2/")),
            format!("[a]({at}"),
            format!("a]({at})"),
            format!("{at}\n"),
        ] {
            assert_eq!(take_file_references(&session(), &untouched), (untouched.clone(), Vec::new()));
        }
        let many = format!("[a]({at})").repeat(limits::ATTACHMENTS_MAX + 1);
        let (kept, taken) = take_file_references(&session(), &many);
        assert_eq!(taken.len(), limits::ATTACHMENTS_MAX);
        assert_eq!(kept, format!("{}[a]({at})", "a".repeat(limits::ATTACHMENTS_MAX)));
    }

    /// Covers: PR-24.
    #[test]
    fn references_are_named_where_no_files_are_shown() {
        let at = path();
        let text = format!("Look:\n![a cat]({at})\n![]({at})\n```\n![b]({at})\n```\n[c](https://c.example)");
        let named = format!("Look:\na cat\nfile\n```\n![b]({at})\n```\n[c](https://c.example)");
        assert_eq!(name_file_references(&session(), &text), named);
    }
}
