//! Numbers that JSON allows and `serde_json` rejects: an agent may send `1e400`, and the gateway passes it on. Used
//! when a message cannot be parsed.

/// Replaces each number that is too large for a double by a JSON string of that number.
pub(crate) fn large_as_text(json: &str) -> String {
    let mut out = String::with_capacity(json.len() + 2);
    let mut rest = json;
    while let Some(at) = rest.find(|c: char| c == '"' || c == '-' || c.is_ascii_digit()) {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let is_string = rest.starts_with('"');
        let end = if is_string { string_end(rest) } else { number_end(rest) };
        let (token, after) = rest.split_at(end);
        let is_large = !is_string && token.parse::<f64>().is_ok_and(f64::is_infinite);
        out.push_str(&if is_large { format!("\"{token}\"") } else { token.to_owned() });
        rest = after;
    }
    out.push_str(rest);
    out
}

/// Returns the end of the string at the beginning of `text`.
fn string_end(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

fn number_end(text: &str) -> usize {
    let is_of_it = |c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.' | 'e' | 'E');
    text.find(|c| !is_of_it(c)).unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_beyond_f64_become_text() {
        let json = r#"{"a":1e400,"b":[-1E+999,7,-0.5,1e-400],"c":"1e400 \" 1e400","d\\":1e308}"#;
        let read = r#"{"a":"1e400","b":["-1E+999",7,-0.5,1e-400],"c":"1e400 \" 1e400","d\\":1e308}"#;
        assert_eq!(large_as_text(json), read);
        for text in ["", "-", "\"", "\"\\", "[1e400", "é1e400é"] {
            assert_eq!(large_as_text(text), text.replace("1e400", "\"1e400\""), "{text}");
        }
    }
}
