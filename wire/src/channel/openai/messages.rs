//! Reads the messages of a call one after the other: the last one is the input, the others are the history. The contents of
//! `data:` URLs become files of the call's session, and the messages name these by their paths.
use super::call_ids::ChatCallIds;
use super::{ChatError, data_url};
use crate::channel::json::fields::Fields;
use crate::channel::json::malformed::MalformedReason;
use crate::channel::json::mention;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt;
use turnway_core::id::{BlobHash, SessionId};
use turnway_core::limits::{CHAT_CALL_BYTES_MAX, SESSION_BLOBS_MAX};
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::file_url::file_path;
use turnway_core::protocol::history::HistoryText;
use turnway_core::protocol::input::Content;
use turnway_core::protocol::refusal::Code;

/// Roles that a message may have.
const ROLES: [&str; 6] = ["system", "developer", "user", "assistant", "tool", "function"];
/// Longest name of a part's member that errors repeat.
const MEMBER_NAME_BYTES_MAX: usize = 32;

/// A file that a call brings along.
#[derive(Clone, PartialEq, Eq)]
pub struct ChatFile {
    /// As the client named it; not checked yet.
    pub media_type: String,
    pub bytes: Vec<u8>,
    /// The field of the request that contains the file, for errors.
    pub param: String,
}

/// The files of a call, by their names: files with the same bytes are one.
pub type ChatFiles = BTreeMap<BlobHash, ChatFile>;

/// The messages of a call while they are read.
pub(super) struct ChatMessageReader<'a> {
    session: &'a SessionId,
    /// The gateway keeps the conversation: earlier messages are checked and ignored.
    ignores_earlier: bool,
    count: usize,
    last: Option<Value>,
    messages: ReadMessages,
    error: Option<ChatError>,
}

/// The messages of a call.
#[derive(Default)]
pub(super) struct ReadMessages {
    pub(super) earlier: HistoryText,
    pub(super) files: ChatFiles,
}

impl fmt::Debug for ChatFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{} bytes>", self.bytes.len())
    }
}

// === impl ChatMessageReader ===

impl<'a> ChatMessageReader<'a> {
    /// Creates a reader for the messages of a call with these ids.
    pub(super) fn new(name: &'a ChatCallIds) -> Self {
        Self {
            session: &name.session,
            ignores_earlier: name.in_session,
            count: 0,
            last: None,
            messages: ReadMessages::default(),
            error: None,
        }
    }

    /// Takes the next message. After the first error, messages are ignored.
    pub(super) fn push(&mut self, message: Value) {
        if self.error.is_some() {
            return;
        }
        if let Some(earlier) = self.last.replace(message) {
            self.error = self.take_earlier(self.count - 1, earlier).err();
        }
        self.count += 1;
    }

    /// Returns the content of the last message, and all that the messages contain besides.
    pub(super) fn finish(mut self) -> Result<(Content, ReadMessages), ChatError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let Some(mut question) = self.last.take() else {
            return Err(ChatError::invalid_field("messages", "messages: at least one message is required"));
        };
        let last = self.count - 1;
        check(last, &question)?;
        if question.as_object().and_then(role) != Some("user") {
            let why = "the last message must have the role user";
            return Err(ChatError::invalid_field(field(last, "role"), why));
        }
        self.take_files(last, &mut question)?;
        let content = question.get_mut("content").map(Value::take).unwrap_or_default();
        match mention::parse_content(content) {
            Ok(content) => Ok((content, self.messages)),
            Err(MalformedReason::EmptyContent) => {
                Err(ChatError::invalid_field(field(last, "content"), "the last message is empty"))
            }
            Err(_) => Err(invalid_field(last, "content")),
        }
    }

    fn take_earlier(&mut self, n: usize, mut message: Value) -> Result<(), ChatError> {
        check(n, &message)?;
        if self.ignores_earlier {
            return Ok(());
        }
        if !planted(Planted::EarlierDataUrlKept) {
            self.take_files(n, &mut message)?;
        }
        self.messages.earlier.push(&message);
        // Paths may be longer than the URLs that they replace.
        if self.messages.earlier.len() > CHAT_CALL_BYTES_MAX {
            let why = format!("the earlier messages exceed the limit of {CHAT_CALL_BYTES_MAX} bytes");
            return Err(ChatError::context_too_long(why));
        }
        Ok(())
    }

    /// Takes the files out of a message's parts, and puts their paths in place of them.
    fn take_files(&mut self, n: usize, message: &mut Value) -> Result<(), ChatError> {
        let Some(Value::Array(parts)) = message.get_mut("content") else { return Ok(()) };
        for (m, part) in parts.iter_mut().enumerate() {
            let members = part.as_object_mut().into_iter().flatten();
            for (name, member) in members {
                let Value::Object(fields) = member else { continue };
                let key = if is_data_url(fields, "url") {
                    "url"
                } else if name == "file" && is_data_url(fields, "file_data") {
                    "file_data"
                } else {
                    continue;
                };
                let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
                let is_plain = name.len() <= MEMBER_NAME_BYTES_MAX && name.bytes().all(is_name);
                let part = field(n, "content");
                let param = if is_plain { format!("{part}[{m}].{name}.{key}") } else { format!("{part}[{m}]") };
                self.take_file(fields, key, param)?;
            }
        }
        Ok(())
    }

    fn take_file(&mut self, fields: &mut Fields, key: &str, param: String) -> Result<(), ChatError> {
        let Some(Value::String(url)) = fields.remove(key) else { return Ok(()) };
        if fields.contains_key("url") {
            let why = format!("{param}: a file has either file_data or a url");
            return Err(ChatError::invalid_field(param, why));
        }
        let Some(file) = data_url::parse(&url) else {
            let why = format!("{param}: expected data:MEDIA_TYPE;base64,DATA in the standard alphabet with padding");
            return Err(ChatError::invalid_field(param, why));
        };
        let hash = BlobHash::of(&file.bytes);
        fields.insert("url".to_owned(), file_path(self.session, &hash).into());
        let file = ChatFile { media_type: file.media_type, bytes: file.bytes, param };
        self.messages.files.entry(hash).or_insert(file);
        if self.messages.files.len() > SESSION_BLOBS_MAX {
            let why = format!("a session has at most {SESSION_BLOBS_MAX} files");
            return Err(ChatError::new(Code::QuotaExceeded, why).with_param("messages").not_retryable());
        }
        Ok(())
    }
}

/// Returns whether a field is a `data:` URL.
fn is_data_url(fields: &Fields, key: &str) -> bool {
    fields.get(key).and_then(Value::as_str).is_some_and(data_url::is_data_url)
}

/// Checks a message's role and the form of its content; everything else is left to the agent.
fn check(n: usize, message: &Value) -> Result<(), ChatError> {
    let not_object = || ChatError::invalid_field(format!("messages[{n}]"), "each message must be a JSON object");
    let message = message.as_object().ok_or_else(not_object)?;
    let role = role(message).filter(|role| ROLES.contains(role)).ok_or_else(|| invalid_field(n, "role"))?;
    let part = |part: &Value| part.get("type").is_some_and(Value::is_string);
    let good = match message.get("content") {
        Some(Value::String(_)) => true,
        Some(Value::Array(parts)) => parts.iter().all(part),
        // A message that called tools or functions may have no content.
        Some(Value::Null) | None => role == "assistant" || role == "function",
        Some(Value::Bool(_) | Value::Number(_) | Value::Object(_)) => false,
    };
    if good { Ok(()) } else { Err(invalid_field(n, "content")) }
}

fn role(message: &Map<String, Value>) -> Option<&str> {
    message.get("role").and_then(Value::as_str)
}

fn field(n: usize, name: &str) -> String {
    format!("messages[{n}].{name}")
}

fn invalid_field(n: usize, name: &str) -> ChatError {
    let field = field(n, name);
    ChatError::invalid_field(field.clone(), format!("field has the wrong type or format: {field}"))
}
