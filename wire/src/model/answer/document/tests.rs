//! Documents, cut and split at every byte.
use super::super::super::{AnswerReader, TokenUsage};
use super::*;
use bytes::Bytes;

const CHAT: &str = r#" {"id":"a\"}","choices":[{"index":0,"message":{"content":"]}","usage":1}}],
    "usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7},"error":null} "#;

fn read<'a>(format: CallFormat, pieces: impl IntoIterator<Item = &'a [u8]>) -> AnswerReader {
    let mut reader = AnswerReader::body(format);
    let mut relay = Vec::new();
    let mut all = Vec::new();
    for piece in pieces {
        reader.push(&Bytes::copy_from_slice(piece), &mut relay);
        all.extend_from_slice(piece);
    }
    assert_eq!((relay.concat(), reader.finish()), (all, None));
    reader
}

/// Covers: PR-2, PR-5, PR-6.
#[test]
fn document_is_whole_from_its_last_brace_on() {
    let last_brace = CHAT.len() - 1;
    for at in 0..=CHAT.len() {
        let cut = read(CallFormat::ChatCompletions, [&CHAT.as_bytes()[..at]]);
        let end = if at >= last_brace { AnswerEnd::Whole } else { AnswerEnd::Open };
        assert_eq!(cut.end(), end, "cut at {at}");
        let (first, second) = CHAT.as_bytes().split_at(at);
        let split = read(CallFormat::ChatCompletions, [first, second]);
        let usage = TokenUsage { input: Some(5), output: Some(2), ..TokenUsage::default() };
        assert_eq!((split.usage(), split.end(), split.has_token()), (usage, AnswerEnd::Whole, true), "split at {at}");
        assert_eq!(split.opening(), AnswerOpening::Answer);
    }
}

/// Covers: PR-5, PR-6, PR-14.
#[test]
fn documents_of_each_format_are_read() {
    use AnswerEnd::{Error, Open, Whole};
    use CallFormat::{ChatCompletions, Embeddings, Messages, Responses};
    let cases = [
        (ChatCompletions, r#"{"error":{"message":"x"}}"#, Error, AnswerOpening::Error, None),
        (ChatCompletions, r#"{"object":"error","message":"x"}"#, Error, AnswerOpening::Error, None),
        (ChatCompletions, r#"{"choices":[],"usage":{"prompt_tokens":1}}"#, Whole, AnswerOpening::Answer, Some(1)),
        (ChatCompletions, r#"{"choices":[1],"error":"x"}"#, Error, AnswerOpening::Answer, None),
        (ChatCompletions, "<html>{}</html>", Open, AnswerOpening::Answer, None),
        (ChatCompletions, "\u{feff}{}", Whole, AnswerOpening::Answer, None),
        (ChatCompletions, "[{}]", Whole, AnswerOpening::Answer, None),
        (ChatCompletions, r#"{"id":"c","#, Open, AnswerOpening::Undecided, None),
        (ChatCompletions, r#"{"id":"c","choices":[{"#, Open, AnswerOpening::Answer, None),
        (Responses, r#"{"status":"failed","error":{"code":"x"},"usage":null}"#, Error, AnswerOpening::Error, None),
        (
            Responses,
            r#"{"status":"completed","error":null,"output":[{}],"usage":{"input_tokens":4}}"#,
            Whole,
            AnswerOpening::Answer,
            Some(4),
        ),
        (Messages, r#"{"type":"error","error":{"type":"overloaded_error"}}"#, Error, AnswerOpening::Error, None),
        (
            Messages,
            r#"{"type":"message","content":[{"type":"text"}],"usage":{"input_tokens":4,"cache_read_input_tokens":"6"}}"#,
            Whole,
            AnswerOpening::Answer,
            Some(10),
        ),
        (
            Embeddings,
            r#"{"data":[{"embedding":[0.1,-2e3]}],"usage":{"total_tokens":3}}"#,
            Whole,
            AnswerOpening::Answer,
            Some(3),
        ),
    ];
    for (format, text, end, opening, input) in cases {
        for size in [1, 7, text.len()] {
            let reader = read(format, text.as_bytes().chunks(size));
            assert_eq!((reader.end(), reader.opening(), reader.usage().input), (end, opening, input), "{text}");
            assert!(!reader.is_between_events());
        }
    }
}

/// Covers: PR-6, PR-14.
#[test]
fn usage_after_many_megabytes_is_read() {
    let vectors = r#"{"embedding":"AAAA"},"#.repeat(200_000);
    let text = format!(r#"{{"data":[{vectors}{{}}],"usage":{{"prompt_tokens":9}}}}"#);
    let mut reader = DocumentReader::new(CallFormat::Embeddings);
    reader.push(text.as_bytes());
    assert_eq!((reader.end(), reader.counts.totals(CallFormat::Embeddings).input), (AnswerEnd::Whole, Some(9)));
    assert!(reader.name.capacity() + reader.value.capacity() < 1024);
}

#[test]
fn long_document_without_telling_members_is_an_answer() {
    let mut reader = DocumentReader::new(CallFormat::ChatCompletions);
    reader.push(br#"{"id":""#);
    reader.push(&vec![b'x'; ANSWER_OPENING_BYTES_MAX - 8]);
    assert_eq!(reader.opening, AnswerOpening::Undecided);
    reader.push(b"x");
    assert_eq!((reader.opening, reader.end()), (AnswerOpening::Answer, AnswerEnd::Open));
    let long_error = format!(r#"{{"error":"{}"}}"#, "x".repeat(ANSWER_COPY_BYTES_MAX));
    assert_eq!(read(CallFormat::ChatCompletions, [long_error.as_bytes()]).end(), AnswerEnd::Error);
}
