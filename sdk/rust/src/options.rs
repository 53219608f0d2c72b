//! Where to connect, and as whom.
use crate::backoff::Backoff;
use crate::error::ClientError;
use serde_json::Value;
use std::fmt;

/// The path of the WebSocket endpoint, where the address names none.
const PATH: &str = "/v1/connect";

/// Where to connect, and as whom.
#[derive(Clone)]
pub struct Options {
    /// `ws://host:port`; `http://` means the same. Without a path it is `/v1/connect`.
    pub url: String,
    /// The user, on a gateway without authentication.
    pub user_id: Option<String>,
    /// A credential.
    pub token: Option<String>,
    /// A credential of the simpler kind.
    pub api_key: Option<String>,
    /// What the gateway may know about this client, such as `{"app": "web"}`.
    pub client_meta: Option<Value>,
    /// The waits between reconnects.
    pub backoff: Backoff,
}

impl Options {
    /// With everything at its default.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            user_id: None,
            token: None,
            api_key: None,
            client_meta: None,
            backoff: Backoff::default(),
        }
    }
    /// As this user.
    #[must_use]
    pub fn user(mut self, user_id: impl Into<String>) -> Self {
        self.user_id = Some(user_id.into());
        self
    }
    /// With this credential.
    #[must_use]
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }
    /// The WebSocket address this comes to.
    pub fn endpoint(&self) -> Result<String, ClientError> {
        let bad = |why| ClientError::BadUrl { url: self.url.clone(), why };
        let (scheme, rest) =
            self.url.split_once("://").ok_or_else(|| bad("an address begins with ws:// or http://"))?;
        match scheme.to_ascii_lowercase().as_str() {
            "ws" | "http" => {}
            "wss" | "https" => return Err(bad("this client does not speak TLS yet; use ws://")),
            "quic" => return Err(bad("this client does not speak QUIC yet; use ws://")),
            _ => return Err(bad("an address begins with ws:// or http://")),
        }
        let (host, path) = rest.find(['/', '?']).map_or((rest, ""), |at| rest.split_at(at));
        if host.is_empty() || host.contains(['@', '#', ' ']) {
            return Err(bad("there is no host in it"));
        }
        match path {
            "" | "/" => Ok(format!("ws://{host}{PATH}")),
            path if path.starts_with('?') => Ok(format!("ws://{host}{PATH}{path}")),
            path => Ok(format!("ws://{host}{path}")),
        }
    }
}

impl fmt::Debug for Options {
    /// Without the credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("url", &self.url)
            .field("user_id", &self.user_id)
            .field("has_credential", &(self.token.is_some() || self.api_key.is_some()))
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let good = [
            ("ws://127.0.0.1:8080", "ws://127.0.0.1:8080/v1/connect"),
            ("http://host/", "ws://host/v1/connect"),
            ("WS://[::1]:80/a/b", "ws://[::1]:80/a/b"),
            ("ws://host?x=1", "ws://host/v1/connect?x=1"),
        ];
        for (url, endpoint) in good {
            assert_eq!(Options::new(url).endpoint().as_deref(), Ok(endpoint));
        }
        for (url, why) in [("wss://h", "TLS"), ("quic://h", "QUIC"), ("h:80", "begins"), ("ws:///x", "host")]
        {
            let error = Options::new(url).endpoint().expect_err("a bad address").to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn credentials_are_not_printed() {
        let options = Options::new("ws://h").token("canary-7f3a");
        assert!(!format!("{options:?}").contains("canary"));
    }
}
