//! Streams of chat completions, read as text at every split.
use super::*;

/// The result of one stream: pieces joined by kind, in their order, and the end.
#[derive(Debug, PartialEq, Eq)]
struct Read {
    pieces: Vec<ChatPiece>,
    end: ChatEnd,
    usage: TokenUsage,
}

fn read<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Read {
    let mut reader = ChatReader::default();
    let mut pieces = Vec::new();
    for part in parts {
        reader.push(part, &mut pieces);
    }
    reader.finish(&mut pieces);
    let mut joined: Vec<ChatPiece> = Vec::new();
    for piece in pieces {
        match (joined.last_mut(), piece) {
            (Some(ChatPiece::Text(text)), ChatPiece::Text(more))
            | (Some(ChatPiece::Reasoning(text)), ChatPiece::Reasoning(more)) => text.push_str(&more),
            (_, piece) => joined.push(piece),
        }
    }
    Read { pieces: joined, end: reader.end(), usage: reader.usage() }
}

fn text(text: &str) -> ChatPiece {
    ChatPiece::Text(text.to_owned())
}

fn reasoning(text: &str) -> ChatPiece {
    ChatPiece::Reasoning(text.to_owned())
}

const STREAM: &str = concat!(
    ": OPENROUTER PROCESSING\n\n",
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\",\"reasoning\":null}}]}\n\n",
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"reasoning_content\":\"Hm\",\"reasoning\":\"Hm\"}}]}\n\n",
    "data: {\"choices\":[{\"delta\":{\"reasoning\":\", so\"}}]}\r\n\r\n",
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Gr\u{fc}\\u00df \\ud83d\"}},\
     {\"index\":1,\"delta\":{\"content\":\"other\"}}]}\n\n",
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\\ude00!\"},\"finish_reason\":null}]}\n\n",
    "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n",
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3}}\n\n",
    "data: [DONE]\n\n",
);

/// Covers: PR-4, PR-6.
#[test]
fn stream_is_read_alike_at_every_split() {
    let whole = read([STREAM.as_bytes()]);
    assert_eq!(whole.pieces, [reasoning("Hm, so"), text("Gr\u{fc}\u{df} \u{1f600}!")]);
    assert_eq!(whole.end, ChatEnd::Finished(ChatFinish::Stop));
    assert_eq!((whole.usage.input, whole.usage.output), (Some(7), Some(3)));
    for at in 0..=STREAM.len() {
        let (first, second) = STREAM.as_bytes().split_at(at);
        assert_eq!(read([first, second]), whole, "split at {at}");
    }
    assert_eq!(read(STREAM.as_bytes().chunks(1)), whole);
}

/// Covers: PR-5.
#[test]
fn stream_without_its_end_is_open_at_every_cut() {
    let first_end = STREAM.find("data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish").expect("a finish reason");
    let finish = first_end + "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}".len();
    for at in 0..STREAM.len() {
        let cut = read([&STREAM.as_bytes()[..at]]);
        let expected = if at < finish { ChatEnd::Open } else { ChatEnd::Finished(ChatFinish::Stop) };
        assert_eq!(cut.end, expected, "cut at {at}");
    }
}

#[test]
fn finish_reason_is_that_of_the_first_choice() {
    for (reason, expected) in [
        ("stop", ChatFinish::Stop),
        ("length", ChatFinish::Length),
        ("content_filter", ChatFinish::ContentFilter),
        ("tool_calls", ChatFinish::ToolCalls),
        ("function_call", ChatFinish::ToolCalls),
        ("eos", ChatFinish::Stop),
    ] {
        let stream = format!(
            "data: {{\"choices\":[{{\"index\":0,\"delta\":{{}},\"finish_reason\":\"{reason}\"}},\
             {{\"index\":1,\"finish_reason\":\"other\"}}]}}\n\n"
        );
        assert_eq!(read([stream.as_bytes()]).end, ChatEnd::Finished(expected), "{reason}");
    }
    assert_eq!(read(["data: [DONE]\n\n".as_bytes()]).end, ChatEnd::Finished(ChatFinish::Stop));
}

#[test]
fn refusal_is_text_and_tool_calls_are_counted() {
    let stream = concat!(
        "data: {\"choices\":[{\"delta\":{\"refusal\":\"No.\",\"content\":null,\"tool_calls\":[]}}]}\n\n",
        "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0}]}}]}\n\n",
    );
    let mut reader = ChatReader::default();
    let mut pieces = Vec::new();
    reader.push(stream.as_bytes(), &mut pieces);
    assert_eq!((pieces, reader.tool_calls()), (vec![text("No.")], 1));
}

/// Covers: PR-5.
#[test]
fn error_in_a_stream_is_kept_with_its_message() {
    let long = "x".repeat(2 * MODEL_ERROR_TEXT_BYTES_MAX);
    for (event, message) in [
        ("data: {\"error\":{\"message\":\"no \\u00e9\",\"code\":5}}", "no \u{e9}"),
        ("data: {\"error\":\"gone\"}", "gone"),
        ("data: {\"error\":{\"code\":5}}", "{\"code\":5}"),
        ("event: error\ndata: {\"message\":\"stop\"}", "stop"),
        ("event: error\ndata: overloaded", "overloaded"),
        ("data: {\"object\":\"error\",\"message\":\"bad\"}", "bad"),
        ("data: {\"type\":\"error\"}", "unknown error"),
        ("data: {\"choices\":[{\"finish_reason\":\"error\"}]}", "the model ended its answer with an error"),
        ("data: nonsense", "an event of the answer is no JSON object"),
        (&*format!("data: {{\"error\":\"{long}\"}}"), &long[..MODEL_ERROR_TEXT_BYTES_MAX]),
    ] {
        let stream = format!("{event}\n\ndata: {{\"choices\":[{{\"delta\":{{\"content\":\"late\"}}}}]}}\n\n");
        let end = read([stream.as_bytes()]);
        assert_eq!(end.end, ChatEnd::Error(message.to_owned()), "{event}");
        assert_eq!(end.pieces, [], "{event}");
    }
    let unset = "data: {\"error\":null,\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
    assert_eq!(read([unset.as_bytes()]).pieces, [text("a")]);
}

#[test]
fn event_over_its_limit_is_an_error() {
    let long = format!("data: \"{}\n\ndata: [DONE]\n\n", "x".repeat(MODEL_EVENT_BYTES_MAX));
    assert!(matches!(read([long.as_bytes()]).end, ChatEnd::Error(_)));
}

#[test]
fn unpaired_surrogates_become_replacement_characters() {
    let of = |contents: &[&str]| {
        let stream: String = contents
            .iter()
            .map(|content| format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{content}\"}}}}]}}\n\n"))
            .collect();
        read([stream.as_bytes()]).pieces
    };
    assert_eq!(of(&["a\\ud83d", "b"]), [text("a\u{fffd}b")]);
    assert_eq!(of(&["a\\ude00b"]), [text("a\u{fffd}b")]);
    assert_eq!(of(&["\\ud83d", "", "\\ude00"]), [text("\u{1f600}")]);
    assert_eq!(of(&["a\\ud83d"]), [text("a\u{fffd}")]);
    assert_eq!(of(&["\\ud83d\\ud83d\\ude00"]), [text("\u{fffd}\u{1f600}")]);
}
