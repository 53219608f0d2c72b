//! What is said first on every connection. It holds the credential, so it is never printed.
use crate::options::Options;
use serde_json::{Value, json};
use std::fmt;

/// `hello`, without `resume`.
#[derive(Clone)]
pub(crate) struct Hello(Value);

impl Hello {
    /// As these options have it.
    pub(crate) fn of(options: &Options) -> Self {
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

    /// A message of its own, to add to.
    pub(crate) fn message(&self) -> Value {
        self.0.clone()
    }

    /// From now on it shows this token; what says so on a connection that stands.
    pub(crate) fn refresh(&mut self, token: String) -> Value {
        let refresh = json!({ "type": "refresh", "ts": 0, "token": &token });
        self.0["token"] = token.into();
        refresh
    }

    /// The token it shows, said on a connection that stands.
    pub(crate) fn again(&self) -> Value {
        json!({ "type": "refresh", "ts": 0, "token": self.0["token"] })
    }
}

impl fmt::Debug for Hello {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<hello>")
    }
}
