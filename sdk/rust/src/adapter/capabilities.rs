//! The capabilities of an account or of one conversation: levels and limits, checked before the gateway sees them.
use crate::error::ClientError;
use crate::limits;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The unit of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LengthUnit {
    /// UTF-16 code units.
    Utf16,
    /// Unicode scalar values.
    Chars,
    /// Bytes of UTF-8.
    Bytes,
}

/// The support of a capability. The gateway asks only for what is above [`CapabilityLevel::Fallback`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CapabilityLevel {
    Rejected,
    Dropped,
    Fallback,
    Partial,
    Full,
}

/// The capabilities that an adapter declares, by name. [`ChannelCapabilities::default`] declares none, so that the
/// adapter gets only messages, in parts of up to 2,000 UTF-16 units.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChannelCapabilities(BTreeMap<String, DeclaredLevel>);

/// A level with its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DeclaredLevel {
    level: CapabilityLevel,
    limit: Option<(u32, LengthUnit)>,
}

// === impl LengthUnit ===

impl LengthUnit {
    fn as_str(self) -> &'static str {
        match self {
            Self::Utf16 => "utf16",
            Self::Chars => "chars",
            Self::Bytes => "bytes",
        }
    }
}

// === impl CapabilityLevel ===

impl CapabilityLevel {
    fn number(self) -> i8 {
        match self {
            Self::Rejected => -2,
            Self::Dropped => -1,
            Self::Fallback => 0,
            Self::Partial => 1,
            Self::Full => 2,
        }
    }
}

// === impl ChannelCapabilities ===

impl ChannelCapabilities {
    /// Declares the length of one message.
    #[must_use]
    pub fn text(self, max: u32, unit: LengthUnit) -> Self {
        self.limited("text", CapabilityLevel::Full, max, unit)
    }

    /// Declares that the platform shows a message with the same key once. A part is then repeated if nobody knows
    /// whether it was sent.
    #[must_use]
    pub fn key(self) -> Self {
        self.level("key", CapabilityLevel::Full)
    }

    /// Declares that [`crate::adapter::Platform::edit`] works.
    #[must_use]
    pub fn edit(self) -> Self {
        self.level("edit", CapabilityLevel::Full)
    }

    /// Declares that [`crate::adapter::Platform::delete`] works.
    #[must_use]
    pub fn delete(self) -> Self {
        self.level("delete", CapabilityLevel::Full)
    }

    /// Declares that [`crate::adapter::Platform::react`] works.
    #[must_use]
    pub fn reaction(self) -> Self {
        self.level("reaction", CapabilityLevel::Full)
    }

    /// Declares that [`crate::adapter::Platform::preview`] and [`crate::adapter::Platform::delete_preview`] work.
    #[must_use]
    pub fn preview(self) -> Self {
        self.level("preview", CapabilityLevel::Full)
    }

    /// Declares that [`crate::adapter::Platform::typing`] works.
    #[must_use]
    pub fn typing(self) -> Self {
        self.level("typing", CapabilityLevel::Full)
    }

    /// Declares that [`crate::adapter::Platform::create_conversation`] works.
    #[must_use]
    pub fn create_conversation(self) -> Self {
        self.level("create_conversation", CapabilityLevel::Full)
    }

    /// Declares that [`crate::adapter::Platform::send`] shows the buttons of a part.
    #[must_use]
    pub fn buttons(self) -> Self {
        self.level("buttons", CapabilityLevel::Full)
    }

    /// Declares that [`crate::adapter::Platform::send`] sends the files of a part.
    #[must_use]
    pub fn attachments(self) -> Self {
        self.level("attachments", CapabilityLevel::Full)
    }

    /// Declares the level of any capability.
    #[must_use]
    pub fn level(mut self, name: &str, level: CapabilityLevel) -> Self {
        self.0.insert(name.to_owned(), DeclaredLevel { level, limit: None });
        self
    }

    /// Declares the level of any capability, with a limit.
    #[must_use]
    pub fn limited(mut self, name: &str, level: CapabilityLevel, max: u32, unit: LengthUnit) -> Self {
        self.0.insert(name.to_owned(), DeclaredLevel { level, limit: Some((max, unit)) });
        self
    }

    /// Returns whether nothing is declared.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Checks names, number and limits as the gateway does.
    pub(crate) fn check(&self) -> Result<(), ClientError> {
        let max = limits::CAPABILITIES_MAX;
        if self.0.len() > max {
            return Err(ClientError::TooMany { what: "capabilities", max });
        }
        let is_name = |name: &str| {
            (1..=64).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b))
        };
        if !self.0.keys().all(|name| is_name(name)) {
            return Err(ClientError::BadName { what: "name of a capability" });
        }
        let text = self.0.get("text").and_then(|text| text.limit);
        let is_short = text.is_some_and(|(max, _)| max < limits::TEXT_LIMIT_MIN);
        if is_short || self.0.values().any(|it| it.limit.is_some_and(|(max, _)| max == 0)) {
            return Err(ClientError::BadName { what: "limit of a capability" });
        }
        Ok(())
    }

    /// Returns the capabilities as `hello` and `capabilities` have them.
    pub(crate) fn to_wire(&self) -> Value {
        let value = |it: &DeclaredLevel| match it.limit {
            None => json!(it.level.number()),
            Some((max, unit)) => json!({ "level": it.level.number(), "max": max, "unit": unit.as_str() }),
        };
        Value::Object(self.0.iter().map(|(name, it)| (name.clone(), value(it))).collect::<Map<_, _>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers: BR-36.
    #[test]
    fn capabilities_are_rendered_as_levels_and_limits() {
        let declared = ChannelCapabilities::default().text(4096, LengthUnit::Chars).key();
        let declared = declared.level("buttons", CapabilityLevel::Dropped);
        let expected = json!({ "text": { "level": 2, "max": 4096, "unit": "chars" }, "key": 2, "buttons": -1 });
        assert_eq!(declared.to_wire(), expected);
        assert_eq!(declared.check(), Ok(()));
    }

    /// Covers: BR-36.
    #[test]
    fn invalid_capabilities_are_refused() {
        let none = ChannelCapabilities::default;
        assert!(none().text(63, LengthUnit::Utf16).check().is_err());
        assert!(none().level("a b", CapabilityLevel::Full).check().is_err());
        assert!(none().limited("edit", CapabilityLevel::Full, 0, LengthUnit::Bytes).check().is_err());
        let many = |count| (0..count).fold(none(), |all, n| all.level(&format!("c{n}"), CapabilityLevel::Partial));
        assert_eq!(many(limits::CAPABILITIES_MAX).check(), Ok(()));
        assert!(many(limits::CAPABILITIES_MAX + 1).check().is_err());
    }
}
