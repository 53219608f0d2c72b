//! A wrapper for conversation content, which must never be written to a log (S-38).
use serde::{Deserialize, Serialize};
use std::fmt;

/// Content of a conversation. `Debug` prints its size only.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Private<T>(pub T);

impl<T: AsRef<str>> fmt::Debug for Private<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{} bytes>", self.0.as_ref().len())
    }
}

impl<T> From<T> for Private<T> {
    fn from(inner: T) -> Self {
        Self(inner)
    }
}

impl<T: AsRef<str>> Private<T> {
    /// Returns the content; the caller must not log it.
    pub fn reveal(&self) -> &str {
        self.0.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_only_the_size() {
        let secret = Private("canary-7f3a".to_owned());
        assert_eq!(format!("{secret:?} {secret:#?}"), "<11 bytes> <11 bytes>");
    }
}
