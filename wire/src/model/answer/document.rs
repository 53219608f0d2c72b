//! Reads an answer that is one JSON document beside its relay: its end, and the members of the outermost object that
//! tell something. Must not keep the rest: embeddings of many texts have tens of megabytes before their usage.
use super::super::CallFormat;
use super::super::json_text::has_content;
use super::super::limits::{ANSWER_COPY_BYTES_MAX, ANSWER_OPENING_BYTES_MAX};
use super::super::usage::UsageCounts;
use super::{AnswerEnd, AnswerOpening};

/// Bytes of a name that are kept: more than the longest name that is read has, with its quotes.
const NAME_BYTES_MAX: usize = 16;
/// Bytes of a list that are kept: enough to see that the list is not empty.
const LIST_BYTES_MAX: usize = 2;

/// A reader of a document.
#[derive(Debug)]
pub(super) struct DocumentReader {
    format: CallFormat,
    /// Number of open objects and lists.
    depth: usize,
    is_in_text: bool,
    is_after_backslash: bool,
    form: DocumentForm,
    is_complete: bool,
    /// Total length so far.
    length: usize,
    /// True after the colon of a member of the outermost object.
    is_in_value: bool,
    /// Name of the member, with quotes and without more than [`NAME_BYTES_MAX`].
    name: Vec<u8>,
    value: Vec<u8>,
    /// Number of bytes of the value that are kept: 0 for a member that is not read.
    value_bytes_max: usize,
    is_value_cut: bool,
    pub(super) counts: UsageCounts,
    pub(super) opening: AnswerOpening,
    pub(super) has_token: bool,
    has_failed: bool,
}

/// Forms of a document, by its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DocumentForm {
    /// Nothing but white space, or a byte order mark.
    Blank,
    Object,
    List,
    /// Something without an end of its own, such as a page of HTML.
    Foreign,
}

// === impl DocumentReader ===

impl DocumentReader {
    pub(super) fn new(format: CallFormat) -> Self {
        Self {
            format,
            depth: 0,
            is_in_text: false,
            is_after_backslash: false,
            form: DocumentForm::Blank,
            is_complete: false,
            length: 0,
            is_in_value: false,
            name: Vec::new(),
            value: Vec::new(),
            value_bytes_max: 0,
            is_value_cut: false,
            counts: UsageCounts::default(),
            opening: AnswerOpening::Undecided,
            has_token: false,
            has_failed: false,
        }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.length += 1;
            if self.is_in_text {
                self.take_text(*byte);
            } else if !self.is_complete && self.form != DocumentForm::Foreign {
                self.take_structure(*byte);
            }
            if self.length == ANSWER_OPENING_BYTES_MAX {
                self.decide(AnswerOpening::Answer);
            }
        }
    }

    pub(super) fn end(&self) -> AnswerEnd {
        if self.has_failed {
            AnswerEnd::Error
        } else if self.is_complete {
            AnswerEnd::Whole
        } else {
            AnswerEnd::Open
        }
    }

    fn take_text(&mut self, byte: u8) {
        self.keep(byte);
        if std::mem::take(&mut self.is_after_backslash) {
            return;
        }
        match byte {
            b'\\' => self.is_after_backslash = true,
            b'"' => self.is_in_text = false,
            _ => {}
        }
    }

    fn take_structure(&mut self, byte: u8) {
        match byte {
            b' ' | b'\t' | b'\n' | b'\r' => {}
            b'{' | b'[' => {
                self.depth += 1;
                if self.form == DocumentForm::Blank {
                    self.form = if byte == b'{' { DocumentForm::Object } else { DocumentForm::List };
                } else {
                    self.keep(byte);
                }
            }
            b'}' | b']' if self.depth == 1 => {
                self.end_member();
                self.depth = 0;
                self.is_complete = true;
                self.decide(AnswerOpening::Answer);
            }
            b'}' | b']' if self.depth > 1 => {
                self.keep(byte);
                self.depth -= 1;
            }
            0xef | 0xbb | 0xbf if self.form == DocumentForm::Blank => {}
            _ if self.depth == 0 => {
                self.form = DocumentForm::Foreign;
                self.decide(AnswerOpening::Answer);
            }
            b':' if self.depth == 1 && !self.is_in_value => self.begin_value(),
            b',' if self.depth == 1 => self.end_member(),
            _ => {
                self.is_in_text = byte == b'"';
                self.keep(byte);
            }
        }
    }

    /// Keeps a byte of a name or a value of the outermost object.
    fn keep(&mut self, byte: u8) {
        if self.form != DocumentForm::Object {
            return;
        }
        if self.is_in_value {
            if self.value.len() < self.value_bytes_max {
                self.value.push(byte);
                self.check_list();
            } else {
                self.is_value_cut = true;
            }
        } else if self.name.len() < NAME_BYTES_MAX {
            self.name.push(byte);
        }
    }

    fn begin_value(&mut self) {
        self.is_in_value = true;
        self.value_bytes_max = match self.name.as_slice() {
            b"\"choices\"" | b"\"output\"" | b"\"content\"" | b"\"data\"" => LIST_BYTES_MAX,
            b"\"usage\"" | b"\"error\"" | b"\"type\"" | b"\"object\"" | b"\"status\"" => ANSWER_COPY_BYTES_MAX,
            _ => 0,
        };
    }

    /// Takes a list that is not empty as an answer; members that may be texts are of other formats.
    fn check_list(&mut self) {
        if self.value_bytes_max == LIST_BYTES_MAX && self.value.len() == LIST_BYTES_MAX && self.value[0] == b'[' {
            self.has_token |= self.value[1] != b']';
            if self.has_token {
                self.decide(AnswerOpening::Answer);
            }
        }
    }

    fn end_member(&mut self) {
        let value = String::from_utf8_lossy(&self.value);
        match self.name.as_slice() {
            b"\"usage\"" if !self.is_value_cut => self.counts.read(&value),
            b"\"error\"" if has_content(&value) => self.fail(),
            b"\"type\"" | b"\"object\"" if value == "\"error\"" => self.fail(),
            b"\"status\"" if self.format == CallFormat::Responses && value == "\"failed\"" => self.fail(),
            _ => {}
        }
        self.name.clear();
        self.value.clear();
        self.value_bytes_max = 0;
        self.is_value_cut = false;
        self.is_in_value = false;
    }

    fn fail(&mut self) {
        self.has_failed = true;
        self.decide(AnswerOpening::Error);
    }

    fn decide(&mut self, opening: AnswerOpening) {
        if self.opening == AnswerOpening::Undecided {
            self.opening = opening;
        }
    }
}

#[cfg(test)]
mod tests;
