//! A node that asks for no credential trusts whoever can reach it, and every web page a person opens
//! can reach their own machine. So it answers only requests that name it by a loopback name (no DNS
//! rebinding), and only pages that were themselves served from this machine (S-09, CSWSH).
use http::{HeaderMap, Uri, header};
use std::net::IpAddr;

/// Why a request is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unwelcome {
    /// It names a host that is not this machine, or none, or several.
    Host,
    /// It was sent by a page from elsewhere.
    Origin,
}

// === impl Unwelcome ===

impl Unwelcome {
    /// For a person.
    pub fn why(self) -> &'static str {
        match self {
            Self::Host => "without authentication a node answers to loopback host names only",
            Self::Origin => "without authentication a node answers to pages from this machine only",
        }
    }
}

/// Looks at how a request names the node, and which page sent it.
pub fn check(uri: &Uri, headers: &HeaderMap) -> Result<(), Unwelcome> {
    let host = only(headers, header::HOST).flatten().ok_or(Unwelcome::Host)?;
    let by_target = uri.authority().is_none_or(|authority| is_loopback(authority.as_str()));
    if !by_target || !is_loopback(host) {
        return Err(Unwelcome::Host);
    }
    // Programs send none; a page cannot leave it out.
    match only(headers, header::ORIGIN) {
        None => Ok(()),
        Some(origin) => {
            let place = origin.and_then(|text| text.split_once("://"));
            let welcome =
                place.is_some_and(|(scheme, host)| matches!(scheme, "http" | "https") && is_loopback(host));
            if welcome { Ok(()) } else { Err(Unwelcome::Origin) }
        }
    }
}

/// A header's text: none if it is not there, `Some(None)` if it is there twice or is not text.
fn only(headers: &HeaderMap, name: header::HeaderName) -> Option<Option<&str>> {
    let mut all = headers.get_all(name).iter();
    let first = all.next()?;
    Some(if all.next().is_none() { first.to_str().ok() } else { None })
}

/// `localhost`, an IPv4 address in 127/8 or `[::1]`, with or without a port; nothing else, in no other
/// spelling: what a resolver would make of it is not ours to guess.
fn is_loopback(host: &str) -> bool {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => (name, Some(port)),
        Some(_) | None => (host, None),
    };
    let is_port =
        port.is_none_or(|port| port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok());
    let is_name = name.eq_ignore_ascii_case("localhost")
        || match name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Some(six) => six.parse().is_ok_and(|ip: std::net::Ipv6Addr| ip.is_loopback()),
            None => name.parse().is_ok_and(|ip: IpAddr| ip.is_ipv4() && ip.is_loopback()),
        };
    is_port && is_name
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn asked(host: &str, origin: Option<&str>) -> Result<(), Unwelcome> {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_str(host).expect("a value"));
        if let Some(origin) = origin {
            headers.insert(header::ORIGIN, HeaderValue::from_str(origin).expect("a value"));
        }
        check(&Uri::from_static("/v1/connect"), &headers)
    }

    /// Covers: S-09.
    #[test]
    fn a_host_is_this_machine_or_a_stranger() {
        for good in ["localhost", "LocalHost:8080", "127.0.0.1", "127.8.9.1:1", "[::1]", "[::1]:8080"] {
            assert_eq!(asked(good, None), Ok(()), "{good}");
        }
        for bad in [
            "",
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "localhost.",
            "127.1",
            "0177.0.0.1",
            "2130706433",
            "0x7f.1",
            "0.0.0.0",
            "[::]",
            "::1",
            "[::1",
            "[::ffff:127.0.0.1]",
            "localhost:80:80",
            "localhost:x",
            "localhost:99999",
            "user@localhost",
            "localhost/",
            " localhost",
            "169.254.169.254",
            "192.168.0.1:8080",
        ] {
            assert_eq!(asked(bad, None), Err(Unwelcome::Host), "{bad:?}");
        }
    }

    /// Covers: S-09.
    #[test]
    fn a_page_is_of_this_machine_or_a_stranger() {
        for good in ["http://localhost", "http://localhost:3000", "https://127.0.0.1:8443", "http://[::1]:1"]
        {
            assert_eq!(asked("localhost", Some(good)), Ok(()), "{good}");
        }
        for bad in [
            "",
            "null",
            "localhost",
            "http://",
            "https://evil.example",
            "http://localhost.evil.example",
            "http://localhost@evil.example",
            "http://evil.example#localhost",
            "file://localhost",
            "http://127.1",
            "ws://localhost",
            "HTTP://localhost",
            "http:localhost",
            "http://localhost/",
            "http://localhost:80,http://x",
            "chrome-extension://abc",
            "http://[::ffff:7f00:1]",
        ] {
            assert_eq!(asked("localhost", Some(bad)), Err(Unwelcome::Origin), "{bad:?}");
        }
    }

    /// Covers: S-09.
    #[test]
    fn a_request_names_one_host() {
        let mut headers = HeaderMap::new();
        assert_eq!(check(&Uri::from_static("/"), &headers), Err(Unwelcome::Host));
        headers.append(header::HOST, HeaderValue::from_static("localhost"));
        assert_eq!(check(&Uri::from_static("http://evil.example/"), &headers), Err(Unwelcome::Host));
        headers.append(header::HOST, HeaderValue::from_static("localhost"));
        assert_eq!(check(&Uri::from_static("/"), &headers), Err(Unwelcome::Host));
    }
}
