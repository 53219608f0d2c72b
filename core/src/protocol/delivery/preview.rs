//! The text of a preview: the beginning of an answer that is still being written, as a whole Markdown text within a limit.
//! Called when the answer so far is shown to a conversation.
use super::split::{CodeFence, LIMIT_MIN, TextUnit, lines_of, run_length, split_text, starts_paragraph};

/// The beginning of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreviewText {
    /// Within the limit; empty if the answer has nothing to show yet.
    pub text: String,
    /// The answer is longer, so a preview of more of it looks the same.
    pub is_cut: bool,
}

/// Returns the beginning of an answer of at most `max` units, with open fenced code blocks and code spans closed. A `max`
/// below 64 counts as 64. Backticks at the end, of which nobody knows yet what they begin, are left out.
pub fn preview_text(answer: &str, max: usize, unit: TextUnit) -> PreviewText {
    let mut parts = split_text(answer, max, unit).into_iter();
    let Some(first) = parts.next() else { return PreviewText { text: String::new(), is_cut: false } };
    let is_cut = parts.next().is_some();
    let fits = |text: &String| unit.length(text) <= max.max(LIMIT_MIN);
    let text = close_open_code(&first);
    if fits(&text) {
        return PreviewText { text, is_cut };
    }
    // The marks that close the code find no room: the part is cut once more. A very low limit leaves the code open.
    let shorter = split_text(&first, max / 2, unit).into_iter().next().map(|part| close_open_code(&part));
    PreviewText { text: shorter.filter(fits).unwrap_or(first), is_cut: true }
}

/// Closes the fenced code block or the code span that a text leaves open.
fn close_open_code(text: &str) -> String {
    let mut open: Option<CodeFence> = None;
    let mut paragraph = 0;
    for line in lines_of(text) {
        let content = &text[line.clone()];
        match open {
            Some(fence) if fence.closing(content).is_some() => (open, paragraph) = (None, line.end),
            Some(_) => {}
            None => {
                open = CodeFence::opening(content);
                if starts_paragraph(content) {
                    paragraph = line.start;
                }
            }
        }
    }
    let mut closed = text.to_owned();
    if let Some(fence) = open {
        closed.push('\n');
        fence.push_to(&mut closed);
    } else if let Some((start, length)) = open_span(text, paragraph) {
        if start + length == text.len() {
            closed.truncate(text[..start].trim_end().len());
        } else {
            // A backtick before the closing ones would be one of them.
            let is_run = closed.ends_with('`');
            closed.push_str(if is_run { " " } else { "" });
            closed.extend(std::iter::repeat_n('`', length));
        }
    }
    closed
}

/// Returns the first run of backticks after a position that no run of its length closes: its start and length.
fn open_span(text: &str, from: usize) -> Option<(usize, usize)> {
    let mut at = from;
    loop {
        let start = at + text[at..].find('`')?;
        let is_escaped = text[from..start].bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 1;
        // An escaped backtick is text; those after it are a run.
        let start = start + usize::from(is_escaped);
        let length = run_length(text, start);
        if !text[start..].starts_with('`') {
            at = start;
            continue;
        }
        match closing_run(text, start + length, length) {
            Some(end) => at = end,
            None => return Some((start, length)),
        }
    }
}

/// Returns the end of the first run of exactly this length after a position.
fn closing_run(text: &str, from: usize, length: usize) -> Option<usize> {
    let mut at = from;
    loop {
        let start = at + text[at..].find('`')?;
        let found = run_length(text, start);
        at = start + found;
        if found == length {
            return Some(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    fn shown(answer: &str) -> String {
        preview_text(answer, 2_000, TextUnit::Utf16).text
    }

    /// Covers: BD-T4.
    #[test]
    fn open_code_is_closed() {
        let cases = [
            ("plain", "plain"),
            ("call `foo", "call `foo`"),
            ("call ``a ` b", "call ``a ` b``"),
            ("call ``a `", "call ``a ` ``"),
            ("call `", "call"),
            ("a `b` c", "a `b` c"),
            ("escaped \\` and `code", "escaped \\` and `code`"),
            ("```rust\nfn main", "```rust\nfn main\n```"),
            ("  ~~~~\ncode\n~~~", "  ~~~~\ncode\n~~~\n  ~~~~"),
            ("```\ncode\n```\nafter `x", "```\ncode\n```\nafter `x`"),
            ("an open ` tick\n\nnext paragraph", "an open ` tick\n\nnext paragraph"),
            ("``", ""),
            ("  \n ", ""),
        ];
        for (answer, expected) in cases {
            assert_eq!(shown(answer), expected, "{answer:?}");
        }
    }

    /// Covers: BD-T4.
    #[test]
    fn long_answer_is_cut_and_a_longer_one_looks_alike() {
        let answer = "word ".repeat(100);
        let first = preview_text(&answer, 100, TextUnit::Chars);
        assert!(first.is_cut && TextUnit::Chars.length(&first.text) <= 100, "{first:?}");
        let more = preview_text(&answer.repeat(2), 100, TextUnit::Chars);
        assert_eq!(first, more);
        assert!(!preview_text("short", 100, TextUnit::Chars).is_cut);
    }

    /// Covers: BD-T4.
    #[test]
    fn preview_of_any_text_is_within_the_limit_and_closed() {
        let pieces = ["`", "``", "```", "~~~", "\n", "\n\n", " ", "word", "語", "\\", "- ", "😀", "```rust\n", "    "];
        let mut rng = Rng::from_seed([5; 32]);
        for round in 0..3_000 {
            let count = rng.below(60);
            let answer: String =
                (0..count).map(|_| pieces[usize::try_from(rng.below(pieces.len() as u64)).expect("small")]).collect();
            let max = usize::try_from(64 + rng.below(60)).expect("small");
            for unit in TextUnit::ALL {
                let preview = preview_text(&answer, max, unit);
                assert!(unit.length(&preview.text) <= max, "{round} {unit:?} {max}: {answer:?} -> {preview:?}");
            }
            let healed = shown(&answer);
            // Without the backticks at its end, a text may end with an earlier paragraph, whose backticks are text.
            if healed.len() >= answer.trim_end().len() {
                assert_eq!(close_open_code(&healed), healed, "{round}: {answer:?}");
            }
        }
    }
}
