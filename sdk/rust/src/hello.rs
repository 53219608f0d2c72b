//! The first message on every connection. The message holds the credential, so it must never be logged.
use crate::options::Options;
use serde_json::{Value, json};
use std::fmt;

/// The `hello` message without `resume`.
#[derive(Clone)]
pub(crate) struct HelloTemplate(Value);

impl HelloTemplate {
    /// Creates the message from the options.
    pub(crate) fn from_options(options: &Options) -> Self {
        let mut hello = json!({ "type": "hello", "ts": 0, "role": "user" });
        let word = |word: &Option<String>| word.clone().map(Value::String);
        let fields = [
            ("user_id", word(&options.user_id)),
            ("token", word(&options.token)),
            ("api_key", word(&options.api_key)),
            ("client_meta", options.client_meta.clone()),
        ];
        for (key, value) in fields {
            if let Some(value) = value {
                hello[key] = value;
            }
        }
        Self(hello)
    }

    /// Returns a copy of the message, to which fields can be added.
    pub(crate) fn message(&self) -> Value {
        self.0.clone()
    }

    /// Replaces the token; returns the `refresh` message for an open connection.
    pub(crate) fn refresh(&mut self, token: String) -> Value {
        let refresh = json!({ "type": "refresh", "ts": 0, "token": &token });
        self.0["token"] = token.into();
        refresh
    }

    /// Returns a `refresh` message with the current token, for an open connection.
    pub(crate) fn refresh_message(&self) -> Value {
        json!({ "type": "refresh", "ts": 0, "token": self.0["token"] })
    }
}

impl fmt::Debug for HelloTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<hello>")
    }
}
