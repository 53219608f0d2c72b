//! Renders the table as a dictionary for libFuzzer: types, names of fields and words, each with its quotes.
use super::shape::{FieldSpec, JsonShape};
use super::{MessageGroup, definition, fact};
use std::collections::BTreeSet;

/// Renders the dictionary as it is checked in.
pub fn text() -> String {
    let mut words = BTreeSet::new();
    for group in MessageGroup::ALL {
        for message in group.messages() {
            words.insert(message.kind.to_owned());
            words.insert("type".to_owned());
            add_fields(&message.fields, &mut words);
        }
    }
    for row in fact::rows() {
        words.insert(row.name.to_owned());
        add_fields(&row.fields, &mut words);
    }
    add_fields(&fact::envelope(), &mut words);
    definition::all().iter().for_each(|definition| add_shape(&definition.shape, &mut words));
    let lines = words.iter().map(|word| format!("\"\\\"{word}\\\"\"\n"));
    let head = "# Made from wire/src/schema: `./test bless` writes it.\n";
    std::iter::once(head.to_owned()).chain(lines).collect()
}

fn add_fields(fields: &[FieldSpec], words: &mut BTreeSet<String>) {
    for field in fields {
        words.insert(field.name.to_owned());
        add_shape(&field.shape, words);
    }
}

/// Adds the words of a shape that libFuzzer would not find by itself. Examples of ids pass the parsers' first checks.
fn add_shape(shape: &JsonShape, words: &mut BTreeSet<String>) {
    match shape {
        JsonShape::Words(more) => words.extend(more.iter().cloned()),
        JsonShape::Text(text) => {
            words.extend(text.examples.iter().filter(|word| word.is_ascii()).map(|&word| word.to_owned()))
        }
        JsonShape::List(inner, _) | JsonShape::Nullable(inner) => add_shape(inner, words),
        JsonShape::Map { value, .. } => add_shape(value, words),
        JsonShape::OneOf(shapes) => shapes.iter().for_each(|shape| add_shape(shape, words)),
        JsonShape::Object(fields) => add_fields(fields, words),
        JsonShape::Any
        | JsonShape::NotNull
        | JsonShape::Flag
        | JsonShape::Integer(_)
        | JsonShape::Range(..)
        | JsonShape::OtherText(_)
        | JsonShape::Defined(_) => {}
    }
}
