//! Parses JSON from peers within limits (S-13): depth, number of values, no repeated key. Parsing is one pass that
//! stops at the first violation, so hostile input costs no more than the bytes up to the violation.
use crate::channel::json::malformed::MalformedReason;
use serde_json::{Map, Value};
use turnway_core::limits::MESSAGE_BYTES_MAX;
use turnway_core::protocol::json::{self, BadJson, SurrogateHalves, number_literal};

/// Parses a text of at most [`MESSAGE_BYTES_MAX`] as one JSON value. Every returned value can be stored in a fact
/// and read back.
pub fn value(text: &str) -> Result<Value, MalformedReason> {
    Ok(json::read(check_length(text, MESSAGE_BYTES_MAX)?)?)
}

/// Parses a text as one JSON object.
pub fn object(text: &str) -> Result<Map<String, Value>, MalformedReason> {
    into_object(json::read(check_length(text, MESSAGE_BYTES_MAX)?)?)
}

/// Parses a text like [`object`], with its own size limit; the items of the list in the field `key` go to `each`
/// ([`json::read_items`]).
pub(in crate::channel) fn object_with_items(
    text: &str,
    bytes_max: usize,
    key: &str,
    each: &mut dyn FnMut(Value),
) -> Result<Map<String, Value>, MalformedReason> {
    into_object(json::read_items(check_length(text, bytes_max)?, key, each)?)
}

/// Parses a text like [`object`], and returns the unpaired surrogates at both ends of the field `key`.
pub fn object_halves(text: &str, key: &str) -> Result<(Map<String, Value>, SurrogateHalves), MalformedReason> {
    let (value, halves) = json::read_with_halves(check_length(text, MESSAGE_BYTES_MAX)?, key)?;
    Ok((into_object(value)?, halves))
}

fn check_length(text: &str, bytes_max: usize) -> Result<&str, MalformedReason> {
    if text.len() > bytes_max { Err(MalformedReason::TooLong) } else { Ok(text) }
}

fn into_object(value: Value) -> Result<Map<String, Value>, MalformedReason> {
    if number_literal(&value).is_some() {
        return Err(MalformedReason::NotAnObject);
    }
    match value {
        Value::Object(map) => Ok(map),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Err(MalformedReason::NotAnObject)
        }
    }
}

impl From<BadJson> for MalformedReason {
    fn from(bad: BadJson) -> Self {
        match bad {
            BadJson::Syntax => Self::NotJson,
            BadJson::TooDeep => Self::TooDeep,
            BadJson::TooManyValues => Self::TooManyValues,
            BadJson::RepeatedKey => Self::RepeatedKey,
            BadJson::ReservedKey => Self::ReservedKey,
            BadJson::LongNumber => Self::NumberTooLong,
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
        assert_eq!(object(&nested(JSON_DEPTH_MAX + 1)), Err(MalformedReason::TooDeep));
        let list = |items: usize| format!("{{\"a\":[{}]}}", vec!["0"; items].join(","));
        assert!(object(&list(JSON_NODES_MAX - 2)).is_ok());
        assert_eq!(object(&list(JSON_NODES_MAX - 1)), Err(MalformedReason::TooManyValues));
        let text = |bytes: usize| format!("{{\"a\":\"{}\"}}", "x".repeat(bytes - 8));
        assert!(object(&text(MESSAGE_BYTES_MAX)).is_ok());
        assert_eq!(object(&text(MESSAGE_BYTES_MAX + 1)), Err(MalformedReason::TooLong));
    }

    /// Covers: S-13.
    #[test]
    fn invalid_json_is_refused_with_its_reason() {
        let many_keys: String = (0..11_000).map(|n| format!("\"{n}\":0,")).collect();
        let cases = [
            ("[".repeat(60_000), MalformedReason::TooDeep),
            ("{\"a\":".repeat(10_000), MalformedReason::TooDeep),
            ("[".repeat(1_000_000), MalformedReason::TooLong),
            (format!("{{{many_keys}\"z\":0}}"), MalformedReason::TooLong),
            (format!("[{}1]", "1,".repeat(20_000)), MalformedReason::TooManyValues),
            ("{\"a\":1,\"a\":1}".to_owned(), MalformedReason::RepeatedKey),
            ("{\"x\":{\"a\":1,\"\\u0061\":[[[[".to_owned(), MalformedReason::RepeatedKey),
            ("{\"$serde_json::private::RawValue\":\"[\"}".to_owned(), MalformedReason::ReservedKey),
            (format!("{{\"a\":{}}}", "9".repeat(JSON_NUMBER_BYTES_MAX + 1)), MalformedReason::NumberTooLong),
            ("1e999".to_owned(), MalformedReason::NotAnObject),
            ("{\"a\":\"\u{0}\"}".to_owned(), MalformedReason::NotJson),
            ("{} {}".to_owned(), MalformedReason::NotJson),
            ("{\"a\":NaN}".to_owned(), MalformedReason::NotJson),
            (String::new(), MalformedReason::NotJson),
            ("\u{feff}{}".to_owned(), MalformedReason::NotJson),
            ("null".to_owned(), MalformedReason::NotAnObject),
            ("[]".to_owned(), MalformedReason::NotAnObject),
        ];
        for (text, flaw) in cases {
            assert_eq!(object(&text), Err(flaw), "{:.40}", text);
        }
        // A message with more than 10,000 keys that fits into the size limit.
        let short: String = (0..10_001).map(|n| format!("\"{n:x}\":0,")).collect();
        let short = format!("{{{}}}", &short[..short.len() - 1].replace("\":0", "\":1"));
        assert!(matches!(object(&short), Err(MalformedReason::TooManyValues | MalformedReason::TooLong)));
    }

    /// A number of any length costs no more than its bytes, never wraps, and never becomes an integer.
    #[test]
    fn huge_numbers_are_kept_or_refused() {
        for number in ["9".repeat(300), "1e400".to_owned()] {
            let read = object(&format!("{{\"a\":{number}}}")).expect("JSON");
            assert_eq!((number_literal(&read["a"]), read["a"].as_u64()), (Some(number.as_str()), None));
        }
        assert_eq!(object(&format!("{{\"a\":{}}}", "9".repeat(60_000))), Err(MalformedReason::NumberTooLong));
        assert_eq!(object("{\"a\":18446744073709551615}").expect("JSON")["a"], u64::MAX);
    }
}
