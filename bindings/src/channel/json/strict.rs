//! JSON within bounds (S-13): depth, number of values, no key twice; one pass that stops at the first
//! breach, so hostile input costs no more than the bytes up to it.
use crate::channel::json::malformed::Flaw;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use std::cell::Cell;
use std::fmt;
use turnway_core::limits::{JSON_DEPTH_MAX, JSON_NODES_MAX, MESSAGE_BYTES_MAX};

/// `serde_json` gives such keys a meaning when it reads a `Value`: a fact that carried one would be
/// stored and then not be read back.
const RESERVED: &str = "$serde_json::private::";

/// Reads a text of at most [`MESSAGE_BYTES_MAX`] that must be one value. Whatever it returns can be stored
/// in a fact and read back.
pub fn value(text: &str) -> Result<Value, Flaw> {
    value_within(text, MESSAGE_BYTES_MAX)
}

fn value_within(text: &str, bytes_max: usize) -> Result<Value, Flaw> {
    if text.len() > bytes_max {
        return Err(Flaw::TooLong);
    }
    let (values, flaw) = (Cell::new(0), Cell::new(Flaw::NotJson));
    let mut json = serde_json::Deserializer::from_str(text);
    let reader = Reader { depth: 1, values: &values, flaw: &flaw };
    let value = reader.deserialize(&mut json).map_err(|_| flaw.get())?;
    json.end().map_err(|_| Flaw::NotJson)?;
    Ok(value)
}

/// Reads a text that must be one object.
pub(super) fn object(text: &str) -> Result<Map<String, Value>, Flaw> {
    object_within(text, MESSAGE_BYTES_MAX)
}

/// The same for a text that may be of another length.
pub(in crate::channel) fn object_within(text: &str, bytes_max: usize) -> Result<Map<String, Value>, Flaw> {
    match value_within(text, bytes_max)? {
        Value::Object(map) => Ok(map),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Err(Flaw::NotAnObject)
        }
    }
}

/// Reads one value, which would be at this depth if it had parts.
#[derive(Clone, Copy)]
struct Reader<'a> {
    depth: usize,
    values: &'a Cell<usize>,
    flaw: &'a Cell<Flaw>,
}

impl Reader<'_> {
    fn fail<E: Error>(self, flaw: Flaw) -> E {
        self.flaw.set(flaw);
        E::custom("out of bounds")
    }
    fn inside<E: Error>(self) -> Result<Self, E> {
        if self.depth > JSON_DEPTH_MAX {
            return Err(self.fail(Flaw::TooDeep));
        }
        Ok(Self { depth: self.depth + 1, ..self })
    }
}

impl<'de> DeserializeSeed<'de> for Reader<'_> {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        self.values.set(self.values.get() + 1);
        if self.values.get() > JSON_NODES_MAX {
            return Err(self.fail(Flaw::TooManyValues));
        }
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Reader<'_> {
    type Value = Value;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }
    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }
    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }
    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }
    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(Value::from(value))
    }
    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let inner = self.inside()?;
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(inner)? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let inner = self.inside()?;
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if key.starts_with(RESERVED) {
                return Err(self.fail(Flaw::ReservedKey));
            }
            // Before its value is read: the repeat itself may be what is large.
            if map.contains_key(&key) {
                return Err(self.fail(Flaw::RepeatedKey));
            }
            map.insert(key, entries.next_value_seed(inner)?);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested(depth: usize) -> String {
        format!("{{\"a\":{}{}}}", "[".repeat(depth - 1), "]".repeat(depth - 1))
    }

    /// Covers: S-13.
    #[test]
    fn every_bound_is_exact() {
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
    fn hostile_texts_are_refused_by_name() {
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
            ("{\"a\":1e999}".to_owned(), Flaw::NotJson),
            ("{\"a\":\"\\ud800\"}".to_owned(), Flaw::NotJson),
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
        // 10k keys and more that do fit in a message.
        let short: String = (0..10_001).map(|n| format!("\"{n:x}\":0,")).collect();
        let short = format!("{{{}}}", &short[..short.len() - 1].replace("\":0", "\":1"));
        assert!(matches!(object(&short), Err(Flaw::TooManyValues | Flaw::TooLong)));
    }

    /// A number of any length costs no more than its bytes and never wraps.
    #[test]
    fn huge_numbers_are_floats_or_refused() {
        let digits = format!("{{\"a\":{}}}", "9".repeat(300));
        assert!(object(&digits).expect("JSON")["a"].is_f64());
        assert_eq!(object(&format!("{{\"a\":{}}}", "9".repeat(60_000))), Err(Flaw::NotJson));
        assert_eq!(object("{\"a\":18446744073709551615}").expect("JSON")["a"], u64::MAX);
    }
}
