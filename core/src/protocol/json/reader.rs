//! A JSON reader for untrusted text: one pass, bounded, keeps every number exactly and accepts lone surrogates.
//! `serde_json` turns long numbers into floats and refuses `1e400` and `"\ud83d"`.
use super::number;
use crate::limits::{JSON_DEPTH_MAX, JSON_NODES_MAX, JSON_NUMBER_BYTES_MAX};
use serde_json::{Map, Value};

/// A prefix of keys that `serde_json` and this crate reserve; no peer may use such a key.
pub const RESERVED: &str = "$serde_json::private::";

/// Depth limit for stored JSON: as deep as `serde_json` reads, and deeper than any peer may nest.
const STORED_DEPTH_MAX: usize = 128;

/// The reason why a text is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadJson {
    /// The text is not JSON.
    Syntax,
    /// The nesting is deeper than permitted.
    TooDeep,
    /// There are more values than permitted.
    TooManyValues,
    /// One object has a key twice: readers would disagree about which one counts.
    RepeatedKey,
    /// An object has a key that begins with [`RESERVED`].
    ReservedKey,
    /// A number is longer than [`JSON_NUMBER_BYTES_MAX`].
    LongNumber,
}

/// The limits for one text.
#[derive(Clone, Copy, Debug)]
struct JsonBounds {
    depth: usize,
    values: usize,
    number_bytes: usize,
    /// True if a repeated key is an error; otherwise its last value counts, as in `serde_json`.
    is_strict: bool,
}

/// Halves of surrogate pairs at the ends of a text: the other half may be in the previous or in the next piece.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SurrogateHalves {
    /// The low surrogate at the start of the text, replaced by U+FFFD in it.
    pub first: Option<u16>,
    /// The high surrogate at the end of the text, replaced by U+FFFD in it.
    pub last: Option<u16>,
}

/// Reads one value from a peer. A lone surrogate becomes U+FFFD.
pub fn read(text: &str) -> Result<Value, BadJson> {
    JsonReader::new(text, JsonBounds::for_peers()).read_document()
}

/// Reads one value like [`read`], and returns the surrogate halves at the ends of the text in its field `key`.
pub fn read_with_halves(text: &str, key: &str) -> Result<(Value, SurrogateHalves), BadJson> {
    let mut reader = JsonReader::new(text, JsonBounds::for_peers());
    reader.watched_key = Some(key);
    let value = reader.read_document()?;
    Ok((value, reader.halves))
}

/// Reads one value like [`read`], but for the list in the field `key` of the outermost object: the items go to `each`, one
/// after the other, and the list is empty in the value. Each item may have as many values as a whole text, so that a long
/// list needs memory for one item at a time.
pub fn read_items(text: &str, key: &str, each: &mut dyn FnMut(Value)) -> Result<Value, BadJson> {
    let mut reader = JsonReader::new(text, JsonBounds::for_peers());
    reader.watched_key = Some(key);
    reader.each = Some(each);
    reader.read_document()
}

/// Reads one value that this gateway wrote earlier.
pub(crate) fn read_stored(text: &str) -> Result<Value, BadJson> {
    JsonReader::new(text, JsonBounds::for_stores()).read_document()
}

struct JsonReader<'a> {
    text: &'a str,
    position: usize,
    values: usize,
    bounds: JsonBounds,
    /// The field of the outermost object whose surrogate halves are returned, or whose items go to `each`.
    watched_key: Option<&'a str>,
    halves: SurrogateHalves,
    each: Option<&'a mut dyn FnMut(Value)>,
}

// === impl JsonBounds ===

impl JsonBounds {
    fn for_peers() -> Self {
        let depth = JSON_DEPTH_MAX;
        let values = JSON_NODES_MAX;
        let number_bytes = JSON_NUMBER_BYTES_MAX;
        Self { depth, values, number_bytes, is_strict: true }
    }

    fn for_stores() -> Self {
        Self { depth: STORED_DEPTH_MAX, values: usize::MAX, number_bytes: usize::MAX, is_strict: false }
    }
}

// === impl JsonReader ===

impl<'a> JsonReader<'a> {
    fn new(text: &'a str, bounds: JsonBounds) -> Self {
        let halves = SurrogateHalves::default();
        Self { text, position: 0, values: 0, bounds, watched_key: None, halves, each: None }
    }

    fn read_document(&mut self) -> Result<Value, BadJson> {
        let value = self.value(1)?;
        if self.next_token().is_some() { Err(BadJson::Syntax) } else { Ok(value) }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.position).copied()
    }

    /// Skips white space and returns the next byte without consuming it.
    fn next_token(&mut self) -> Option<u8> {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.position += 1;
        }
        self.peek()
    }

    fn expect(&mut self, byte: u8) -> Result<(), BadJson> {
        if self.next_token() != Some(byte) {
            return Err(BadJson::Syntax);
        }
        self.position += 1;
        Ok(())
    }

    /// Reads a value; `depth` is its depth if it is a list or an object.
    fn value(&mut self, depth: usize) -> Result<Value, BadJson> {
        self.values += 1;
        if self.values > self.bounds.values {
            return Err(BadJson::TooManyValues);
        }
        match self.next_token().ok_or(BadJson::Syntax)? {
            b'"' => Ok(Value::String(self.string()?.0)),
            b'{' | b'[' if depth > self.bounds.depth => Err(BadJson::TooDeep),
            b'{' => self.object(depth).map(Value::Object),
            b'[' => self.list(depth).map(Value::Array),
            b't' => self.keyword("true", Value::Bool(true)),
            b'f' => self.keyword("false", Value::Bool(false)),
            b'n' => self.keyword("null", Value::Null),
            b'-' | b'0'..=b'9' => self.number(),
            _ => Err(BadJson::Syntax),
        }
    }

    fn keyword(&mut self, keyword: &str, value: Value) -> Result<Value, BadJson> {
        if !self.text.as_bytes()[self.position..].starts_with(keyword.as_bytes()) {
            return Err(BadJson::Syntax);
        }
        self.position += keyword.len();
        Ok(value)
    }

    fn list(&mut self, depth: usize) -> Result<Vec<Value>, BadJson> {
        let mut list = Vec::new();
        self.expect(b'[')?;
        if self.next_token() == Some(b']') {
            self.position += 1;
            return Ok(list);
        }
        loop {
            list.push(self.value(depth + 1)?);
            match self.next_token() {
                Some(b',') => self.position += 1,
                Some(b']') => {
                    self.position += 1;
                    return Ok(list);
                }
                Some(_) | None => return Err(BadJson::Syntax),
            }
        }
    }

    fn object(&mut self, depth: usize) -> Result<Map<String, Value>, BadJson> {
        let mut map = Map::new();
        self.expect(b'{')?;
        if self.next_token() == Some(b'}') {
            self.position += 1;
            return Ok(map);
        }
        loop {
            if self.next_token() != Some(b'"') {
                return Err(BadJson::Syntax);
            }
            let (key, _) = self.string()?;
            if key.starts_with(RESERVED) {
                return Err(BadJson::ReservedKey);
            }
            // Checked before the value is read, since the repeated value itself may be large.
            if self.bounds.is_strict && map.contains_key(&key) {
                return Err(BadJson::RepeatedKey);
            }
            self.expect(b':')?;
            let value = if depth == 1 && self.watched_key == Some(key.as_str()) {
                self.watched_value(depth)?
            } else {
                self.value(depth + 1)?
            };
            map.insert(key, value);
            match self.next_token() {
                Some(b',') => self.position += 1,
                Some(b'}') => {
                    self.position += 1;
                    return Ok(map);
                }
                Some(_) | None => return Err(BadJson::Syntax),
            }
        }
    }

    fn watched_value(&mut self, depth: usize) -> Result<Value, BadJson> {
        let first = self.next_token();
        if first == Some(b'[')
            && let Some(each) = self.each.take()
        {
            return self.items(depth + 1, each);
        }
        if first != Some(b'"') {
            return self.value(depth + 1);
        }
        let (text, halves) = self.string()?;
        self.values += 1;
        self.halves = halves;
        Ok(Value::String(text))
    }

    /// Reads a list, whose items go to `each`.
    fn items(&mut self, depth: usize, each: &mut dyn FnMut(Value)) -> Result<Value, BadJson> {
        let outside = self.values + 1;
        self.expect(b'[')?;
        if self.next_token() == Some(b']') {
            self.position += 1;
        } else {
            loop {
                self.values = 0;
                each(self.value(depth + 1)?);
                let next = self.next_token();
                self.position += 1;
                match next {
                    Some(b',') => {}
                    Some(b']') => break,
                    Some(_) | None => return Err(BadJson::Syntax),
                }
            }
        }
        self.values = outside;
        Ok(Value::Array(Vec::new()))
    }

    fn number(&mut self) -> Result<Value, BadJson> {
        let from = self.position;
        if self.peek() == Some(b'-') {
            self.position += 1;
        }
        let first = self.peek();
        let whole = self.digits()?;
        if whole > 1 && first == Some(b'0') {
            return Err(BadJson::Syntax);
        }
        if self.peek() == Some(b'.') {
            self.position += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.position += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.position += 1;
            }
            self.digits()?;
        }
        let literal = &self.text[from..self.position];
        if literal.len() > self.bounds.number_bytes {
            return Err(BadJson::LongNumber);
        }
        Ok(number::exact_number(literal))
    }

    /// Consumes at least one digit.
    fn digits(&mut self) -> Result<usize, BadJson> {
        let from = self.position;
        while let Some(b'0'..=b'9') = self.peek() {
            self.position += 1;
        }
        if self.position == from { Err(BadJson::Syntax) } else { Ok(self.position - from) }
    }

    fn string(&mut self) -> Result<(String, SurrogateHalves), BadJson> {
        self.expect(b'"')?;
        let from = self.position;
        let mut text = String::new();
        let mut halves = SurrogateHalves::default();
        loop {
            let rest = &self.text.as_bytes()[self.position..];
            let plain = rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..0x20));
            let plain = plain.ok_or(BadJson::Syntax)?;
            text.push_str(&self.text[self.position..self.position + plain]);
            self.position += plain;
            if plain > 0 {
                halves.last = None;
            }
            match self.peek() {
                Some(b'"') => {
                    self.position += 1;
                    return Ok((text, halves));
                }
                Some(b'\\') => {
                    let is_first = self.position == from;
                    self.position += 1;
                    self.escape(&mut text, &mut halves, is_first)?;
                }
                Some(_) | None => return Err(BadJson::Syntax),
            }
        }
    }

    fn escape(&mut self, text: &mut String, halves: &mut SurrogateHalves, is_first: bool) -> Result<(), BadJson> {
        let byte = self.peek().ok_or(BadJson::Syntax)?;
        self.position += 1;
        halves.last = None;
        text.push(match byte {
            b'"' => '"',
            b'\\' => '\\',
            b'/' => '/',
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let unit = self.hex()?;
                match unit {
                    0xD800..=0xDBFF => match self.low_surrogate()? {
                        Some(low) => join_surrogates(unit, low),
                        None => {
                            halves.last = Some(unit);
                            char::REPLACEMENT_CHARACTER
                        }
                    },
                    0xDC00..=0xDFFF => {
                        halves.first = is_first.then_some(unit).or(halves.first);
                        char::REPLACEMENT_CHARACTER
                    }
                    _ => char::from_u32(u32::from(unit)).unwrap_or(char::REPLACEMENT_CHARACTER),
                }
            }
            _ => return Err(BadJson::Syntax),
        });
        Ok(())
    }

    fn hex(&mut self) -> Result<u16, BadJson> {
        let digits = self.text.as_bytes().get(self.position..self.position + 4).ok_or(BadJson::Syntax)?;
        let mut unit = 0u16;
        for digit in digits {
            let digit = char::from(*digit).to_digit(16).ok_or(BadJson::Syntax)?;
            unit = unit << 4 | u16::try_from(digit).map_err(|_| BadJson::Syntax)?;
        }
        self.position += 4;
        Ok(unit)
    }

    /// Consumes the escape of a low surrogate, if one follows.
    fn low_surrogate(&mut self) -> Result<Option<u16>, BadJson> {
        let before = self.position;
        if !self.text.as_bytes()[self.position..].starts_with(b"\\u") {
            return Ok(None);
        }
        self.position += 2;
        let unit = self.hex()?;
        if (0xDC00..=0xDFFF).contains(&unit) {
            return Ok(Some(unit));
        }
        self.position = before;
        Ok(None)
    }
}

/// Returns the character of a surrogate pair.
pub fn join_surrogates(high: u16, low: u16) -> char {
    let mut units = char::decode_utf16([high, low]);
    units.next().and_then(Result::ok).unwrap_or(char::REPLACEMENT_CHARACTER)
}

#[cfg(test)]
mod tests;
