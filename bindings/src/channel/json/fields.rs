//! One field of one kind. A field that is `null` counts as absent, as many clients write it.
use crate::channel::json::malformed::Flaw;
use serde_json::{Map, Value};
use turnway_core::id::BadName;
use turnway_core::protocol::json::literal;

/// Fields of one object; each is taken at most once.
pub(crate) type Fields = Map<String, Value>;

/// Integers on the wire stay below this, so that a client whose numbers are doubles reads them right.
pub(crate) const INTEGER_END: u64 = 1 << 53;

/// `label` is the field's path for people; its last part is the key.
fn take(fields: &mut Fields, label: &'static str) -> Option<Value> {
    let key = label.rsplit('.').next().unwrap_or(label);
    fields.remove(key).filter(|value| !value.is_null())
}

/// A text.
pub(crate) fn text(fields: &mut Fields, label: &'static str) -> Result<Option<String>, Flaw> {
    match take(fields, label) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(Flaw::Wrong(label)),
    }
}

/// A name of some form.
pub(crate) fn name<T>(
    fields: &mut Fields,
    label: &'static str,
    parse: fn(&str) -> Result<T, BadName>,
) -> Result<Option<T>, Flaw> {
    let text = text(fields, label)?;
    text.map(|text| parse(&text).map_err(|_| Flaw::Wrong(label))).transpose()
}

/// A whole number from 0, below [`INTEGER_END`].
pub(crate) fn integer(fields: &mut Fields, label: &'static str) -> Result<Option<u64>, Flaw> {
    let Some(value) = take(fields, label) else { return Ok(None) };
    value.as_u64().filter(|n| *n < INTEGER_END).map(Some).ok_or(Flaw::Wrong(label))
}

/// A yes or no.
pub(crate) fn flag(fields: &mut Fields, label: &'static str) -> Result<Option<bool>, Flaw> {
    match take(fields, label) {
        None => Ok(None),
        Some(Value::Bool(flag)) => Ok(Some(flag)),
        Some(_) => Err(Flaw::Wrong(label)),
    }
}

/// An object.
pub(crate) fn object(fields: &mut Fields, label: &'static str) -> Result<Option<Fields>, Flaw> {
    match take(fields, label) {
        None => Ok(None),
        Some(number) if literal(&number).is_some() => Err(Flaw::Wrong(label)),
        Some(Value::Object(inner)) => Ok(Some(inner)),
        Some(_) => Err(Flaw::Wrong(label)),
    }
}

/// A list of at most so many items; absent is empty.
pub(crate) fn list(fields: &mut Fields, label: &'static str, max: usize) -> Result<Vec<Value>, Flaw> {
    match take(fields, label) {
        None => Ok(Vec::new()),
        Some(Value::Array(items)) if items.len() > max => Err(Flaw::TooMany(label)),
        Some(Value::Array(items)) => Ok(items),
        Some(_) => Err(Flaw::Wrong(label)),
    }
}

/// Anything at all.
pub(crate) fn any(fields: &mut Fields, label: &'static str) -> Option<Value> {
    take(fields, label)
}

/// What must be there.
pub(crate) fn required<T>(field: Option<T>, label: &'static str) -> Result<T, Flaw> {
    field.ok_or(Flaw::Missing(label))
}
