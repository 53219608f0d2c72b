//! The vocabulary of the table: the shapes of JSON values, fields and messages, and short constructors for them.
use serde::Serialize;

/// The shape of a JSON value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JsonShape {
    /// Any JSON value.
    Any,
    /// Any value but `null`.
    NotNull,
    Flag,
    /// An integer up to this maximum.
    Integer(u64),
    /// An integer from the first to the second value.
    Range(i8, i8),
    Text(TextShape),
    /// One of these texts.
    Words(Vec<String>),
    /// Any text but these.
    OtherText(Vec<String>),
    /// A list of at most this many items.
    List(Box<JsonShape>, Option<usize>),
    /// An object with these fields; unknown fields are allowed.
    Object(Vec<FieldSpec>),
    /// An object whose keys are data.
    Map {
        key: &'static str,
        value: Box<JsonShape>,
        entries_max: usize,
    },
    /// A value of one of these shapes.
    OneOf(Vec<JsonShape>),
    /// The shape or `null`.
    Nullable(Box<JsonShape>),
    /// The shape of this name in the table of definitions.
    Defined(&'static str),
}

/// The form of a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextShape {
    pub bytes_min: usize,
    /// Counted in UTF-8; absent: only the message is limited.
    pub bytes_max: Option<usize>,
    /// A regular expression for the whole text.
    pub pattern: Option<String>,
    /// Texts of this form, if it has a pattern.
    pub examples: Vec<&'static str>,
}

/// A field of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldSpec {
    pub name: &'static str,
    pub shape: JsonShape,
    pub is_required: bool,
    /// A sentence for people; may be empty, if the name says it.
    pub description: String,
    /// The limit of the value's size when it is written as compact JSON.
    pub json_bytes_max: Option<usize>,
}

/// A message: its type, and its fields besides `type`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageSpec {
    /// The field `type`.
    pub kind: &'static str,
    /// The field `name`, if messages of the type differ by it; the row without it is for all other names.
    pub variant: Option<&'static str>,
    pub summary: String,
    pub fields: Vec<FieldSpec>,
    /// The message also matches one of these lists of fields, if there are any.
    pub alternatives: Vec<Vec<FieldSpec>>,
    /// The limit of the whole message.
    pub bytes_max: Option<usize>,
}

/// Exclusive upper bound of integers on the wire, less one.
const INTEGER_MAX: u64 = crate::channel::json::fields::INTEGER_END - 1;

// === impl FieldSpec ===

impl FieldSpec {
    /// Limits the size of the value as JSON.
    pub(super) fn json_bytes(self, max: usize) -> Self {
        Self { json_bytes_max: Some(max), ..self }
    }
}

// === impl MessageSpec ===

impl MessageSpec {
    /// Creates the row of a message type.
    pub(super) fn new(kind: &'static str, summary: impl Into<String>, fields: Vec<FieldSpec>) -> Self {
        Self { kind, variant: None, summary: summary.into(), fields, alternatives: Vec::new(), bytes_max: None }
    }

    /// Sets the value of `name` that the row is for.
    pub(super) fn named(mut self, name: &'static str) -> Self {
        self.fields.insert(0, required("name", constant(name), ""));
        Self { variant: Some(name), ..self }
    }

    /// Requires that the message also matches one of these lists of fields.
    pub(super) fn with_alternatives(self, alternatives: Vec<Vec<FieldSpec>>) -> Self {
        Self { alternatives, ..self }
    }

    /// Returns the fields that some of the alternatives require.
    pub fn alternative_fields(&self) -> Vec<&'static str> {
        let fields = self.alternatives.iter().flatten();
        fields.filter(|field| field.is_required).map(|field| field.name).collect()
    }

    /// Returns the row's name within its group: the type, and the `name` if rows of the type differ by it.
    pub fn key(&self) -> String {
        match self.variant {
            Some(name) => format!("{}.{name}", self.kind),
            None => self.kind.to_owned(),
        }
    }
}

/// Returns a field that is always present.
pub(super) fn required(name: &'static str, shape: JsonShape, description: impl Into<String>) -> FieldSpec {
    FieldSpec { name, shape, is_required: true, description: description.into(), json_bytes_max: None }
}

/// Returns a field that may be absent.
pub(super) fn optional(name: &'static str, shape: JsonShape, description: impl Into<String>) -> FieldSpec {
    FieldSpec { is_required: false, ..required(name, shape, description) }
}

/// Returns the shape of any text.
pub(super) fn text() -> JsonShape {
    JsonShape::Text(TextShape::default())
}

/// Returns the shape of a text of at most this many bytes.
pub(super) fn text_up_to(bytes_max: usize) -> JsonShape {
    JsonShape::Text(TextShape { bytes_max: Some(bytes_max), ..TextShape::default() })
}

/// Returns the shape of a text that a pattern describes completely.
pub(super) fn pattern(pattern: impl Into<String>, examples: &[&'static str]) -> JsonShape {
    JsonShape::Text(TextShape { pattern: Some(pattern.into()), examples: examples.to_vec(), ..TextShape::default() })
}

/// Returns the shape of an integer from 0, below 2^53.
pub(super) fn integer() -> JsonShape {
    JsonShape::Integer(INTEGER_MAX)
}

/// Returns the shape of a number of attempts or of things that are counted in 32 bits.
pub(super) fn small_integer() -> JsonShape {
    JsonShape::Integer(u64::from(u32::MAX))
}

/// Returns the shape of exactly this text.
pub(super) fn constant(word: &str) -> JsonShape {
    JsonShape::Words(vec![word.to_owned()])
}

/// Returns the shape of one of these values, by their names on the wire.
pub(super) fn names<T: Serialize>(values: &[T]) -> JsonShape {
    let name = |value: &T| serde_json::to_value(value).ok()?.as_str().map(str::to_owned);
    let words: Vec<String> = values.iter().filter_map(name).collect();
    debug_assert!(words.len() == values.len(), "values whose JSON is a text");
    JsonShape::Words(words)
}

/// Returns the shape of one of these texts.
pub(super) fn words(words: &[&str]) -> JsonShape {
    JsonShape::Words(words.iter().map(|&word| word.to_owned()).collect())
}

/// Returns the shape of a list without a limit of its own.
pub(super) fn list(item: JsonShape) -> JsonShape {
    JsonShape::List(Box::new(item), None)
}

/// Returns the shape of a list of at most this many items.
pub(super) fn list_up_to(item: JsonShape, items_max: usize) -> JsonShape {
    JsonShape::List(Box::new(item), Some(items_max))
}
