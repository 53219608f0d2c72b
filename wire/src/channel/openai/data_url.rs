//! Parses `data:` URLs (RFC 2397), by which OpenAI clients send pictures and other files within a message.
//! Only base64 is read, in the standard alphabet with padding: no client of OpenAI sends another form.
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// The scheme, in any case.
const SCHEME: &str = "data:";
/// The media type of a URL that names none (RFC 2397, section 2).
const DEFAULT_MEDIA_TYPE: &str = "text/plain";

/// The content of a `data:` URL.
#[derive(PartialEq, Eq)]
pub(super) struct DataUrl {
    /// A media type with its parameters, printable and not checked further.
    pub(super) media_type: String,
    pub(super) bytes: Vec<u8>,
}

/// Returns whether a URL has the scheme `data`.
pub(super) fn is_data_url(url: &str) -> bool {
    url.get(..SCHEME.len()).is_some_and(|scheme| scheme.eq_ignore_ascii_case(SCHEME))
}

/// Parses `data:[MEDIA_TYPE][;NAME=VALUE]…;base64,DATA`. Returns `None` for anything else.
pub(super) fn parse(url: &str) -> Option<DataUrl> {
    let rest = url.get(SCHEME.len()..).filter(|_| is_data_url(url))?;
    // No parameter of a known media type has a comma, and a quoted one is written as %2C in a URL.
    let (head, data) = rest.split_once(',')?;
    let (media_type, encoding) = head.rsplit_once(';')?;
    if !encoding.eq_ignore_ascii_case("base64") || !media_type.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return None;
    }
    let is_named = !media_type.is_empty() && !media_type.starts_with(';');
    let media_type = format!("{}{media_type}", if is_named { "" } else { DEFAULT_MEDIA_TYPE });
    let bytes = STANDARD.decode(data).ok()?;
    Some(DataUrl { media_type, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnway_core::rng::Rng;

    fn read(url: &str) -> Option<(String, Vec<u8>)> {
        parse(url).map(|DataUrl { media_type, bytes }| (media_type, bytes))
    }

    /// Covers: PR-24, ST-37.
    #[test]
    fn data_urls_are_read_with_their_media_types() {
        for (url, media_type, bytes) in [
            ("data:image/png;base64,aGk=", "image/png", &b"hi"[..]),
            ("DATA:image/png;BASE64,aGk=", "image/png", b"hi"),
            ("data:text/plain;charset=utf-8;base64,aGkh", "text/plain;charset=utf-8", b"hi!"),
            ("data:;base64,", "text/plain", b""),
            ("data:;charset=utf-8;base64,/+8=", "text/plain;charset=utf-8", b"\xff\xef"),
            ("data:nonsense;base64,AA==", "nonsense", b"\0"),
        ] {
            assert_eq!(read(url), Some((media_type.to_owned(), bytes.to_vec())), "{url}");
        }
    }

    /// Covers: PR-24, S-13.
    #[test]
    fn malformed_data_urls_are_not_read() {
        for url in [
            "",
            "data:",
            "data:,hi",
            "data:text/plain,hi",
            "data:image/png;base64",
            "data:image/png;base64;aGk=",
            "data:image/png;base64,aGk",
            "data:image/png;base64,aGk==",
            "data:image/png;base64,aG k=",
            "data:image/png;base64,aGk=\n",
            "data:image/png;base64,_-8=",
            "data:image/png;base64,aGl=",
            "data:image/png;base64,aGk%3D",
            "data:image/png;base64,é",
            "data:image/png; base64,aGk=",
            "data:image/\u{e9};base64,aGk=",
            "data:image/\n;base64,aGk=",
            "data:base64,aGk=",
            "http://example.org/;base64,aGk=",
        ] {
            assert_eq!(read(url), None, "{url}");
        }
        assert!(is_data_url("Data:x") && !is_data_url("dat") && !is_data_url("/v1") && !is_data_url("éééé"));
    }

    /// Every file comes back as it was, and no change of one character is read as the same file.
    ///
    /// Covers: PR-24.
    #[test]
    fn data_url_of_any_bytes_round_trips() {
        let mut rng = Rng::from_number(24);
        for count in 0..200_usize {
            let bytes: Vec<u8> =
                std::iter::repeat_with(|| rng.next_u128().to_le_bytes()).flatten().take(count).collect();
            let url = format!("data:application/pdf;base64,{}", STANDARD.encode(&bytes));
            assert_eq!(read(&url), Some(("application/pdf".to_owned(), bytes.clone())), "{count} bytes");
            let at = usize::try_from(rng.next_u128() % url.len() as u128).expect("small");
            let changed = format!("{}*{}", &url[..at], &url[at + 1..]);
            assert_ne!(read(&changed), read(&url), "{changed}");
        }
    }
}
