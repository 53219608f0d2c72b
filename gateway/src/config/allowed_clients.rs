//! Host names that a node answers to, and web origins that may connect to it.
use std::fmt;

/// Maximum entries of a list; lists are typed by people.
const LIST_MAX: usize = 64;
/// Maximum length of a DNS name.
const NAME_BYTES_MAX: usize = 255;

/// Host names that a node answers to (`Host` header).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowedHosts {
    /// Any name: a proxy in front has checked the name.
    Any,
    /// Only these names.
    Named(Vec<HostName>),
}

/// A host name or IP address, with a port or for any port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostName {
    /// Lower case; an IPv6 address is in brackets.
    pub name: String,
    /// `None`: any port.
    pub port: Option<u16>,
}

/// The origin of a web page, exactly as browsers write it: `https://app.example.com`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin(String);

// === impl AllowedHosts ===

impl Default for AllowedHosts {
    fn default() -> Self {
        Self::Named(Vec::new())
    }
}

impl AllowedHosts {
    /// Parses `*`, or names with commas between them.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.trim() == "*" {
            return Ok(Self::Any);
        }
        parse_items(text, |item| {
            HostName::parse(item).ok_or("expected names such as gateway.example.com or 203.0.113.7:8443, or *")
        })
        .map(Self::Named)
    }
}

// === impl HostName ===

impl HostName {
    fn parse(text: &str) -> Option<Self> {
        let (name, port) = match text.rsplit_once(':') {
            Some((name, port)) if !port.contains(']') => (name, Some(port.parse().ok()?)),
            Some(_) | None => (text, None),
        };
        is_host(name).then(|| Self { name: name.to_ascii_lowercase(), port })
    }
}

// === impl Origin ===

impl Origin {
    /// Parses origins with commas between them.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, String> {
        parse_items(text, |item| {
            Self::parse(item).ok_or(
                "expected origins as browsers write them, such as https://app.example.com: in lower case, without \
                 a path, and without the port that the scheme has anyway",
            )
        })
    }

    fn parse(text: &str) -> Option<Self> {
        let (scheme, host) = text.split_once("://")?;
        let usual = match scheme {
            "http" => 80,
            "https" => 443,
            _ => return None,
        };
        let HostName { name, port } = HostName::parse(host)?;
        // An origin that no browser would write could never match.
        let written = match port {
            None => format!("{scheme}://{name}"),
            Some(port) if port == usual => return None,
            Some(port) => format!("{scheme}://{name}:{port}"),
        };
        (written == text).then_some(Self(written))
    }

    /// Returns the origin as browsers write it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn parse_items<T>(text: &str, parse: impl Fn(&str) -> Result<T, &'static str>) -> Result<Vec<T>, String> {
    let items: Vec<T> = text.split(',').map(|item| parse(item.trim())).collect::<Result<_, _>>()?;
    if items.len() > LIST_MAX { Err(format!("expected at most {LIST_MAX} of them")) } else { Ok(items) }
}

/// Returns whether the text is a name of letters, digits, dots and dashes, or an IPv6 address in brackets.
fn is_host(text: &str) -> bool {
    if let Some(six) = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        return six.parse::<std::net::Ipv6Addr>().is_ok();
    }
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
    (1..=NAME_BYTES_MAX).contains(&text.len())
        && text.bytes().all(is_plain)
        && !text.starts_with('.')
        && !text.ends_with('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_well_formed_origins_are_accepted() {
        for good in ["https://app.example.com", "http://localhost:3000", "https://[::1]:8443,http://a-b.example"] {
            let read = Origin::parse_list(good).expect(good);
            assert_eq!(read.iter().map(Origin::as_str).collect::<Vec<_>>().join(","), good);
        }
        for bad in [
            "",
            "*",
            "null",
            "https://",
            "app.example.com",
            "https://App.example.com",
            "https://app.example.com/",
            "https://app.example.com:443",
            "http://app.example.com:80",
            "https://app.example.com:0444",
            "ws://app.example.com",
            "https://*.example.com",
            "https://a,,https://b",
            "https://u@h",
        ] {
            assert!(Origin::parse_list(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn lists_have_a_longest_length() {
        let names = |count| vec!["a.example"; count].join(",");
        assert!(matches!(AllowedHosts::parse(&names(LIST_MAX)), Ok(AllowedHosts::Named(all)) if all.len() == LIST_MAX));
        for count in [LIST_MAX + 1, LIST_MAX + 2] {
            let refused = AllowedHosts::parse(&names(count)).expect_err("too many");
            assert_eq!(refused, "expected at most 64 of them");
        }
    }

    #[test]
    fn host_names_are_parsed_with_or_without_ports() {
        let name = |name: &str, port| HostName { name: name.to_owned(), port };
        let read = AllowedHosts::parse("GW.example.com, 203.0.113.7:8443,[2001:db8::1]");
        let all = [name("gw.example.com", None), name("203.0.113.7", Some(8443)), name("[2001:db8::1]", None)];
        assert_eq!(read, Ok(AllowedHosts::Named(all.to_vec())));
        assert_eq!(AllowedHosts::parse(" * "), Ok(AllowedHosts::Any));
        for bad in ["", "a b", "a:b", "a:99999", "[::1", "https://a", "a/b", ".a", "a.", "*,a", &"x".repeat(300)] {
            assert!(AllowedHosts::parse(bad).is_err(), "{bad}");
        }
    }
}
