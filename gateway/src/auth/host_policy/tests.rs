//! Tests spellings of hosts and origins: those that are meant, and those that only look alike.
use super::*;
use http::HeaderValue;

fn asked(host: &str, origin: Option<&str>) -> Result<(), HostRejection> {
    let mut headers = HeaderMap::new();
    headers.insert(header::HOST, HeaderValue::from_str(host).expect("a value"));
    if let Some(origin) = origin {
        headers.insert(header::ORIGIN, HeaderValue::from_str(origin).expect("a value"));
    }
    HostPolicy::loopback().check(&Uri::from_static("/v1/connect"), &headers)
}

/// Covers: S-09.
#[test]
fn loopback_hosts_are_accepted_and_others_refused() {
    for good in [
        "localhost",
        "localhost.",
        "localhost.:8080",
        "LocalHost:8080",
        "127.0.0.1",
        "127.8.9.1:1",
        "[::1]",
        "[::1]:8080",
    ] {
        assert_eq!(asked(good, None), Ok(()), "{good}");
    }
    for bad in [
        "",
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "localhost..",
        ".localhost",
        "127.0.0.1.",
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
        assert_eq!(asked(bad, None), Err(HostRejection::Host), "{bad:?}");
    }
}

/// Covers: S-09.
#[test]
fn loopback_origins_are_accepted_and_others_refused() {
    for good in ["http://localhost", "http://localhost:3000", "https://127.0.0.1:8443", "http://[::1]:1"] {
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
        "http://localhost.",
        "http://localhost:80,http://x",
        "chrome-extension://abc",
        "http://[::ffff:7f00:1]",
    ] {
        assert_eq!(asked("localhost", Some(bad)), Err(HostRejection::Origin), "{bad:?}");
    }
}

/// Covers: S-09.
#[test]
fn request_must_name_exactly_one_host() {
    let mut headers = HeaderMap::new();
    assert_eq!(HostPolicy::loopback().check(&Uri::from_static("/"), &headers), Err(HostRejection::Host));
    headers.append(header::HOST, HeaderValue::from_static("localhost"));
    assert_eq!(
        HostPolicy::loopback().check(&Uri::from_static("http://evil.example/"), &headers),
        Err(HostRejection::Host)
    );
    headers.append(header::HOST, HeaderValue::from_static("localhost"));
    assert_eq!(HostPolicy::loopback().check(&Uri::from_static("/"), &headers), Err(HostRejection::Host));
}

/// Returns the rules of a public node: two names, one with its port, and two origins.
fn public() -> HostPolicy {
    let hosts = AllowedHosts::parse("gw.example.com, 203.0.113.7:8443").expect("names");
    let origins = Origin::parse_list("https://app.example.com,https://example.org:8443").expect("origins");
    HostPolicy { is_local: false, hosts, origins }
}

fn at(rules: &HostPolicy, host: &str, origin: Option<&[u8]>) -> Result<(), HostRejection> {
    let mut headers = HeaderMap::new();
    headers.insert(header::HOST, HeaderValue::from_str(host).expect("a value"));
    if let Some(origin) = origin {
        headers.insert(header::ORIGIN, HeaderValue::from_bytes(origin).expect("a value"));
    }
    rules.check(&Uri::from_static("/v1/connect"), &headers)
}

/// Covers: S-09.
#[test]
fn public_node_accepts_only_listed_hosts() {
    for good in [
        "gw.example.com",
        "GW.Example.com",
        "gw.example.com.",
        "gw.example.com.:8443",
        "gw.example.com:8443",
        "203.0.113.7:8443",
    ] {
        assert_eq!(at(&public(), good, None), Ok(()), "{good}");
    }
    for bad in [
        "example.com",
        "a.gw.example.com",
        "gw.example.com..",
        "gw.example.com.evil.example",
        "gw.example.com@evil.example",
        "gw.example.com:x",
        "gw.example.com:99999",
        "203.0.113.7",
        "203.0.113.7:443",
        "203.0.113.7:+8443",
        "203.0.113.7:08443x",
        "localhost",
        "127.0.0.1:8443",
        "[::1]",
        "",
    ] {
        assert_eq!(at(&public(), bad, None), Err(HostRejection::Host), "{bad}");
    }
    // Clients omit the default port of the scheme.
    let usual = HostPolicy { hosts: AllowedHosts::parse("gw.example.com:443").expect("names"), ..public() };
    assert_eq!(at(&usual, "gw.example.com", None), Ok(()));
    assert_eq!(at(&usual, "gw.example.com:8443", None), Err(HostRejection::Host));
    assert_eq!(at(&HostPolicy { hosts: AllowedHosts::Any, ..public() }, "anything.example", None), Ok(()));
}

/// Covers: S-09.
#[test]
fn misspelt_origins_are_refused() {
    for good in ["https://app.example.com", "https://example.org:8443"] {
        assert_eq!(at(&public(), "gw.example.com", Some(good.as_bytes())), Ok(()), "{good}");
    }
    let bad: [&[u8]; 38] = [
        b"",
        b"null",
        b"NULL",
        b"*",
        b"https://",
        b"app.example.com",
        b"//app.example.com",
        b"http://app.example.com",
        b"wss://app.example.com",
        b"HTTPS://app.example.com",
        b"https://APP.example.com",
        b"https:app.example.com",
        b"https:/app.example.com",
        b"https:///app.example.com",
        b"https://app.example.com/",
        b"https://app.example.com.",
        b"https://app.example.com:443",
        b"https://app.example.com:",
        b"https://app.example.com:8443",
        b"https://app.example.com:0443",
        b"https://example.org",
        b"https://example.org:18443",
        b"https://example.org:8443/",
        b"https://a.app.example.com",
        b"https://xapp.example.com",
        b"https://app.example.com.evil.example",
        b"https://app.example.comevil",
        b"https://evil.example/app.example.com",
        b"https://evil.example?https://app.example.com",
        b"https://evil.example#https://app.example.com",
        b"https://app.example.com@evil.example",
        b"https://user@app.example.com",
        b"https://app.example.com https://evil.example",
        b"https://app.example.com,https://evil.example",
        b" https://app.example.com",
        b"https://app%2eexample.com",
        b"https://app.\xc3\xa9xample.com",
        b"http://localhost",
    ];
    for bad in bad {
        let text = String::from_utf8_lossy(bad);
        assert_eq!(at(&public(), "gw.example.com", Some(bad)), Err(HostRejection::Origin), "{text:?}");
    }
    // A repeated header is refused, even with the same value.
    let mut headers = HeaderMap::new();
    headers.insert(header::HOST, HeaderValue::from_static("gw.example.com"));
    for _ in 0..2 {
        headers.append(header::ORIGIN, HeaderValue::from_static("https://app.example.com"));
    }
    assert_eq!(public().check(&Uri::from_static("/"), &headers), Err(HostRejection::Origin));
    // Programs send no origin.
    assert_eq!(at(&public(), "gw.example.com", None), Ok(()));
}
