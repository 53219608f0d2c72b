//! Checks that the answer of a chat completion is complete. Every call is checked, so the common checks are cheap.
use serde::Deserialize;
use std::borrow::Cow;

const DATA: &[u8] = b"data: ";
const DONE: &[u8] = b"[DONE]";

#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(borrow)]
    choices: Vec<Choice<'a>>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(borrow, alias = "message", default)]
    delta: Message<'a>,
}

#[derive(Default, Deserialize)]
struct Message<'a> {
    #[serde(borrow, default)]
    content: Option<Cow<'a, str>>,
}

/// Checks that a stream has an event for each piece of text and ends with `[DONE]`.
pub fn check_stream(bytes: &[u8], chunks: u32) -> Result<(), &'static str> {
    let mut count = 0;
    let mut last = &b""[..];
    for event in events(bytes) {
        count += 1;
        last = event;
    }
    if last != DONE {
        return Err("a stream has no [DONE] at its end");
    }
    if count <= u64::from(chunks) {
        return Err("a stream has too few events");
    }
    Ok(())
}

/// Returns the text of all events of a stream.
pub fn streamed_text(bytes: &[u8]) -> Result<String, &'static str> {
    let mut text = String::new();
    for event in events(bytes).filter(|event| *event != DONE) {
        let answer: Answer<'_> = serde_json::from_slice(event).map_err(|_| "an event is not an answer in JSON")?;
        text.extend(answer.choices.iter().filter_map(|choice| choice.delta.content.as_deref()));
    }
    Ok(text)
}

/// Checks that a body is one JSON object with this text.
pub fn check_whole(bytes: &[u8], text: &str) -> Result<(), &'static str> {
    let answer: Answer<'_> = serde_json::from_slice(bytes).map_err(|_| "a body is not an answer in JSON")?;
    let content = answer.choices.first().and_then(|choice| choice.delta.content.as_deref());
    if content == Some(text) { Ok(()) } else { Err("a body has another text") }
}

/// Returns the data of each event, one line each.
fn events(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.split(|byte| *byte == b'\n').filter_map(|line| line.strip_prefix(DATA)).map(<[u8]>::trim_ascii_end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incomplete_answers_are_found() {
        let event = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
        let whole = format!("{event}{event}data: [DONE]\n\n");
        assert_eq!(check_stream(whole.as_bytes(), 2), Ok(()));
        assert_eq!(streamed_text(whole.as_bytes()), Ok("aa".to_owned()));
        for (bad, chunks) in [(&whole[..], 3), (&event.repeat(3)[..], 2), ("", 1), ("data: [DONE]\n\n", 1)] {
            assert!(check_stream(bad.as_bytes(), chunks).is_err(), "{bad}");
        }
        assert!(streamed_text(b"data: {\"error\":{}}\n\n").is_err());
        let body = "{\"choices\":[{\"message\":{\"content\":\"a\\n\"}}]}";
        assert_eq!(check_whole(body.as_bytes(), "a\n"), Ok(()));
        assert!(check_whole(body.as_bytes(), "a").is_err() && check_whole(&body.as_bytes()[..20], "a\n").is_err());
    }
}
