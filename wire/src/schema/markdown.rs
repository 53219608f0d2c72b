//! Renders the rows of messages, facts and shapes as the tables of docs/messages.md. Called by the test that writes them.
use super::shape::{FieldSpec, JsonShape, TextShape};
use super::{MessageGroup, definition, fact};
use std::fmt::Write;

/// Returns the field tables of every group, of the facts and of the named shapes.
pub fn text() -> String {
    let mut text = String::new();
    for group in MessageGroup::ALL {
        let rows = group.messages().into_iter().map(|row| {
            let type_name = format!("`{}`", row.key().replacen('.', "` `", 1));
            let type_name = if row.variant.is_some() { type_name } else { format!("`{}`", row.kind) };
            let mut summary = row.summary.clone();
            let fields =
                row.fields.clone().into_iter().filter(|field| !(row.variant.is_some() && field.name == "name"));
            let is_optional = |name: &&str| row.fields.iter().any(|field| field.name == *name && !field.is_required);
            let alternatives = row.alternative_fields();
            if !alternatives.is_empty() && alternatives.iter().all(is_optional) {
                let names: Vec<String> = alternatives.iter().map(|name| format!("`{name}`")).collect();
                let _ = write!(summary, " At least one of {} is present.", names.join(", "));
            }
            (type_name, summary, fields.collect())
        });
        table(&mut text, group.title(), "type", rows.collect());
    }
    let rows = fact::rows().into_iter().map(|row| (format!("`{}`", row.name), row.summary.to_owned(), row.fields));
    table(&mut text, "Data of facts", "fact", rows.collect());
    let rows = definition::all().into_iter().map(|named| {
        let (shape, fields) = if let JsonShape::Object(fields) = named.shape {
            (String::new(), fields)
        } else {
            (format!(" {}", sentence(&named.shape)), Vec::new())
        };
        (format!("*{}*", named.name), format!("{}{shape}", named.summary), fields)
    });
    table(&mut text, "Named shapes", "shape", rows.collect());
    text
}

/// Writes one table: a line for each row, and a line for each of its fields.
fn table(text: &mut String, title: &str, first: &str, rows: Vec<(String, String, Vec<FieldSpec>)>) {
    let _ = writeln!(text, "\n### {title}\n\n| {first} | field | value | |\n|---|---|---|---|");
    for (name, summary, fields) in rows {
        let _ = writeln!(text, "| {name} | | | {} |", cell(&summary));
        let is_frame = |field: &&FieldSpec| !matches!(field.name, "ts" | "request_id") || first != "type";
        for field in fields.iter().filter(is_frame) {
            let mark = if field.is_required { "" } else { "?" };
            let limit = field.json_bytes_max.map(|max| format!(" At most {max} bytes as JSON."));
            let description = format!("{}{}", field.description, limit.unwrap_or_default());
            let _ = writeln!(
                text,
                "| | `{}`{mark} | {} | {} |",
                field.name,
                cell(&brief(&field.shape)),
                cell(description.trim())
            );
        }
    }
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

/// Returns a sentence on a named shape that is no object.
fn sentence(shape: &JsonShape) -> String {
    let brief = brief(shape);
    let mut letters = brief.chars();
    letters.next().map_or(String::new(), |first| format!("{}{}.", first.to_uppercase(), letters.as_str()))
}

/// Returns a few words on a shape.
fn brief(shape: &JsonShape) -> String {
    match shape {
        JsonShape::Any => "any value".to_owned(),
        JsonShape::NotNull => "any value but `null`".to_owned(),
        JsonShape::Flag => "boolean".to_owned(),
        JsonShape::Integer(max) if *max == u64::from(u32::MAX) => "integer below 2^32".to_owned(),
        JsonShape::Integer(_) => "integer".to_owned(),
        JsonShape::Range(min, max) => format!("integer from {min} to {max}"),
        JsonShape::Text(text) => brief_text(text),
        JsonShape::Words(words) => words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", "),
        JsonShape::OtherText(_) => "another text".to_owned(),
        JsonShape::List(item, None) => format!("list of {}", brief(item)),
        JsonShape::List(item, Some(max)) => format!("list of at most {max}: {}", brief(item)),
        JsonShape::Object(fields) => {
            let name = |field: &FieldSpec| format!("`{}`{}", field.name, if field.is_required { "" } else { "?" });
            format!("object {{{}}}", fields.iter().map(name).collect::<Vec<_>>().join(", "))
        }
        JsonShape::Map { key, value, entries_max } => {
            format!("object of at most {entries_max}: *{key}* to {}", brief(value))
        }
        JsonShape::OneOf(shapes) => shapes.iter().map(brief).collect::<Vec<_>>().join(", or "),
        JsonShape::Nullable(shape) => format!("{}, or `null`", brief(shape)),
        JsonShape::Defined(name) => format!("*{name}*"),
    }
}

fn brief_text(text: &TextShape) -> String {
    match (text.pattern.as_deref(), text.bytes_max) {
        (Some(_), Some(max)) if text.examples.contains(&"ann") => format!("1 to {max} bytes of printable text"),
        (Some(pattern), None) => format!("text `{pattern}`"),
        (Some(pattern), Some(max)) => format!("text `{pattern}` of at most {max} bytes"),
        (None, Some(max)) => format!("text of at most {max} bytes"),
        (None, None) => "text".to_owned(),
    }
}
