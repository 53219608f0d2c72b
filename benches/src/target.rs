//! The server under load, and the source addresses of connections.
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use tokio_tungstenite::tungstenite::http::Uri;

/// Path of a node's WebSocket, unless the URL has one.
const PATH: &str = "/v1/connect";

/// A server whose name is resolved once, so that resolving is not measured.
#[derive(Clone, Debug)]
pub struct Target {
    pub address: SocketAddr,
    /// URL as a client would use it.
    pub url: String,
    /// Server name for certificates, if the server is reached by QUIC.
    quic_name: Option<String>,
    sources: u8,
}

/// The reason why a URL cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadTarget {
    /// The URL is not valid here.
    Url(String, &'static str),
    /// The host has no address.
    Unknown(String),
    /// The server is on another machine, and the user has not allowed that.
    Foreign(SocketAddr),
    /// Several source addresses need a target in 127.0.0.0/8.
    Sources,
}

// === impl Target ===

impl Target {
    /// Parses a URL with this scheme (`ws`, for which `wss` and `quic` also stand, or `http`) and resolves its
    /// host.
    pub fn find(url: &str, scheme: &str, sources: Option<u8>, is_mine: bool) -> Result<Self, BadTarget> {
        let bad = |why| BadTarget::Url(url.to_owned(), why);
        let uri: Uri = url.parse().map_err(|_| bad("not a URL"))?;
        let scheme = match uri.scheme_str() {
            Some("wss") if scheme == "ws" => "wss",
            Some("quic") if scheme == "ws" => "quic",
            Some(found) if found == scheme => scheme,
            Some(_) | None if scheme == "ws" => return Err(bad("it starts with ws://, wss:// or quic://")),
            Some(_) | None => return Err(bad("it starts with http://")),
        };
        let authority = uri.authority().ok_or_else(|| bad("no host"))?;
        if authority.as_str().contains('@') {
            return Err(bad("user and password do not belong in it"));
        }
        let host = authority.host().trim_matches(['[', ']']);
        let port = authority.port_u16().unwrap_or(if matches!(scheme, "wss" | "quic") { 443 } else { 80 });
        let address = resolve(host, port).ok_or_else(|| BadTarget::Unknown(host.to_owned()))?;
        if !address.ip().is_loopback() && !is_mine {
            return Err(BadTarget::Foreign(address));
        }
        if sources.is_some() && !matches!(address.ip(), IpAddr::V4(ip) if ip.is_loopback()) {
            return Err(BadTarget::Sources);
        }
        let path = match uri.path_and_query().map_or("/", |path| path.as_str()) {
            "/" if scheme == "quic" => "",
            _ if scheme == "quic" => return Err(bad("quic:// has no path")),
            "/" if scheme != "http" => PATH,
            path => path.trim_end_matches('/'),
        };
        let url = format!("{scheme}://{authority}{path}");
        let sources = sources.unwrap_or(0);
        let quic_name = (scheme == "quic").then(|| host.to_owned());
        Ok(Self { address, url, quic_name, sources })
    }

    /// Returns the name for the server's certificate if the server is reached by QUIC, or `None` for WebSocket.
    pub fn quic_name(&self) -> Option<&str> {
        self.quic_name.as_deref()
    }

    /// Returns the source address of the n-th connection, or `None` for the system's choice.
    pub fn source(&self, n: usize) -> Option<SocketAddr> {
        let turn = u8::try_from(n % usize::from(self.sources.max(1))).unwrap_or(0);
        (self.sources > 0).then(|| SocketAddr::from((Ipv4Addr::new(127, 0, 0, turn + 2), 0)))
    }
}

/// Resolves a name. Loopback addresses come first: a name that has both belongs to this machine.
fn resolve(host: &str, port: u16) -> Option<SocketAddr> {
    use std::net::ToSocketAddrs;
    let mut found: Vec<SocketAddr> = (host, port).to_socket_addrs().ok()?.collect();
    found.sort_by_key(|address| (!address.ip().is_loopback(), address.is_ipv6()));
    found.into_iter().next()
}

impl fmt::Display for BadTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(url, why) => write!(f, "{url}: {why}"),
            Self::Unknown(host) => write!(f, "{host}: no such host"),
            Self::Foreign(address) => write!(
                f,
                "{address} is not on this machine. A load can do harm: \
                 use --i-own-this-target if you are allowed to load it"
            ),
            Self::Sources => f.write_str("--sources needs a target in 127.0.0.0/8"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(url: &str, sources: Option<u8>, is_mine: bool) -> Result<Target, BadTarget> {
        Target::find(url, "ws", sources, is_mine)
    }

    #[test]
    fn a_node_is_found_by_its_url() {
        for (url, want) in [
            ("ws://127.0.0.1:8080", "ws://127.0.0.1:8080/v1/connect"),
            ("ws://127.0.0.1:8080/", "ws://127.0.0.1:8080/v1/connect"),
            ("ws://127.0.0.1:8080/other?x=1", "ws://127.0.0.1:8080/other?x=1"),
            ("ws://[::1]:9", "ws://[::1]:9/v1/connect"),
            ("wss://127.0.0.1", "wss://127.0.0.1/v1/connect"),
            ("quic://localhost:8443", "quic://localhost:8443"),
            ("quic://[::1]:8443/", "quic://[::1]:8443"),
        ] {
            assert_eq!(find(url, None, false).expect(url).url, want);
        }
        for bad in ["", "127.0.0.1:8080", "http://127.0.0.1", "ws://u:p@127.0.0.1", "quic://127.0.0.1/x"] {
            assert!(matches!(find(bad, None, false), Err(BadTarget::Url(..))), "{bad}");
        }
    }

    #[test]
    fn the_scheme_says_by_which_road() {
        assert_eq!(find("wss://localhost:1", None, false).expect("ours").quic_name(), None);
        assert_eq!(find("quic://[::1]:1", None, false).expect("ours").quic_name(), Some("::1"));
    }

    #[test]
    fn other_machines_are_loaded_only_on_request() {
        let foreign = "ws://192.0.2.1:80";
        assert!(matches!(find(foreign, None, false), Err(BadTarget::Foreign(_))));
        assert!(find(foreign, None, true).is_ok());
        assert!(matches!(find(foreign, Some(2), true), Err(BadTarget::Sources)));
    }

    #[test]
    fn connections_come_from_each_source_in_turn() {
        let target = find("ws://127.0.0.1:80", Some(2), false).expect("ours");
        let from: Vec<String> = (0..3).filter_map(|n| target.source(n)).map(|from| from.ip().to_string()).collect();
        assert_eq!(from, ["127.0.0.2", "127.0.0.3", "127.0.0.2"]);
        assert_eq!(find("ws://127.0.0.1:80", None, false).expect("ours").source(0), None);
    }
}
