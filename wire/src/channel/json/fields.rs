//! Typed access to the fields of a JSON object. A `null` field counts as absent, because many clients send `null`.
use crate::channel::json::malformed::MalformedReason;
use serde_json::{Map, Value};
use turnway_core::id::BadName;
use turnway_core::protocol::json::number_literal;

/// Fields of one object; each is taken at most once.
pub type Fields = Map<String, Value>;

/// Exclusive upper bound of integers on the wire, so that a client whose numbers are doubles reads them exactly.
pub const INTEGER_END: u64 = 1 << 53;

/// Removes a field. `label` is the field's path in error messages; its last segment is the key.
fn take(fields: &mut Fields, label: &'static str) -> Option<Value> {
    let key = label.rsplit('.').next().unwrap_or(label);
    fields.remove(key).filter(|value| !value.is_null())
}

/// Takes a string.
pub fn text(fields: &mut Fields, label: &'static str) -> Result<Option<String>, MalformedReason> {
    match take(fields, label) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(MalformedReason::InvalidField(label)),
    }
}

/// Takes an identifier and parses it.
pub fn name<T>(
    fields: &mut Fields,
    label: &'static str,
    parse: fn(&str) -> Result<T, BadName>,
) -> Result<Option<T>, MalformedReason> {
    let text = text(fields, label)?;
    text.map(|text| parse(&text).map_err(|_| MalformedReason::InvalidField(label))).transpose()
}

/// Takes one of several words. `as_str` gives the word of a value.
pub fn word<T: Copy>(
    fields: &mut Fields,
    label: &'static str,
    values: &[T],
    as_str: fn(T) -> &'static str,
) -> Result<Option<T>, MalformedReason> {
    let Some(word) = text(fields, label)? else { return Ok(None) };
    let named = values.iter().copied().find(|value| as_str(*value) == word);
    named.map(Some).ok_or(MalformedReason::InvalidField(label))
}

/// Returns whether a required field has the first of two words.
pub fn is_first_of(fields: &mut Fields, name: &'static str, words: [&'static str; 2]) -> Result<bool, MalformedReason> {
    let word = required(word(fields, name, &words, |word| word)?, name)?;
    Ok(word == words[0])
}

/// Takes an integer from 0, below [`INTEGER_END`]. A number without a fraction is an integer, also as `7.0` (JSON Schema
/// 2020-12, 6.1.1).
pub fn integer(fields: &mut Fields, label: &'static str) -> Result<Option<u64>, MalformedReason> {
    let Some(value) = take(fields, label) else { return Ok(None) };
    let whole = |number: f64| (number.fract() == 0.0 && number >= 0.0).then_some(number as u64);
    let number = value.as_u64().or_else(|| value.as_f64().and_then(whole));
    number.filter(|n| *n < INTEGER_END).map(Some).ok_or(MalformedReason::InvalidField(label))
}

/// Takes a boolean.
pub fn flag(fields: &mut Fields, label: &'static str) -> Result<Option<bool>, MalformedReason> {
    match take(fields, label) {
        None => Ok(None),
        Some(Value::Bool(flag)) => Ok(Some(flag)),
        Some(_) => Err(MalformedReason::InvalidField(label)),
    }
}

/// Takes an object.
pub fn object(fields: &mut Fields, label: &'static str) -> Result<Option<Fields>, MalformedReason> {
    match take(fields, label) {
        None => Ok(None),
        Some(number) if number_literal(&number).is_some() => Err(MalformedReason::InvalidField(label)),
        Some(Value::Object(inner)) => Ok(Some(inner)),
        Some(_) => Err(MalformedReason::InvalidField(label)),
    }
}

/// Takes a list of at most `max` items; an absent list is empty.
pub fn list(fields: &mut Fields, label: &'static str, max: usize) -> Result<Vec<Value>, MalformedReason> {
    match take(fields, label) {
        None => Ok(Vec::new()),
        Some(Value::Array(items)) if items.len() > max => Err(MalformedReason::TooManyItems(label)),
        Some(Value::Array(items)) => Ok(items),
        Some(_) => Err(MalformedReason::InvalidField(label)),
    }
}

/// Takes a value of any type.
pub fn any(fields: &mut Fields, label: &'static str) -> Option<Value> {
    take(fields, label)
}

/// Rejects an absent field.
pub fn required<T>(field: Option<T>, label: &'static str) -> Result<T, MalformedReason> {
    field.ok_or(MalformedReason::MissingField(label))
}
