//! Reads the client address from a PROXY protocol header, version 1 or 2. Only configured proxies may send one (S-49);
//! HTTP headers such as `X-Forwarded-For` are never read. Called by the listener.
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use tokio::io::{AsyncRead, AsyncReadExt};

/// Signature of a version 2 header.
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Longest version 1 line with its line end, by the PROXY specification.
const V1_LINE_BYTES_MAX: usize = 107;
/// Maximum bytes of addresses and additions in a version 2 header. The specification asks receivers for 536 bytes in
/// all; proxies that pass certificates on send more, which is not read here.
const V2_BYTES_MAX: u16 = 1024;

/// The reason why the client address is unknown.
#[derive(Debug, thiserror::Error)]
pub enum ProxyHeaderError {
    /// The connection ended or failed.
    #[error("the connection ended before the end of the PROXY header: {0}")]
    Io(#[from] io::Error),
    /// The header is missing or malformed.
    #[error("missing or malformed PROXY header")]
    Malformed,
}

/// Reads exactly the header from a connection. Returns `None` if the proxy speaks for itself, as in a health check.
pub async fn read_client_address<R: AsyncRead + Unpin>(from: &mut R) -> Result<Option<IpAddr>, ProxyHeaderError> {
    let mut first = [0; SIGNATURE.len()];
    from.read_exact(&mut first).await?;
    if first == SIGNATURE { read_v2(from).await } else { read_v1(from, &first).await }
}

/// Reads the rest of a version 1 line such as `PROXY TCP4 192.0.2.7 192.0.2.1 50000 443`.
async fn read_v1<R: AsyncRead + Unpin>(from: &mut R, first: &[u8]) -> Result<Option<IpAddr>, ProxyHeaderError> {
    if !first.starts_with(b"PROXY ") {
        return Err(ProxyHeaderError::Malformed);
    }
    let mut line = first.to_vec();
    while !line.ends_with(b"\r\n") {
        if line.len() == V1_LINE_BYTES_MAX {
            return Err(ProxyHeaderError::Malformed);
        }
        line.push(from.read_u8().await?);
    }
    line.truncate(line.len() - 2);
    let line = std::str::from_utf8(&line).map_err(|_| ProxyHeaderError::Malformed)?;
    let words: Vec<&str> = line.split(' ').collect();
    let source = match *words {
        ["PROXY", "UNKNOWN", ..] => return Ok(None),
        ["PROXY", "TCP4", source, to, port, other] if are_ports(port, other) => {
            parse_source::<Ipv4Addr>(source, to).map(IpAddr::V4)
        }
        ["PROXY", "TCP6", source, to, port, other] if are_ports(port, other) => {
            parse_source::<Ipv6Addr>(source, to).map(IpAddr::V6)
        }
        _ => None,
    };
    source.map(Some).ok_or(ProxyHeaderError::Malformed)
}

/// Returns the source if source and destination are addresses of the same family.
fn parse_source<A: std::str::FromStr>(source: &str, to: &str) -> Option<A> {
    to.parse::<A>().ok().and_then(|_| source.parse().ok())
}

fn are_ports(one: &str, other: &str) -> bool {
    let is_port = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok();
    is_port(one) && is_port(other)
}

/// Reads a version 2 header: command, family and length, then as many bytes, which begin with the addresses.
async fn read_v2<R: AsyncRead + Unpin>(from: &mut R) -> Result<Option<IpAddr>, ProxyHeaderError> {
    let mut head = [0; 4];
    from.read_exact(&mut head).await?;
    let [command, family, length @ ..] = head;
    let length = u16::from_be_bytes(length);
    if length > V2_BYTES_MAX {
        return Err(ProxyHeaderError::Malformed);
    }
    let mut rest = vec![0; usize::from(length)];
    from.read_exact(&mut rest).await?;
    match (command, family) {
        // A `LOCAL` command, or an unspecified family.
        (0x20, _) | (0x21, 0x00) => Ok(None),
        // Two addresses and two ports; the first address is the client's.
        (0x21, 0x11) => first_octets::<4>(&rest, 12).map(|four| Some(Ipv4Addr::from(four).into())),
        (0x21, 0x21) => first_octets::<16>(&rest, 36).map(|six| Some(Ipv6Addr::from(six).into())),
        (_, _) => Err(ProxyHeaderError::Malformed),
    }
}

/// Returns the first octets, if there are at least `least` of them.
fn first_octets<const N: usize>(of: &[u8], least: usize) -> Result<[u8; N], ProxyHeaderError> {
    let first = of.get(..least).and_then(|whole| whole.first_chunk());
    first.copied().ok_or(ProxyHeaderError::Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses these bytes. Also returns how many bytes remain after the header.
    async fn read(bytes: &[u8]) -> Result<(Option<IpAddr>, usize), &'static str> {
        let mut left = bytes;
        match read_client_address(&mut left).await {
            Ok(caller) => Ok((caller, left.len())),
            Err(ProxyHeaderError::Io(_)) => Err("lost"),
            Err(ProxyHeaderError::Malformed) => Err("form"),
        }
    }

    fn second(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let length = u16::try_from(rest.len()).expect("short").to_be_bytes();
        [&SIGNATURE[..], &[command, family], &length, rest, b"GET /"].concat()
    }

    fn ip(text: &str) -> Option<IpAddr> {
        Some(text.parse().expect("an address"))
    }

    /// Covers: S-49.
    #[tokio::test]
    async fn proxy_v1_header_gives_the_client_address() {
        for (line, who) in [
            ("PROXY TCP4 192.0.2.7 192.0.2.1 50000 443", ip("192.0.2.7")),
            ("PROXY TCP6 2001:db8::7 ::1 1 65535", ip("2001:db8::7")),
            ("PROXY UNKNOWN", None),
            ("PROXY UNKNOWN ffff::1 ffff::2 1 2", None),
        ] {
            assert_eq!(read(format!("{line}\r\nGET /").as_bytes()).await, Ok((who, 5)), "{line}");
        }
        let long = format!("PROXY UNKNOWN {}", "x".repeat(V1_LINE_BYTES_MAX));
        for bad in [
            "PROXY TCP4 192.0.2.7 192.0.2.1 50000",
            "PROXY TCP4 192.0.2.7 192.0.2.1 50000 443 1",
            "PROXY TCP4 192.0.2.7 192.0.2.1 50000 65536",
            "PROXY TCP4 192.0.2.7 192.0.2.1 +1 443",
            "PROXY TCP4 192.0.2.7 ::1 50000 443",
            "PROXY TCP4 2001:db8::7 192.0.2.1 1 1",
            "PROXY TCP6 192.0.2.7 192.0.2.1 1 1",
            "PROXY  TCP4 192.0.2.7 192.0.2.1 1 1",
            "PROXY UDP4 192.0.2.7 192.0.2.1 1 1",
            "proxy TCP4 192.0.2.7 192.0.2.1 1 1",
            "GET / HTTP/1.1",
            &long,
        ] {
            assert_eq!(read(format!("{bad}\r\n").as_bytes()).await, Err("form"), "{bad}");
        }
        assert_eq!(read(b"PROXY TCP4 192.0.2.7 192").await, Err("lost"));
        assert_eq!(read(b"PROXY").await, Err("lost"));
    }

    /// Covers: S-49.
    #[tokio::test]
    async fn proxy_v2_header_gives_the_client_address() {
        let four = [192, 0, 2, 7, 192, 0, 2, 1, 200, 0, 1, 187];
        let mut six = [0; 36];
        six[..16].copy_from_slice(&"2001:db8::7".parse::<Ipv6Addr>().expect("an address").octets());
        for (bytes, who) in [
            (second(0x21, 0x11, &four), ip("192.0.2.7")),
            (second(0x21, 0x11, &[&four[..], &[4, 0, 1, 9]].concat()), ip("192.0.2.7")),
            (second(0x21, 0x21, &six), ip("2001:db8::7")),
            (second(0x21, 0x00, &[]), None),
            (second(0x20, 0x11, &four), None),
            (second(0x20, 0x00, &[]), None),
        ] {
            assert_eq!(read(&bytes).await, Ok((who, 5)), "{bytes:?}");
        }
        for bad in [
            second(0x21, 0x11, &four[..11]),
            second(0x21, 0x21, &six[..35]),
            second(0x21, 0x12, &four),
            second(0x21, 0x31, &[0; 216]),
            second(0x11, 0x11, &four),
            second(0x22, 0x11, &four),
            second(0x20, 0x00, &[0; 1025]),
        ] {
            assert_eq!(read(&bad).await, Err("form"), "{bad:?}");
        }
        assert_eq!(read(&second(0x21, 0x11, &four)[..20]).await, Err("lost"));
    }
}
