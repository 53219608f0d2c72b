//! Patterns for dotted names: `*` matches one segment, `>` the rest (LN-EV3). Subscriptions use them.
use serde::{Deserialize, Serialize};
use std::fmt;

/// A pattern such as `agent.stream.delta`, `process.*` or `system.>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Box<str>", into = "Box<str>")]
pub struct Pattern(Box<str>);

/// The error for a text that is no pattern: empty, too long, an empty segment, or `>` before the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadPattern;

impl fmt::Display for BadPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a pattern: dotted names, `*` for one segment, `>` for the rest")
    }
}

impl TryFrom<Box<str>> for Pattern {
    type Error = BadPattern;
    fn try_from(text: Box<str>) -> Result<Self, BadPattern> {
        Self::parse(&text)
    }
}

impl From<Pattern> for Box<str> {
    fn from(pattern: Pattern) -> Self {
        pattern.0
    }
}

impl Pattern {
    /// Checks the form and creates the pattern: at most 128 bytes of `[A-Za-z0-9_-]`, `.`, `*`, `>`.
    pub fn parse(text: &str) -> Result<Self, BadPattern> {
        let plain = |part: &str| part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
        let parts: Vec<&str> = text.split('.').collect();
        let good = parts.iter().enumerate().all(|(n, part)| match *part {
            "" => false,
            "*" => true,
            ">" => n + 1 == parts.len(),
            part => plain(part),
        });
        if good && text.len() <= 128 { Ok(Self(text.into())) } else { Err(BadPattern) }
    }
    /// Returns whether a name matches.
    pub fn matches(&self, name: &str) -> bool {
        let mut names = name.split('.');
        for part in self.0.split('.') {
            match (part, names.next()) {
                (">", Some(_)) => return true,
                ("*", Some(_)) => {}
                (part, Some(name)) if part == name => {}
                (_, _) => return false,
            }
        }
        names.next().is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers: ST-39, LN-EV3.
    #[test]
    fn star_matches_one_segment_and_angle_the_rest() {
        let cases = [
            ("run.done", "run.done", true),
            ("run.*", "run.done", true),
            ("run.*", "run", false),
            ("agent.*", "agent.stream.delta", false),
            ("agent.>", "agent.stream.delta", true),
            (">", "x", true),
            ("agent.>", "agent", false),
            ("*.done", "run.done", true),
            ("run", "run.done", false),
        ];
        for (pattern, name, fits) in cases {
            let pattern = Pattern::parse(pattern).expect("a pattern");
            assert_eq!(pattern.matches(name), fits, "{pattern:?} {name}");
        }
        for bad in ["", "a..b", ">.a", "a b", "é", &"a".repeat(129)] {
            assert_eq!(Pattern::parse(bad), Err(BadPattern), "{bad:?}");
        }
    }
}
