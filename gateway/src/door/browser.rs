//! Which names a node is called by, and which pages may talk to it (S-09). Every web page a person opens can
//! reach what that person's machine can reach, and a name can be made to mean any address (DNS rebinding). So a
//! request must name the node as its operator does, and a page must come from a place the operator has listed;
//! on a loopback listener this machine's own names and pages are welcome beside those. Programs that are no
//! browsers send no origin, and nothing a browser adds by itself is ever a credential here.
use crate::config::{HostName, Hosts, Origin};
use http::{HeaderMap, Uri, header};
use std::net::IpAddr;

/// Who is welcome at one listener.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// This machine's names and pages are.
    pub is_local: bool,
    /// Names beside those.
    pub hosts: Hosts,
    /// Pages beside those.
    pub origins: Vec<Origin>,
}

/// Why a request is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unwelcome {
    /// It names a host that this is not, or none, or several.
    Host,
    /// It was sent by a page from elsewhere.
    Origin,
}

// === impl Unwelcome ===

impl Unwelcome {
    /// For a person.
    pub fn why(self) -> &'static str {
        match self {
            Self::Host => "this node is not called by that name (listen.hosts)",
            Self::Origin => "this node does not talk to pages from there (listen.origins)",
        }
    }
}

// === impl Rules ===

impl Rules {
    /// Only this machine: for operators, and where nobody is asked who they are.
    pub fn local() -> Self {
        Self { is_local: true, ..Self::default() }
    }

    /// Looks at how a request names the node, and which page sent it.
    pub fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Unwelcome> {
        let host = only(headers, header::HOST).flatten().ok_or(Unwelcome::Host)?;
        let by_target = uri.authority().is_none_or(|authority| self.is_called(authority.as_str()));
        if !by_target || !self.is_called(host) {
            return Err(Unwelcome::Host);
        }
        // Programs send none; a page cannot leave it out.
        match only(headers, header::ORIGIN) {
            None => Ok(()),
            Some(Some(origin)) if self.talks_to(origin) => Ok(()),
            Some(_) => Err(Unwelcome::Origin),
        }
    }

    fn is_called(&self, host: &str) -> bool {
        let is_listed = match &self.hosts {
            Hosts::Any => true,
            Hosts::Named(names) => names.iter().any(|name| is_named(name, host)),
        };
        let (name, port) = split(host);
        let is_local = || port.is_none_or(is_port) && is_loopback_name(without_root(name));
        is_listed || (self.is_local && is_local())
    }

    fn talks_to(&self, origin: &str) -> bool {
        let is_own = || match origin.split_once("://") {
            Some(("http" | "https", host)) => is_loopback(host),
            Some(_) | None => false,
        };
        self.origins.iter().any(|listed| listed.as_str() == origin) || (self.is_local && is_own())
    }
}

/// Whether this is that name, with the same port where one was listed and any, or none, where not.
fn is_named(name: &HostName, host: &str) -> bool {
    let (bare, port) = split(host);
    let same_port = match (name.port, port) {
        (Some(listed), Some(port)) => is_port(port) && port.parse() == Ok(listed),
        // Clients leave out the port that the scheme has anyway (RFC 9110 §4.2.3).
        (Some(listed), None) => matches!(listed, 80 | 443),
        (None, port) => port.is_none_or(is_port),
    };
    same_port && without_root(bare).eq_ignore_ascii_case(&name.name)
}

fn split(host: &str) -> (&str, Option<&str>) {
    match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => (name, Some(port)),
        Some(_) | None => (host, None),
    }
}

/// Returns a name without the dot of DNS's root: with it, it is the same name (RFC 3986 §3.2.2). An address has none.
fn without_root(name: &str) -> &str {
    let is_label_end = |name: &&str| name.ends_with(|c: char| c.is_ascii_alphabetic());
    name.strip_suffix('.').filter(is_label_end).unwrap_or(name)
}

fn is_port(port: &str) -> bool {
    port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok()
}

/// A header's text: none if it is not there, `Some(None)` if it is there twice or is not text.
fn only(headers: &HeaderMap, name: header::HeaderName) -> Option<Option<&str>> {
    let mut all = headers.get_all(name).iter();
    let first = all.next()?;
    Some(if all.next().is_none() { first.to_str().ok() } else { None })
}

/// Tells whether an origin's host is this machine.
fn is_loopback(host: &str) -> bool {
    let (name, port) = split(host);
    port.is_none_or(is_port) && is_loopback_name(name)
}

/// Accepts `localhost`, an IPv4 address in 127/8 and `[::1]`; nothing else, in no other spelling: what a resolver would
/// make of it is not ours to guess.
fn is_loopback_name(name: &str) -> bool {
    name.eq_ignore_ascii_case("localhost")
        || match name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Some(six) => six.parse().is_ok_and(|ip: std::net::Ipv6Addr| ip.is_loopback()),
            None => name.parse().is_ok_and(|ip: IpAddr| ip.is_ipv4() && ip.is_loopback()),
        }
}

#[cfg(test)]
mod tests;
