//! JSON that others made and the gateway passes on: reading within bounds, exact numbers, and sizes.
mod number;
mod reader;

pub use number::{ExactJson, number_literal};
pub use reader::{BadJson, RESERVED, SurrogateHalves, join_surrogates, read, read_items, read_with_halves};

pub(crate) use number::with_rounded_numbers;
pub(crate) use reader::read_stored;

use serde::de::{Deserialize, Deserializer, Error};
use serde::{Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;
use std::fmt;
use std::io::{self, Write};

/// A JSON value that is passed on unchanged, numbers of any size included. `Debug` prints its kind only (S-38).
///
/// Deserialise it with `serde_json` only, and neither inside an internally tagged enum nor where fields are
/// flattened: there serde parses numbers into a buffer before their type is known.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Json(pub Value);

// === impl Json ===

impl Json {
    /// Returns the value as JSON text.
    pub fn text(&self) -> String {
        // String keys and numbers that were read always serialise.
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        ExactJson(&self.0).serialize(to)
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        deserialize_stored(from).map(Self)
    }
}

/// Deserialises a value that this gateway wrote earlier.
pub(super) fn deserialize_stored<'de, D: Deserializer<'de>>(from: D) -> Result<Value, D::Error> {
    let raw = Box::<RawValue>::deserialize(from)?;
    // The original error is dropped, because it may quote content (S-38).
    read_stored(raw.get()).map_err(|_| D::Error::custom("not JSON that can be stored"))
}

impl fmt::Debug for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.0 {
            number if number_literal(number).is_some() => "<number>",
            Value::Null => "<null>",
            Value::Bool(_) => "<bool>",
            Value::Number(_) => "<number>",
            Value::String(_) => "<string>",
            Value::Array(_) => "<array>",
            Value::Object(_) => "<object>",
        })
    }
}

/// Returns the bytes that a value takes as JSON, without writing it anywhere.
pub fn json_bytes(value: &impl Serialize) -> usize {
    let mut count = ByteCounter(0);
    // Counting cannot fail, and values with string keys and finite numbers always serialise.
    match serde_json::to_writer(&mut count, value) {
        Ok(()) => count.0,
        Err(_) => usize::MAX,
    }
}

/// Returns the length of the longest prefix that takes at most `json_bytes_max` bytes as JSON. No code point is
/// split.
pub fn json_prefix_len(text: &str, json_bytes_max: usize) -> usize {
    let mut left_bytes = json_bytes_max;
    for (at, c) in text.char_indices() {
        let takes = match c {
            '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
            '\0'..='\u{1f}' => 6,
            c => c.len_utf8(),
        };
        match left_bytes.checked_sub(takes) {
            Some(left) => left_bytes = left,
            None => return at,
        }
    }
    text.len()
}

struct ByteCounter(usize);

impl Write for ByteCounter {
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

    /// A number stays the same however often it is written and read.
    #[test]
    fn json_number_round_trips_unchanged() {
        for text in [
            "17153553733333553733333363333793333333",
            "1.0715086071862673e301",
            "-0",
            "0.1",
            "5e-324",
            "1e400",
            "-1E+05",
        ] {
            let read: Json = serde_json::from_str(text).expect("a number");
            assert_eq!(serde_json::to_string(&read).expect("a number"), text);
            assert_eq!(format!("{read:?}"), "<number>");
        }
    }

    #[test]
    fn json_size_matches_the_serialised_length() {
        let every: String = (0..=0x2030u32).filter_map(char::from_u32).collect();
        let texts = ["", "a\"b\\c\nd\u{1}\u{7f}é🦀", every.as_str()];
        for text in texts {
            let written = serde_json::to_string(text).expect("a text").len();
            assert_eq!(json_bytes(&text), written);
            for bytes_max in (0..written + 3).step_by(7) {
                let fits = json_prefix_len(text, bytes_max);
                assert!(json_bytes(&&text[..fits]) - 2 <= bytes_max);
                let next = text[fits..].chars().next();
                assert!(next.is_none_or(|c| json_bytes(&&text[..fits + c.len_utf8()]) - 2 > bytes_max));
            }
        }
    }
}
