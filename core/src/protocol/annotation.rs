//! Annotations: short texts about a session that lists of sessions show, so that a list reads no logs. Set by facts, kept
//! by the stores.
use crate::limits;
use crate::private::Private;
use std::collections::BTreeMap;

/// The annotations of a session, by name.
pub type Annotations = BTreeMap<String, Private<String>>;

/// A change of one annotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Annotation {
    /// One of at most [`crate::limits::ANNOTATION_NAMES_MAX`] names.
    pub name: &'static str,
    /// The text, of 1 to [`crate::limits::ANNOTATION_CHARACTERS_MAX`] characters; `None` removes the annotation.
    pub text: Option<Private<String>>,
}

impl Annotation {
    /// Creates a change; a text that is too long is cut, and an empty one removes the annotation.
    pub fn new(name: &'static str, text: &str) -> Self {
        let text: String = text.chars().take(limits::ANNOTATION_CHARACTERS_MAX).collect();
        Self { name, text: (!text.is_empty()).then_some(Private(text)) }
    }
}

/// Applies changes in their order.
pub fn apply_annotations(annotations: &mut Annotations, changes: &[Annotation]) {
    for Annotation { name, text } in changes {
        match text {
            Some(text) => annotations.insert((*name).to_owned(), text.clone()),
            None => annotations.remove(*name),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotation_text_is_cut_at_its_limit() {
        let text = |length: usize| "\u{10348}".repeat(length);
        let at = |length: usize| Annotation::new("label", &text(length)).text;
        assert_eq!(at(64), Some(Private(text(64))));
        assert_eq!(at(65), Some(Private(text(64))));
        assert_eq!(text(64).len(), 256);
    }

    #[test]
    fn last_change_of_an_annotation_counts() {
        let mut annotations = Annotations::new();
        apply_annotations(&mut annotations, &[Annotation::new("label", "blue"), Annotation::new("other", "x")]);
        apply_annotations(&mut annotations, &[Annotation::new("label", "red"), Annotation::new("other", "")]);
        assert_eq!(annotations, Annotations::from([("label".to_owned(), Private("red".to_owned()))]));
    }
}
