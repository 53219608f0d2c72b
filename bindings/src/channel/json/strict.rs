//! Parses JSON from peers within limits (S-13): depth, number of values, no repeated key. Parsing is one pass that
//! stops at the first violation, so hostile input costs no more than the bytes up to the violation.
use crate::channel::json::malformed::Flaw;
use serde_json::{Map, Value};
use turnway_core::limits::MESSAGE_BYTES_MAX;
use turnway_core::protocol::json::{self, BadJson, Halves, literal};

/// Parses a text of at most [`MESSAGE_BYTES_MAX`] as one JSON value. Every returned value can be stored in a fact
/// and read back.
pub fn value(text: &str) -> Result<Value, Flaw> {
    Ok(json::read(within(text, MESSAGE_BYTES_MAX)?)?)
}

/// Parses a text as one JSON object.
pub(crate) fn object(text: &str) -> Result<Map<String, Value>, Flaw> {
    object_within(text, MESSAGE_BYTES_MAX)
}

/// Parses a text like [`object`], with its own size limit.
pub(in crate::channel) fn object_within(text: &str, bytes_max: usize) -> Result<Map<String, Value>, Flaw> {
    map(json::read(within(text, bytes_max)?)?)
}

/// Parses a text like [`object`], and returns the unpaired surrogates at both ends of the field `key`.
pub(crate) fn object_halves(text: &str, key: &str) -> Result<(Map<String, Value>, Halves), Flaw> {
    let (value, halves) = json::read_halves(within(text, MESSAGE_BYTES_MAX)?, key)?;
    Ok((map(value)?, halves))
}

fn within(text: &str, bytes_max: usize) -> Result<&str, Flaw> {
    if text.len() > bytes_max { Err(Flaw::TooLong) } else { Ok(text) }
}

fn map(value: Value) -> Result<Map<String, Value>, Flaw> {
    if literal(&value).is_some() {
        return Err(Flaw::NotAnObject);
    }
    match value {
        Value::Object(map) => Ok(map),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Err(Flaw::NotAnObject)
        }
    }
}

impl From<BadJson> for Flaw {
    fn from(bad: BadJson) -> Self {
        match bad {
            BadJson::Syntax => Self::NotJson,
            BadJson::TooDeep => Self::TooDeep,
            BadJson::TooManyValues => Self::TooManyValues,
            BadJson::RepeatedKey => Self::RepeatedKey,
            BadJson::ReservedKey => Self::ReservedKey,
            BadJson::LongNumber => Self::LongNumber,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnway_core::limits::{JSON_DEPTH_MAX, JSON_NODES_MAX, JSON_NUMBER_BYTES_MAX};

    fn nested(depth: usize) -> String {
        format!("{{\"a\":{}{}}}", "[".repeat(depth - 1), "]".repeat(depth - 1))
    }

    /// Covers: S-13.
    #[test]
    fn each_json_limit_is_exact() {
        assert!(object(&nested(JSON_DEPTH_MAX)).is_ok());
        assert_eq!(object(&nested(JSON_DEPTH_MAX + 1)), Err(Flaw::TooDeep));
        let list = |items: usize| format!("{{\"a\":[{}]}}", vec!["0"; items].join(","));
        assert!(object(&list(JSON_NODES_MAX - 2)).is_ok());
        assert_eq!(object(&list(JSON_NODES_MAX - 1)), Err(Flaw::TooManyValues));
        let text = |bytes: usize| format!("{{\"a\":\"{}\"}}", "x".repeat(bytes - 8));
        assert!(object(&text(MESSAGE_BYTES_MAX)).is_ok());
        assert_eq!(object(&text(MESSAGE_BYTES_MAX + 1)), Err(Flaw::TooLong));
    }

    /// Covers: S-13.
    #[test]
    fn invalid_json_is_refused_with_its_reason() {
        let many_keys: String = (0..11_000).map(|n| format!("\"{n}\":0,")).collect();
        let cases = [
            ("[".repeat(60_000), Flaw::TooDeep),
            ("{\"a\":".repeat(10_000), Flaw::TooDeep),
            ("[".repeat(1_000_000), Flaw::TooLong),
            (format!("{{{many_keys}\"z\":0}}"), Flaw::TooLong),
            (format!("[{}1]", "1,".repeat(20_000)), Flaw::TooManyValues),
            ("{\"a\":1,\"a\":1}".to_owned(), Flaw::RepeatedKey),
            ("{\"x\":{\"a\":1,\"\\u0061\":[[[[".to_owned(), Flaw::RepeatedKey),
            ("{\"$serde_json::private::RawValue\":\"[\"}".to_owned(), Flaw::ReservedKey),
            (format!("{{\"a\":{}}}", "9".repeat(JSON_NUMBER_BYTES_MAX + 1)), Flaw::LongNumber),
            ("1e999".to_owned(), Flaw::NotAnObject),
            ("{\"a\":\"\u{0}\"}".to_owned(), Flaw::NotJson),
            ("{} {}".to_owned(), Flaw::NotJson),
            ("{\"a\":NaN}".to_owned(), Flaw::NotJson),
            (String::new(), Flaw::NotJson),
            ("\u{feff}{}".to_owned(), Flaw::NotJson),
            ("null".to_owned(), Flaw::NotAnObject),
            ("[]".to_owned(), Flaw::NotAnObject),
        ];
        for (text, flaw) in cases {
            assert_eq!(object(&text), Err(flaw), "{:.40}", text);
        }
        // A message with more than 10,000 keys that fits into the size limit.
        let short: String = (0..10_001).map(|n| format!("\"{n:x}\":0,")).collect();
        let short = format!("{{{}}}", &short[..short.len() - 1].replace("\":0", "\":1"));
        assert!(matches!(object(&short), Err(Flaw::TooManyValues | Flaw::TooLong)));
    }

    /// A number of any length costs no more than its bytes, never wraps, and never becomes an integer.
    ///
    /// Covers: issue 23 A4.
    #[test]
    fn huge_numbers_are_kept_or_refused() {
        for number in ["9".repeat(300), "1e400".to_owned()] {
            let read = object(&format!("{{\"a\":{number}}}")).expect("JSON");
            assert_eq!((literal(&read["a"]), read["a"].as_u64()), (Some(number.as_str()), None));
        }
        assert_eq!(object(&format!("{{\"a\":{}}}", "9".repeat(60_000))), Err(Flaw::LongNumber));
        assert_eq!(object("{\"a\":18446744073709551615}").expect("JSON")["a"], u64::MAX);
    }
}
