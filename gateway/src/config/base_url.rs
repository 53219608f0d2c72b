//! Checks the base URL of a server that the operator configured: an agent, or an upstream of models. Its messages never
//! repeat the URL, which may hold a secret.
use http::Uri;

/// The base URL of a server, without a slash at its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BaseUrl {
    text: String,
    is_https: bool,
}

// === impl BaseUrl ===

impl BaseUrl {
    /// Parses an `http` or `https` URL without credentials, query and fragment.
    pub fn parse(url: &str) -> Result<Self, &'static str> {
        if url.contains(['?', '#']) {
            return Err("a query or a fragment cannot be part of a base URL");
        }
        let base: Uri = url.parse().map_err(|_| "not a URL")?;
        if !matches!(base.scheme_str(), Some("http" | "https")) {
            return Err("the URL must begin with http:// or https://");
        }
        let authority = base.authority().ok_or("the URL has no host")?;
        if authority.as_str().contains('@') {
            return Err("user and password do not belong in a URL");
        }
        if authority.host().is_empty() {
            return Err("the URL has no host");
        }
        Ok(Self { text: url.trim_end_matches('/').to_owned(), is_https: base.scheme_str() == Some("https") })
    }

    /// Returns the URL of a path below the base; `path` has no slash at its beginning.
    pub fn join(&self, path: &str) -> Result<Uri, &'static str> {
        format!("{}/{path}", self.text).parse().map_err(|_| "not a URL")
    }

    /// Returns the URL as text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns whether the server needs TLS.
    pub fn is_https(&self) -> bool {
        self.is_https
    }
}
