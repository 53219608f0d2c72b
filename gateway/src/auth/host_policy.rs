//! Checks a request's `Host` and `Origin` (S-09) against CSRF and DNS rebinding: any web page can reach the servers
//! that its user can reach. Only configured host names and origins pass; a loopback listener also accepts this
//! machine's own. Programs send no `Origin`, and nothing that a browser adds by itself authenticates.
use crate::config::{AllowedHosts, HostName, Origin};
use http::{HeaderMap, Uri, header};
use std::net::IpAddr;

/// The host names and origins that one listener accepts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostPolicy {
    /// True if loopback names and origins are accepted.
    pub is_local: bool,
    /// Further host names of the node.
    pub hosts: AllowedHosts,
    /// Further origins of pages.
    pub origins: Vec<Origin>,
}

/// The reason why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostRejection {
    /// The host is unknown, missing or repeated.
    Host,
    /// The request was sent by a page whose origin is not accepted.
    Origin,
}

// === impl HostRejection ===

impl HostRejection {
    /// Returns an explanation for a person.
    pub fn message(self) -> &'static str {
        match self {
            Self::Host => "host name not allowed (listen.hosts)",
            Self::Origin => "origin not allowed (listen.origins)",
        }
    }
}

// === impl HostPolicy ===

impl HostPolicy {
    /// Accepts this machine only: for operators, and where clients need no credential.
    pub fn loopback() -> Self {
        Self { is_local: true, ..Self::default() }
    }

    /// Checks the host names and the origin of a request.
    pub fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), HostRejection> {
        let host = single_header(headers, header::HOST).flatten().ok_or(HostRejection::Host)?;
        let by_target = uri.authority().is_none_or(|authority| self.allows_host(authority.as_str()));
        if !by_target || !self.allows_host(host) {
            return Err(HostRejection::Host);
        }
        // Programs send no origin; a page cannot omit it.
        match single_header(headers, header::ORIGIN) {
            None => Ok(()),
            Some(Some(origin)) if self.allows_origin(origin) => Ok(()),
            Some(_) => Err(HostRejection::Origin),
        }
    }

    fn allows_host(&self, host: &str) -> bool {
        let is_listed = match &self.hosts {
            AllowedHosts::Any => true,
            AllowedHosts::Named(names) => names.iter().any(|name| matches_host(name, host)),
        };
        let (name, port) = split_port(host);
        let is_local = || port.is_none_or(is_port) && is_loopback_name(without_root(name));
        is_listed || (self.is_local && is_local())
    }

    fn allows_origin(&self, origin: &str) -> bool {
        let is_own = || match origin.split_once("://") {
            Some(("http" | "https", host)) => is_loopback(host),
            Some(_) | None => false,
        };
        self.origins.iter().any(|listed| listed.as_str() == origin) || (self.is_local && is_own())
    }
}

/// Returns true if `host` is this name. A listed port must match; without a listed port any port, or none, is accepted.
fn matches_host(name: &HostName, host: &str) -> bool {
    let (bare, port) = split_port(host);
    let same_port = match (name.port, port) {
        (Some(listed), Some(port)) => is_port(port) && port.parse() == Ok(listed),
        // Clients omit the default port of the scheme (RFC 9110 §4.2.3).
        (Some(listed), None) => matches!(listed, 80 | 443),
        (None, port) => port.is_none_or(is_port),
    };
    same_port && without_root(bare).eq_ignore_ascii_case(&name.name)
}

fn split_port(host: &str) -> (&str, Option<&str>) {
    match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => (name, Some(port)),
        Some(_) | None => (host, None),
    }
}

/// Removes the trailing dot of the DNS root; the name stays the same (RFC 3986 §3.2.2). Addresses have no such dot.
fn without_root(name: &str) -> &str {
    let is_label_end = |name: &&str| name.ends_with(|c: char| c.is_ascii_alphabetic());
    name.strip_suffix('.').filter(is_label_end).unwrap_or(name)
}

fn is_port(port: &str) -> bool {
    port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok()
}

/// Returns a header's text: `None` if absent, `Some(None)` if repeated or not text.
fn single_header(headers: &HeaderMap, name: header::HeaderName) -> Option<Option<&str>> {
    let mut all = headers.get_all(name).iter();
    let first = all.next()?;
    Some(if all.next().is_none() { first.to_str().ok() } else { None })
}

/// Returns true if an origin's host is this machine.
fn is_loopback(host: &str) -> bool {
    let (name, port) = split_port(host);
    port.is_none_or(is_port) && is_loopback_name(name)
}

/// Accepts `localhost`, an IPv4 address in 127/8, and `[::1]`, in no other spelling: the address that a resolver would
/// find is not guessed.
fn is_loopback_name(name: &str) -> bool {
    name.eq_ignore_ascii_case("localhost")
        || match name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Some(six) => six.parse().is_ok_and(|ip: std::net::Ipv6Addr| ip.is_loopback()),
            None => name.parse().is_ok_and(|ip: IpAddr| ip.is_ipv4() && ip.is_loopback()),
        }
}

#[cfg(test)]
mod tests;
