//! JSON read in place: the members of an object and the elements of a list as texts, without a tree or recursion.
//! Values that are not read may be anything, such as lone surrogates in a text.
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

/// The name of a member, borrowed if it has no escapes.
#[derive(Deserialize)]
#[serde(transparent)]
struct MemberName<'a>(#[serde(borrow)] Cow<'a, str>);

/// A visitor that gives each member of an object to a function.
struct MemberVisitor<'a, F>(F, PhantomData<&'a ()>);

/// A visitor that gives each element of a list to a function.
struct ElementVisitor<'a, F>(F, PhantomData<&'a ()>);

/// Calls `visit` with each member of the object that `text` is, in order, also for a name that occurs again. An error may
/// come after some calls.
pub(super) fn each_member<'a, F: FnMut(&str, &'a str)>(text: &'a str, visit: F) -> Result<(), serde_json::Error> {
    let mut json = serde_json::Deserializer::from_str(text);
    json.deserialize_map(MemberVisitor(visit, PhantomData))?;
    json.end()
}

/// Calls `visit` with each element of the list that `text` is. Anything else has none.
pub(super) fn each_element<'a, F: FnMut(&'a str)>(text: &'a str, visit: F) {
    let mut json = serde_json::Deserializer::from_str(text);
    // The text is a value of a parsed document, so an error only means that the value is no list.
    let _ = json.deserialize_seq(ElementVisitor(visit, PhantomData));
}

/// Returns the member of this name, the last one if there are several, without null.
pub(super) fn member<'a>(text: &'a str, wanted: &str) -> Option<&'a str> {
    let mut found = None;
    let read = each_member(text, |name, value| {
        if name == wanted {
            found = Some(value);
        }
    });
    read.ok().and(found).filter(|value| *value != "null")
}

/// Returns a count: an integer, a number without a fraction, or a text of digits. Everything else is unknown.
pub(super) fn count(text: &str) -> Option<u64> {
    /// Largest integer up to which a float represents each one.
    const FLOAT_INTEGER_MAX: f64 = 9_007_199_254_740_992.0;
    let digits = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(text);
    if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return digits.parse().ok();
    }
    let number: f64 = text.parse().ok()?;
    let is_count = (0.0..=FLOAT_INTEGER_MAX).contains(&number) && number.fract() == 0.0;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is a small integer")]
    is_count.then_some(number as u64)
}

/// Returns true if a value has some content: it is not null, false, or an empty text, list or object.
pub(super) fn has_content(text: &str) -> bool {
    let within = |open, close| text.strip_prefix(open).and_then(|rest| rest.strip_suffix(close));
    let inner = within('[', ']').or_else(|| within('{', '}')).map_or(text, str::trim);
    !matches!(inner, "" | "null" | "false" | "\"\"")
}

impl<'a, F: FnMut(&str, &'a str)> Visitor<'a> for MemberVisitor<'a, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'a>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some((MemberName(name), value)) = map.next_entry::<MemberName<'a>, &'a RawValue>()? {
            (self.0)(&name, value.get());
        }
        Ok(())
    }
}

impl<'a, F: FnMut(&'a str)> Visitor<'a> for ElementVisitor<'a, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'a>>(mut self, mut list: A) -> Result<(), A::Error> {
        while let Some(value) = list.next_element::<&'a RawValue>()? {
            (self.0)(value.get());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers: PR-6.
    #[test]
    fn count_reads_numbers_without_fraction_and_digits() {
        let known = [("0", 0), ("12", 12), ("12.0", 12), ("1e3", 1000), ("\"7\"", 7), ("-0.0", 0)];
        for (text, expected) in known {
            assert_eq!(count(text), Some(expected), "{text}");
        }
        assert_eq!(count("18446744073709551615"), Some(u64::MAX));
        for unknown in
            ["null", "-1", "1.5", "\"\"", "\"-1\"", "\"1.0\"", "1e99", "18446744073709551616000", "true", "{}"]
        {
            assert_eq!(count(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn has_content_is_false_for_empty_values() {
        for empty in ["null", "false", "\"\"", "[]", "[ ]", "{}", "{\n}"] {
            assert!(!has_content(empty), "{empty}");
        }
        for full in ["\" \"", "[1]", "{\"a\":1}", "true", "0", "\"[]\""] {
            assert!(has_content(full), "{full}");
        }
    }

    #[test]
    fn member_is_found_by_decoded_name_and_last_value() {
        assert_eq!(member(r#"{"a":1,"b":[2 , 3],"\u0062": {"c":"\ud800"}}"#, "b"), Some(r#"{"c":"\ud800"}"#));
        assert_eq!(member(r#"{"a":null}"#, "a"), None);
        assert_eq!(member(r#"{"a":1"#, "a"), None);
        assert_eq!(member("[1]", "a"), None);
    }
}
