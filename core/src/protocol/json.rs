//! JSON that others made and the gateway only carries.
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt;
use std::io::{self, Write};

/// A JSON value that is passed on as it came. Prints as its kind only (S-38).
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Json(pub Value);

impl fmt::Debug for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.0 {
            Value::Null => "<null>",
            Value::Bool(_) => "<bool>",
            Value::Number(_) => "<number>",
            Value::String(_) => "<string>",
            Value::Array(_) => "<array>",
            Value::Object(_) => "<object>",
        })
    }
}

/// How many bytes something takes as JSON; nothing is written anywhere.
pub fn json_bytes(value: &impl Serialize) -> usize {
    let mut count = Count(0);
    // Counting cannot fail, and what has string keys and finite numbers always serialises.
    match serde_json::to_writer(&mut count, value) {
        Ok(()) => count.0,
        Err(_) => usize::MAX,
    }
}

/// How many bytes of a text, from its beginning, take at most so many as JSON. No code point is split.
pub fn text_within(text: &str, json_bytes_max: usize) -> usize {
    let mut room = json_bytes_max;
    for (at, c) in text.char_indices() {
        let takes = match c {
            '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
            '\0'..='\u{1f}' => 6,
            c => c.len_utf8(),
        };
        match room.checked_sub(takes) {
            Some(left) => room = left,
            None => return at,
        }
    }
    text.len()
}

struct Count(usize);

impl Write for Count {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever number somebody brings along is the same number however often it is written down and read again.
    #[test]
    fn a_number_stays_what_it_was() {
        for text in
            ["17153553733333553733333363333793333333", "1.0715086071862673e301", "-0", "0.1", "5e-324"]
        {
            let read: Json = serde_json::from_str(text).expect("a number");
            let written = serde_json::to_string(&read).expect("a number");
            assert_eq!(serde_json::from_str::<Json>(&written).expect("a number"), read, "{text}, {written}");
        }
        assert!(serde_json::from_str::<Json>("1e400").is_err(), "what is too large for a number is none");
    }

    #[test]
    fn bytes_are_counted_as_they_would_be_written() {
        let every: String = (0..=0x2030u32).filter_map(char::from_u32).collect();
        let texts = ["", "a\"b\\c\nd\u{1}\u{7f}é🦀", every.as_str()];
        for text in texts {
            let written = serde_json::to_string(text).expect("a text").len();
            assert_eq!(json_bytes(&text), written);
            for room in (0..written + 3).step_by(7) {
                let fits = text_within(text, room);
                assert!(json_bytes(&&text[..fits]) - 2 <= room);
                let next = text[fits..].chars().next();
                assert!(next.is_none_or(|c| json_bytes(&&text[..fits + c.len_utf8()]) - 2 > room));
            }
        }
    }
}
