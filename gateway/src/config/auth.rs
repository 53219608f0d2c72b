//! Who may come in, and what deciding that needs.
use super::Place;
use std::path::PathBuf;

/// Who may come in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Auth {
    /// How clients say who they are.
    pub mode: AuthMode,
    /// The file of the secret that keys are hashed with, and where it was named.
    pub pepper: Option<(PathBuf, Place)>,
    /// Whose tokens are good; where they are asked for.
    pub issuer: Option<Issuer>,
    /// Whether an address from which bad credentials come is not heard for a while.
    pub lockout: bool,
}

/// How clients say who they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AuthMode {
    /// They need not: whoever reaches the listener is somebody.
    #[default]
    None,
    /// By an API key.
    Keys,
    /// By a token of an identity provider.
    Jwt,
    /// By either.
    KeysAndJwt,
}

/// Which tokens are good, and where the keys are that they are held against.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issuer {
    /// `iss`, exactly.
    pub name: String,
    /// One of `aud`, exactly.
    pub audience: String,
    /// How they may be signed.
    pub algorithms: Vec<Algorithm>,
    /// Its keys.
    pub jwks: Jwks,
}

/// Where a provider's keys are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Jwks {
    /// There; `https://`, or `http://` on this machine.
    Url(String),
    /// In a file, which somebody keeps up to date.
    File(PathBuf),
}

/// How a token may be signed: by whoever has a secret that nobody here has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Algorithm {
    /// RSA with SHA-256.
    Rs256,
    /// ECDSA on P-256.
    Es256,
    /// Ed25519.
    EdDsa,
}

// === impl AuthMode ===

impl AuthMode {
    /// Reads it.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self::None),
            "keys" => Ok(Self::Keys),
            "jwt" => Ok(Self::Jwt),
            "keys+jwt" => Ok(Self::KeysAndJwt),
            _ => Err("expected none, keys, jwt or keys+jwt".into()),
        }
    }

    /// Whether keys open anything.
    pub fn takes_keys(self) -> bool {
        match self {
            Self::Keys | Self::KeysAndJwt => true,
            Self::None | Self::Jwt => false,
        }
    }

    /// Whether tokens open anything.
    pub fn takes_tokens(self) -> bool {
        match self {
            Self::Jwt | Self::KeysAndJwt => true,
            Self::None | Self::Keys => false,
        }
    }
}

// === impl Algorithm ===

impl Algorithm {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Rs256, Self::Es256, Self::EdDsa];

    /// As tokens and configurations write it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Rs256 => "RS256",
            Self::Es256 => "ES256",
            Self::EdDsa => "EdDSA",
        }
    }

    /// Reads it; exactly so.
    pub fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.word() == word)
    }

    /// Reads several, with commas between them.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, String> {
        let all = text.split(',').map(|word| Self::named(word.trim())).collect::<Option<Vec<_>>>();
        all.ok_or_else(|| "expected some of RS256, ES256 and EdDSA".to_owned())
    }
}

// === impl Jwks ===

impl Jwks {
    /// Reads a URL or a file's name.
    pub fn parse(text: &str) -> Result<Self, String> {
        let Some((scheme, rest)) = text.split_once("://") else {
            return if text.is_empty() {
                Err("expected a URL or a file's name".into())
            } else {
                Ok(Self::File(text.into()))
            };
        };
        let uri: http::Uri = text.parse().map_err(|_| "this is no URL")?;
        let host = uri.host().unwrap_or_default();
        let is_loopback = |ip: std::net::Ipv4Addr| ip.is_loopback();
        let is_here = matches!(host, "localhost" | "[::1]") || host.parse().is_ok_and(is_loopback);
        match scheme {
            _ if rest.contains('@') || host.is_empty() => Err("expected https://HOST/PATH".into()),
            "https" => Ok(Self::Url(text.to_owned())),
            "http" if is_here => Ok(Self::Url(text.to_owned())),
            "http" => Err("expected https://: whoever is between could put keys of their own there".into()),
            _ => Err("expected https://HOST/PATH, or a file's name".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_from_where_nobody_else_can_put_them() {
        for good in ["https://id.example.com/keys", "http://127.0.0.1:8080/jwks", "http://localhost/jwks"] {
            assert_eq!(Jwks::parse(good), Ok(Jwks::Url(good.to_owned())));
        }
        assert_eq!(Jwks::parse("/etc/jwks.json"), Ok(Jwks::File("/etc/jwks.json".into())));
        for bad in [
            "",
            "http://id.example.com/keys",
            "http://127.evil.example/",
            "ftp://h/k",
            "https://",
            "https://u:p@h/k",
            "https://a b/",
        ] {
            assert!(Jwks::parse(bad).is_err(), "{bad}");
        }
        assert_eq!(Algorithm::parse_list("ES256, EdDSA"), Ok(vec![Algorithm::Es256, Algorithm::EdDsa]));
        for bad in ["", "HS256", "none", "es256", "RS256,"] {
            assert!(Algorithm::parse_list(bad).is_err(), "{bad}");
        }
    }
}
