//! Scripted streams of upstreams (`model_streams/*.sse`), each cut and split at every byte: what is relayed, and what is
//! read beside the relay.
use bytes::Bytes;
use turnway_core::rng::Rng;
use turnway_wire::model::CallFormat::{self, ChatCompletions, Embeddings, Messages, Responses};
use turnway_wire::model::{AnswerEnd, AnswerOpening, AnswerReader, TokenUsage};

/// Prefix of a keepalive that a gateway puts between two events.
const KEEPALIVE: &[u8] = b": keepalive\n";

/// A stream and its expected reading.
struct StreamCase {
    name: &'static str,
    bytes: &'static [u8],
    format: CallFormat,
    hides_usage: bool,
    /// Beginning and end of the event that is removed.
    hidden: Option<(&'static str, &'static str)>,
    /// The last text that must have arrived for [`AnswerEnd::Whole`].
    whole_after: Option<&'static str>,
    end: AnswerEnd,
    opening: AnswerOpening,
    has_token: bool,
    /// Input, cached input, cache write, output and reasoning; -1 is unknown.
    usage: [i64; 5],
}

macro_rules! stream_case {
    ($name:literal, $format:expr) => {
        StreamCase::new($name, include_bytes!(concat!("model_streams/", $name, ".sse")), $format)
    };
}

impl StreamCase {
    fn new(name: &'static str, bytes: &'static [u8], format: CallFormat) -> Self {
        Self {
            name,
            bytes,
            format,
            hides_usage: false,
            hidden: None,
            whole_after: None,
            end: AnswerEnd::Open,
            opening: AnswerOpening::Answer,
            has_token: true,
            usage: [-1; 5],
        }
    }

    fn hides(self) -> Self {
        Self { hides_usage: true, ..self }
    }

    fn hidden(self, start: &'static str, end: &'static str) -> Self {
        Self { hides_usage: true, hidden: Some((start, end)), ..self }
    }

    fn whole(self, after: &'static str) -> Self {
        Self { whole_after: Some(after), end: AnswerEnd::Whole, ..self }
    }

    fn fails(self) -> Self {
        Self { end: AnswerEnd::Error, ..self }
    }

    fn fails_first(self) -> Self {
        Self { end: AnswerEnd::Error, opening: AnswerOpening::Error, has_token: false, ..self }
    }

    fn no_token(self) -> Self {
        Self { has_token: false, ..self }
    }

    fn usage(self, usage: [i64; 5]) -> Self {
        Self { usage, ..self }
    }

    fn reader(&self) -> AnswerReader {
        AnswerReader::stream(self.format, self.hides_usage)
    }

    fn find(&self, text: &str, from: usize) -> usize {
        let found = self.bytes[from..].windows(text.len()).position(|window| window == text.as_bytes());
        from + found.unwrap_or_else(|| panic!("{}: no {text:?}", self.name))
    }

    /// Returns the bytes that are relayed of the first `length` ones.
    fn relayed(&self, length: usize) -> Vec<u8> {
        let Some((start, end)) = self.hidden else { return self.bytes[..length].to_vec() };
        let from = self.find(start, 0);
        let to = self.find(end, from) + end.len();
        // The event ends with the CR of its blank line; the LF of that line is removed, too.
        let known = if end.ends_with("\r\n") { to - 1 } else { to };
        if length < known {
            return self.bytes[..length].to_vec();
        }
        [&self.bytes[..from], &self.bytes[to.min(length)..length]].concat()
    }
}

/// Returns every scripted stream.
fn cases() -> Vec<StreamCase> {
    [chat_cases(), chat_error_cases(), chat_form_cases(), responses_cases(), messages_cases()]
        .into_iter()
        .flatten()
        .collect()
}

fn chat_cases() -> Vec<StreamCase> {
    let usage = [11, 4, -1, 7, 2];
    let start = r#"data: {"id":"c1","object":"chat.completion.chunk","choices":[],"usage""#;
    let stop = r#""finish_reason":"stop"}],"usage":null}"#;
    vec![
        stream_case!("chat_asked_usage", ChatCompletions).whole(stop).usage(usage),
        stream_case!("chat_hidden_usage", ChatCompletions).hidden(start, "\n\n").whole(stop).usage(usage),
        stream_case!("chat_hidden_usage_crlf", ChatCompletions).hidden(start, "\r\n\r\n").whole(stop).usage(usage),
        stream_case!("chat_hidden_usage_cr", ChatCompletions).hidden(start, "\r\r").whole(stop).usage(usage),
        stream_case!("chat_hidden_usage_first", ChatCompletions)
            .hidden("\u{feff}data", "\n\n")
            .whole(r#""stop"}]}"#)
            .usage(usage),
        stream_case!("chat_hidden_usage_without_choices", ChatCompletions)
            .hidden(r#"data: {"id":"c1","object":"chat.completion.chunk","usage""#, "\n\n")
            .whole(r#""length"}]}"#)
            .usage(usage),
        stream_case!("chat_hidden_usage_with_comment", ChatCompletions)
            .hidden("id: 7", "\n\n")
            .whole(r#""stop"}]}"#)
            .usage(usage),
        stream_case!("chat_unfinished_usage", ChatCompletions).hides().whole(r#""stop"}]}"#).usage(usage),
        stream_case!("chat_usage_beside_choices", ChatCompletions)
            .hides()
            .whole(r#""reasoning_tokens":2}}}"#)
            .usage(usage),
        stream_case!("chat_usage_in_every_chunk", ChatCompletions)
            .hides()
            .whole(r#""completion_tokens":4,"total_tokens":7}}"#)
            .usage([3, -1, -1, 4, -1]),
        stream_case!("chat_groq", ChatCompletions).hides().whole(r#""total_tokens":11}}}"#).usage([5, -1, -1, 6, -1]),
        stream_case!("chat_azure", ChatCompletions).hidden(start, "\n\n").whole(r#""content_filter"}]}"#).usage(usage),
        stream_case!("chat_deepseek", ChatCompletions)
            .hides()
            .whole(r#""reasoning_tokens":3}}}"#)
            .usage([9, 6, -1, 5, 3]),
        stream_case!("chat_reasoning_apart", ChatCompletions)
            .hidden(start, "\n\n")
            .whole(r#""stop"}]}"#)
            .usage([10, -1, -1, 105, 100]),
        stream_case!("chat_tool_calls", ChatCompletions).whole(r#""tool_calls"}]}"#),
        stream_case!("chat_refusal", ChatCompletions).whole(r#""stop"}]}"#),
        stream_case!("chat_two_choices", ChatCompletions).whole(r#"{"index":1,"delta":{},"finish_reason":"stop"}]}"#),
        stream_case!("embeddings_events", Embeddings).no_token().whole("[DONE]").usage([6, -1, -1, -1, -1]),
    ]
}

fn chat_error_cases() -> Vec<StreamCase> {
    vec![
        stream_case!("chat_truncated", ChatCompletions),
        stream_case!("chat_openrouter_error", ChatCompletions).hides().fails(),
        stream_case!("chat_error_first", ChatCompletions).hides().fails_first(),
        stream_case!("chat_error_event_first", ChatCompletions).fails_first(),
        stream_case!("chat_error_later", ChatCompletions).fails(),
        stream_case!("chat_error_after_done", ChatCompletions).whole("[DONE]"),
        stream_case!("chat_not_json", ChatCompletions).hides().whole(r#""stop"}]}"#),
        StreamCase { opening: AnswerOpening::Undecided, ..stream_case!("chat_comments_only", ChatCompletions) }
            .no_token(),
    ]
}

fn chat_form_cases() -> Vec<StreamCase> {
    vec![
        stream_case!("chat_field_forms", ChatCompletions).hides().whole(r#""stop"}]}"#),
        stream_case!("chat_several_data_lines", ChatCompletions)
            .hides()
            .whole(r#""reasoning_tokens":2}}}"#)
            .usage([11, 4, -1, 7, 2]),
        stream_case!("chat_mixed_line_ends", ChatCompletions)
            .hidden(r#"data: {"id":"c1","object":"chat.completion.chunk","choices":[],"usage""#, "\n\r\n")
            .whole("[DONE]")
            .usage([11, 4, -1, 7, 2]),
        stream_case!("chat_without_last_blank", ChatCompletions).hides().whole("[DONE]"),
        stream_case!("chat_odd_numbers", ChatCompletions)
            .whole(r#""completion_tokens_details":"none"}}"#)
            .usage([12, -1, -1, 3, -1]),
    ]
}

fn responses_cases() -> Vec<StreamCase> {
    let usage = [20, 8, -1, 9, 5];
    let end = r#""total_tokens":29}}}"#;
    vec![
        stream_case!("responses_completed", Responses).whole(end).usage(usage),
        stream_case!("responses_without_event_lines", Responses)
            .whole(r#""incomplete_details":{"reason":"max_output_tokens"}}}"#)
            .usage(usage),
        stream_case!("responses_types_in_event_lines", Responses).whole(end).usage(usage),
        stream_case!("responses_failed", Responses).fails().no_token().usage(usage),
        stream_case!("responses_error", Responses).fails().no_token(),
        stream_case!("responses_error_first", Responses).fails_first(),
        stream_case!("responses_cancelled", Responses)
            .whole(r#""status":"cancelled","error":null,"output":[],"usage":null}}"#),
        stream_case!("responses_truncated", Responses),
    ]
}

fn messages_cases() -> Vec<StreamCase> {
    let end = r#"data: {"type":"message_stop"}"#;
    vec![
        stream_case!("messages_cached", Messages).whole(end).usage([123, 100, 20, 15, -1]),
        stream_case!("messages_cached_crlf", Messages).whole(end).usage([123, 100, 20, 15, -1]),
        stream_case!("messages_tool_and_thinking", Messages).whole(end).usage([124, 100, 20, 30, -1]),
        stream_case!("messages_error_first", Messages).fails_first(),
        stream_case!("messages_error_later", Messages).fails().usage([123, 100, 20, 1, -1]),
        stream_case!("messages_truncated", Messages).no_token().usage([123, 100, 20, 1, -1]),
    ]
}

/// Everything that a reader tells of a stream.
#[derive(Debug, PartialEq)]
struct Reading {
    relay: Vec<u8>,
    end: AnswerEnd,
    opening: AnswerOpening,
    has_token: bool,
    usage: TokenUsage,
}

/// Reads pieces to the end of the stream.
fn read<'a>(mut reader: AnswerReader, pieces: impl IntoIterator<Item = &'a [u8]>) -> Reading {
    let mut relay = Vec::new();
    for piece in pieces {
        reader.push(&Bytes::copy_from_slice(piece), &mut relay);
    }
    relay.extend(reader.finish());
    assert_eq!(reader.finish(), None, "nothing is returned twice");
    Reading {
        relay: relay.concat(),
        end: reader.end(),
        opening: reader.opening(),
        has_token: reader.has_token(),
        usage: reader.usage(),
    }
}

/// Covers: PR-2, PR-5, PR-6, PR-14.
#[test]
fn whole_streams_are_read_as_expected() {
    assert!(cases().len() >= 24);
    for case in cases() {
        let known = |count: i64| u64::try_from(count).ok();
        let [input, cached_input, cache_write, output, reasoning] = case.usage.map(known);
        let expected = Reading {
            relay: case.relayed(case.bytes.len()),
            end: case.end,
            opening: case.opening,
            has_token: case.has_token,
            usage: TokenUsage { input, cached_input, cache_write, output, reasoning },
        };
        assert_eq!(read(case.reader(), [case.bytes]), expected, "{}", case.name);
    }
}

/// Covers: PR-2, PR-14.
#[test]
fn streams_split_anywhere_are_read_as_whole_ones() {
    for case in cases() {
        let whole = read(case.reader(), [case.bytes]);
        for at in 0..=case.bytes.len() {
            let (first, second) = case.bytes.split_at(at);
            assert_eq!(read(case.reader(), [first, second]), whole, "{} at {at}", case.name);
        }
        assert_eq!(read(case.reader(), case.bytes.chunks(1)), whole, "{} byte by byte", case.name);
    }
}

/// Covers: PR-2, PR-5, PR-14.
#[test]
fn streams_cut_anywhere_are_relayed_and_whole_from_one_byte_on() {
    for case in cases() {
        let whole_from = case.whole_after.map(|text| case.find(text, 0) + text.len());
        for length in 0..=case.bytes.len() {
            let cut = read(case.reader(), [&case.bytes[..length]]);
            let name = format!("{} cut at {length}", case.name);
            assert_eq!(cut.relay, case.relayed(length), "{name}");
            assert_eq!(cut.end == AnswerEnd::Whole, whole_from.is_some_and(|from| length >= from), "{name}");
        }
    }
}

/// Covers: PR-2.
#[test]
fn streams_are_relayed_as_slices_of_their_pieces() {
    for case in cases().into_iter().filter(|case| case.hidden.is_none()) {
        for hides_usage in [false, case.hides_usage] {
            let bytes = Bytes::from_static(case.bytes);
            let mut relay = Vec::new();
            AnswerReader::stream(case.format, hides_usage).push(&bytes, &mut relay);
            let mut at = bytes.as_ptr();
            for piece in &relay {
                assert_eq!(piece.as_ptr(), at, "{}", case.name);
                at = at.wrapping_add(piece.len());
            }
            let relayed: usize = relay.iter().map(Bytes::len).sum();
            assert!(relayed == bytes.len() || hides_usage, "{}", case.name);
        }
    }
}

/// Parses a stream in the simplest way: as (name, data), for events with data.
fn events(bytes: &[u8]) -> Vec<(String, String)> {
    let text = String::from_utf8_lossy(bytes).replace("\r\n", "\n").replace('\r', "\n");
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let mut found = Vec::new();
    let mut name = String::new();
    let mut data: Vec<&str> = Vec::new();
    for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "data" => data.push(value),
            "event" => value.clone_into(&mut name),
            _ if line.is_empty() => {
                let name = std::mem::take(&mut name);
                if !data.is_empty() {
                    found.push((name, std::mem::take(&mut data).join("\n")));
                }
            }
            _ => {}
        }
    }
    found
}

/// Covers: PR-4.
#[test]
fn keepalive_between_events_changes_no_event() {
    for case in cases() {
        let expected = events(&case.relayed(case.bytes.len()));
        let mut places = 0;
        for at in 0..=case.bytes.len() {
            let mut reader = case.reader();
            let mut relay = Vec::new();
            reader.push(&Bytes::from_static(&case.bytes[..at]), &mut relay);
            if !reader.is_between_events() || (at == 0 && case.bytes.starts_with("\u{feff}".as_bytes())) {
                continue;
            }
            places += 1;
            relay.push(Bytes::from_static(KEEPALIVE));
            reader.push(&Bytes::from_static(&case.bytes[at..]), &mut relay);
            relay.extend(reader.finish());
            assert_eq!(events(&relay.concat()), expected, "{} at {at}", case.name);
        }
        assert!(places > 1 || case.name == "chat_several_data_lines", "{}", case.name);
    }
}

/// Covers: PR-4.
#[test]
fn place_between_events_is_found_after_each_line_end() {
    let between = |bytes: &'static str, hides_usage| {
        let mut reader = AnswerReader::stream(ChatCompletions, hides_usage);
        reader.push(&Bytes::from_static(bytes.as_bytes()), &mut Vec::new());
        reader.is_between_events()
    };
    for bytes in ["", "data: {}\n\n", "data: {}\n\n\n", ": a\n", "data: {}\r\n\r\n", "\r\rdata: {}\r\r"] {
        assert!(between(bytes, false) && between(bytes, true), "{bytes:?}");
    }
    for bytes in ["d", "data: {}", "data: {}\n", "data: {}\r\n", "data: {}\n\nid: 1\n", ": a"] {
        assert!(!between(bytes, false) && between(bytes, true), "{bytes:?}");
    }
    // LF may follow.
    assert!(!between("data: {}\r\n\r", false));
}

/// Covers: PR-2.
#[test]
fn event_longer_than_the_limit_is_relayed_and_not_read() {
    use turnway_wire::model::limits::MODEL_EVENT_BYTES_MAX;
    let usage = r#"{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}"#;
    let length_of_rest = format!("data: {usage}\n: \n").len();
    for (excess, is_read) in [(0, true), (1, false)] {
        let padding = "x".repeat(MODEL_EVENT_BYTES_MAX - length_of_rest + excess);
        let stream = format!("data: {usage}\n: {padding}\n\ndata: [DONE]\n\n");
        for size in [stream.len(), 4096, 1000] {
            let reader = AnswerReader::stream(ChatCompletions, true);
            let reading = read(reader, stream.as_bytes().chunks(size));
            assert_eq!(reading.usage.input.is_some(), is_read, "{excess} {size}");
            let relayed = if is_read { "data: [DONE]\n\n" } else { &stream };
            assert!(reading.relay == relayed.as_bytes(), "{excess} {size}");
            assert_eq!(reading.end, AnswerEnd::Whole);
        }
    }
}

/// Reads random mixtures of lines in random pieces.
///
/// Covers: PR-2.
#[test]
fn random_streams_do_not_depend_on_their_pieces() {
    let lines: [&[u8]; 12] = [
        b"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1}}",
        b"data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}",
        b"data: {\"error\":1",
        b"data: }",
        b"data:[DONE]",
        b"event: error",
        b"\xef\xbb\xbfdata: {\"choices\":[{\"finish_reason\":\"stop\"}]}",
        b"data: {\"a\":\"\xff\",\"usage\":{\"completion_tokens\":2}}",
        b": comment",
        b"id",
        b"",
        b"",
    ];
    let ends: [&[u8]; 4] = [b"\n", b"\r", b"\r\n", b""];
    let mut rng = Rng::from_number(5);
    let mut below = |bound: usize| rng.below(bound as u64) as usize;
    for round in 0..2000 {
        let end = ends[below(ends.len())];
        let mut stream = Vec::new();
        for _ in 0..below(12) {
            stream.extend_from_slice(lines[below(lines.len())]);
            stream.extend_from_slice(if below(4) == 0 { ends[below(3)] } else { end });
        }
        let mut pieces = Vec::new();
        let mut rest = stream.as_slice();
        while !rest.is_empty() {
            let (piece, more) = rest.split_at(1 + below(rest.len().min(40)));
            pieces.push(piece);
            rest = more;
        }
        for format in CallFormat::ALL {
            let shown = read(AnswerReader::stream(format, false), pieces.iter().copied());
            assert_eq!(shown.relay, stream, "round {round}");
            assert_eq!(shown, read(AnswerReader::stream(format, false), [stream.as_slice()]), "round {round}");
            let hidden = read(AnswerReader::stream(format, true), pieces);
            assert_eq!(hidden, read(AnswerReader::stream(format, true), [stream.as_slice()]), "round {round}");
            assert_eq!(Reading { relay: stream.clone(), ..hidden }, shown, "round {round}");
            pieces = stream.chunks(1).collect();
        }
    }
}
