//! The options of a client: the gateway's address, the credentials, and the trusted certificates.
use crate::backoff::Backoff;
use crate::error::ClientError;
use serde_json::Value;
use std::fmt;

/// Path of the WebSocket endpoint if the address has none.
const PATH: &str = "/v1/connect";
/// QUIC port if the address has none.
const QUIC_PORT: u16 = 8443;

/// The options of a client.
#[derive(Clone)]
pub struct Options {
    /// `ws://host:port`, or `wss://host:port` with TLS; `http://` and `https://` mean the same. The default path is
    /// `/v1/connect`. `quic://host:port` is QUIC, which has no path.
    pub url: String,
    /// User id, for a gateway without authentication.
    pub user_id: Option<String>,
    /// Token that authenticates the client.
    pub token: Option<String>,
    /// API key that authenticates the client.
    pub api_key: Option<String>,
    /// Data about this client for the gateway, such as `{"app": "web"}`.
    pub client_meta: Option<Value>,
    /// PEM certificates to trust in TLS and QUIC, instead of the system's.
    pub ca: Option<Vec<u8>>,
    /// Delays between reconnects.
    pub backoff: Backoff,
}

impl Options {
    /// Creates options with all other values at their defaults.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            user_id: None,
            token: None,
            api_key: None,
            client_meta: None,
            ca: None,
            backoff: Backoff::default(),
        }
    }
    /// Sets the user id.
    #[must_use]
    pub fn user(mut self, user_id: impl Into<String>) -> Self {
        self.user_id = Some(user_id.into());
        self
    }
    /// Sets the token.
    #[must_use]
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }
    /// Trusts only these PEM certificates.
    #[must_use]
    pub fn ca(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.ca = Some(pem.into());
        self
    }
    /// Returns whether the address is a QUIC address.
    pub(crate) fn is_quic(&self) -> bool {
        self.endpoint().is_ok_and(|endpoint| endpoint.starts_with("quic:"))
    }
    /// Returns the normalised address.
    pub fn endpoint(&self) -> Result<String, ClientError> {
        let bad = |why| ClientError::BadUrl { url: self.url.clone(), why };
        let no_address = "the URL must begin with ws://, wss:// or quic://";
        let (scheme, rest) = self.url.split_once("://").ok_or_else(|| bad(no_address))?;
        let scheme = match scheme.to_ascii_lowercase().as_str() {
            "ws" | "http" => "ws",
            "wss" | "https" => "wss",
            "quic" => "quic",
            _ => return Err(bad(no_address)),
        };
        let (host, path) = rest.find(['/', '?']).map_or((rest, ""), |at| rest.split_at(at));
        if host.is_empty() || host.contains(['@', '#', ' ']) {
            return Err(bad("the URL has no host"));
        }
        match path {
            "" | "/" if scheme == "quic" => {
                // The text behind the last colon is a port, unless it is part of an IPv6 address.
                let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
                let is_whole = has_port && host.rsplit_once(':').is_some_and(|(_, it)| it.parse::<u16>().is_ok());
                match (has_port, is_whole) {
                    (true, true) => Ok(format!("quic://{host}")),
                    (true, false) => Err(bad("the port is not a number from 0 to 65535")),
                    (false, _) => Ok(format!("quic://{host}:{QUIC_PORT}")),
                }
            }
            _ if scheme == "quic" => Err(bad("a quic:// URL must have no path")),
            "" | "/" => Ok(format!("{scheme}://{host}{PATH}")),
            path if path.starts_with('?') => Ok(format!("{scheme}://{host}{PATH}{path}")),
            path => Ok(format!("{scheme}://{host}{path}")),
        }
    }
}

impl fmt::Debug for Options {
    /// Omits the credentials.
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
    fn gateway_url_is_parsed() {
        let good = [
            ("ws://127.0.0.1:8080", "ws://127.0.0.1:8080/v1/connect"),
            ("http://host/", "ws://host/v1/connect"),
            ("WS://[::1]:80/a/b", "ws://[::1]:80/a/b"),
            ("ws://host?x=1", "ws://host/v1/connect?x=1"),
            ("wss://host", "wss://host/v1/connect"),
            ("https://host:1/a", "wss://host:1/a"),
            ("quic://host", "quic://host:8443"),
            ("quic://host:1/", "quic://host:1"),
            ("quic://[::1]", "quic://[::1]:8443"),
            ("quic://[::1]:9", "quic://[::1]:9"),
        ];
        for (url, endpoint) in good {
            assert_eq!(Options::new(url).endpoint().as_deref(), Ok(endpoint));
        }
        for (url, why) in [
            ("ftp://h", "begin with"),
            ("quic://h/a", "no path"),
            ("quic://h:x", "port"),
            ("h:80", "begin with"),
            ("wss:///x", "host"),
        ] {
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
