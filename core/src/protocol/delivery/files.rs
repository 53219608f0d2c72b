//! Files in deliveries: the references in the Markdown of a part become attachments. Called when an order is rendered.
use super::split::CodeFence;
use crate::id::{BlobHash, SessionId};
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
    pub sha256: BlobHash,
    /// Path of the file at each node.
    pub url: String,
    /// The reference is that of a picture, `![name](url)`, and not a link.
    pub inline: bool,
}

/// A piece of a line of Markdown.
enum LinePiece<'a> {
    Text(&'a str),
    /// A reference, and its source.
    Reference(FileReference, &'a str),
}

/// Takes the references to the session's files out of a Markdown text: the first [`limits::ATTACHMENTS_MAX`] of them. A
/// line that has nothing else goes; elsewhere the words of the reference stay. Code blocks are left as they are.
pub fn take_file_references(session: &SessionId, text: &str) -> (String, Vec<FileReference>) {
    let mut taken = Vec::new();
    let mut rest = String::with_capacity(text.len());
    for pieces in lines_in_pieces(session, text) {
        let before = taken.len();
        let start = rest.len();
        let mut has_more = false;
        for piece in pieces {
            match piece {
                LinePiece::Reference(file, _) if taken.len() < limits::ATTACHMENTS_MAX => {
                    rest.push_str(&file.name);
                    taken.push(file);
                }
                LinePiece::Reference(_, source) | LinePiece::Text(source) => {
                    rest.push_str(source);
                    has_more |= !source.trim().is_empty();
                }
            }
        }
        if taken.len() > before && !has_more {
            rest.truncate(start);
        }
    }
    if !taken.is_empty() {
        rest.truncate(rest.trim_end().len());
    }
    (rest, taken)
}

/// Replaces the references to the session's files in a Markdown text by their words, for a platform that shows no files.
pub fn name_file_references(session: &SessionId, text: &str) -> String {
    let mut named = String::with_capacity(text.len());
    for piece in lines_in_pieces(session, text).flatten() {
        named.push_str(match &piece {
            LinePiece::Text(source) => source,
            LinePiece::Reference(file, _) if file.name.is_empty() => UNNAMED,
            LinePiece::Reference(file, _) => &file.name,
        });
    }
    named
}

/// Returns the lines of a text in pieces, which together are the text. A line of a fenced code block is one piece.
fn lines_in_pieces<'a>(session: &SessionId, text: &'a str) -> impl Iterator<Item = Vec<LinePiece<'a>>> {
    let mut open: Option<CodeFence> = None;
    text.split_inclusive('\n').map(move |line| {
        let content = line.trim_end_matches('\n');
        let was_open = open.is_some();
        match open {
            Some(fence) if fence.closing(content).is_some() => open = None,
            Some(_) => {}
            None => open = CodeFence::opening(content),
        }
        if was_open || open.is_some() { vec![LinePiece::Text(line)] } else { pieces_of(session, line) }
    })
}

/// Cuts a line before and after each reference: `[name](url)` or `![name](url)`, without a title.
fn pieces_of<'a>(session: &SessionId, line: &'a str) -> Vec<LinePiece<'a>> {
    let mut pieces = Vec::new();
    // The beginning of what is in no piece yet, and of what was not looked at yet.
    let mut start = 0;
    let mut from = 0;
    while let Some(middle) = line[from..].find("](").map(|at| from + at) {
        let target = middle + 2;
        let Some(end) = line[target..].find(')').map(|at| target + at) else { break };
        from = target;
        let Some(sha256) = parse_file_url(session, &line[target..end]) else { continue };
        let Some(bracket) = line[start..middle].rfind('[').map(|at| start + at) else { continue };
        let inline = line[start..bracket].ends_with('!');
        let name = line[bracket + 1..middle].trim().to_owned();
        let file = FileReference { name, url: file_path(session, &sha256), sha256, inline };
        let begin = bracket - usize::from(inline);
        pieces.push(LinePiece::Text(&line[start..begin]));
        pieces.push(LinePiece::Reference(file, &line[begin..=end]));
        start = end + 1;
        from = start;
    }
    pieces.push(LinePiece::Text(&line[start..]));
    pieces
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
            assert!(taken.iter().all(|file| file.sha256.to_string() == HASH && file.url == at));
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
