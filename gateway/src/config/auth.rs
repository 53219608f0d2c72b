//! Settings of authentication: credentials that clients may use, and the data needed to verify them.
use super::SettingLocation;
use std::path::PathBuf;

/// Authentication of clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuthConfig {
    /// Accepted kinds of credentials.
    pub mode: AuthMode,
    /// File of the secret that keys are hashed with, and the place that names it.
    pub pepper: Option<(PathBuf, SettingLocation)>,
    /// Issuer of accepted tokens, if tokens are accepted.
    pub issuer: Option<IssuerConfig>,
    /// True if an address that sends bad credentials is locked out for a while.
    pub lockout: bool,
}

/// The kinds of credentials that clients may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AuthMode {
    /// None needed: everybody who reaches the listener is served.
    #[default]
    None,
    /// An API key.
    Keys,
    /// A token of an identity provider.
    Jwt,
    /// An API key or a token.
    KeysAndJwt,
}

/// An issuer of accepted tokens, and the source of its public keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuerConfig {
    /// Required value of `iss`, compared exactly.
    pub name: String,
    /// Required value in `aud`, compared exactly.
    pub audience: String,
    /// Accepted signature algorithms.
    pub algorithms: Vec<SignatureAlgorithm>,
    /// Source of the public keys.
    pub jwks: JwksSource,
}

/// The source of a provider's public keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JwksSource {
    /// A URL: `https://`, or `http://` on this machine.
    Url(String),
    /// A file that somebody keeps up to date.
    File(PathBuf),
}

/// A signature algorithm of tokens. All are asymmetric, so a verifier cannot sign tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SignatureAlgorithm {
    /// RSA with SHA-256.
    Rs256,
    /// ECDSA on P-256.
    Es256,
    EdDsa,
}

// === impl AuthMode ===

impl AuthMode {
    /// Parses a mode.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self::None),
            "keys" => Ok(Self::Keys),
            "jwt" => Ok(Self::Jwt),
            "keys+jwt" => Ok(Self::KeysAndJwt),
            _ => Err("expected none, keys, jwt or keys+jwt".into()),
        }
    }

    /// Returns whether API keys are accepted.
    pub fn takes_keys(self) -> bool {
        match self {
            Self::Keys | Self::KeysAndJwt => true,
            Self::None | Self::Jwt => false,
        }
    }

    /// Returns whether tokens are accepted.
    pub fn takes_tokens(self) -> bool {
        match self {
            Self::Jwt | Self::KeysAndJwt => true,
            Self::None | Self::Keys => false,
        }
    }
}

// === impl SignatureAlgorithm ===

impl SignatureAlgorithm {
    /// All algorithms, in the order of the documentation.
    pub const ALL: [Self; 3] = [Self::Rs256, Self::Es256, Self::EdDsa];

    /// Returns the name in tokens and configurations.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rs256 => "RS256",
            Self::Es256 => "ES256",
            Self::EdDsa => "EdDSA",
        }
    }

    /// Returns the algorithm with exactly this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.as_str() == name)
    }

    /// Parses names with commas between them.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, String> {
        let all = text.split(',').map(|name| Self::from_name(name.trim())).collect::<Option<Vec<_>>>();
        all.ok_or_else(|| "expected some of RS256, ES256 and EdDSA".to_owned())
    }
}

// === impl JwksSource ===

impl JwksSource {
    /// Parses a URL or the name of a file.
    pub fn parse(text: &str) -> Result<Self, String> {
        let Some((scheme, rest)) = text.split_once("://") else {
            return if text.is_empty() {
                Err("expected a URL or a file's name".into())
            } else {
                Ok(Self::File(text.into()))
            };
        };
        let uri: http::Uri = text.parse().map_err(|_| "not a URL")?;
        let host = uri.host().unwrap_or_default();
        let is_loopback = |ip: std::net::Ipv4Addr| ip.is_loopback();
        let is_here = matches!(host, "localhost" | "[::1]") || host.parse().is_ok_and(is_loopback);
        match scheme {
            _ if rest.contains('@') || host.is_empty() => Err("expected https://HOST/PATH".into()),
            "https" => Ok(Self::Url(text.to_owned())),
            "http" if is_here => Ok(Self::Url(text.to_owned())),
            "http" => Err("expected https://: over http:// an attacker on the network could replace the keys".into()),
            _ => Err("expected https://HOST/PATH, or a file's name".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jwks_source_must_be_https_loopback_or_a_file() {
        for good in ["https://id.example.com/keys", "http://127.0.0.1:8080/jwks", "http://localhost/jwks"] {
            assert_eq!(JwksSource::parse(good), Ok(JwksSource::Url(good.to_owned())));
        }
        assert_eq!(JwksSource::parse("/etc/jwks.json"), Ok(JwksSource::File("/etc/jwks.json".into())));
        for bad in [
            "",
            "http://id.example.com/keys",
            "http://127.evil.example/",
            "ftp://h/k",
            "https://",
            "https://u:p@h/k",
            "https://a b/",
        ] {
            assert!(JwksSource::parse(bad).is_err(), "{bad}");
        }
        assert_eq!(
            SignatureAlgorithm::parse_list("ES256, EdDSA"),
            Ok(vec![SignatureAlgorithm::Es256, SignatureAlgorithm::EdDsa])
        );
        for bad in ["", "HS256", "none", "es256", "RS256,"] {
            assert!(SignatureAlgorithm::parse_list(bad).is_err(), "{bad}");
        }
    }
}
