//! The settings of files in sessions.
use super::s3::S3Place;

/// The files that may be uploaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlobSettings {
    /// Bytes of the largest one; 0 takes none.
    pub bytes_max: u64,
    pub types: MediaRanges,
    /// The S3-compatible store that has the bytes; `None` if the store has them.
    pub place: Option<S3Place>,
}

/// Ranges of media types (RFC 9110, section 12.5.1), without parameters and in lower case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MediaRanges(Vec<String>);

// === impl MediaRanges ===

impl MediaRanges {
    /// Returns whether a media type without parameters, in lower case, is in one of the ranges.
    pub fn contain(&self, media_type: &str) -> bool {
        self.0.iter().any(|range| match range.strip_suffix('*') {
            Some("*/") => true,
            Some(kind) => media_type.starts_with(kind),
            None => range == media_type,
        })
    }

    /// Returns the ranges as a text for people.
    pub fn list(&self) -> String {
        self.0.join(", ")
    }
}

/// Returns whether a text is a type or subtype of media (RFC 6838, section 4.2).
fn is_media_name(text: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"!#$&-^_.+".contains(&byte);
    (1..=127).contains(&text.len()) && text.bytes().all(is_letter)
}

/// Returns the media type in a `content-type` without its parameters, in lower case; `None` if it is none.
pub fn media_essence(content_type: &str) -> Option<String> {
    let essence = content_type.split(';').next()?.trim().to_ascii_lowercase();
    let (kind, name) = essence.split_once('/')?;
    (is_media_name(kind) && is_media_name(name)).then_some(essence)
}

/// Parses ranges between bars.
pub(super) fn parse_media_ranges(text: &str) -> Result<MediaRanges, String> {
    let is_range = |range: &str| {
        range == "*/*"
            || range
                .split_once('/')
                .is_some_and(|(kind, name)| is_media_name(kind) && (name == "*" || is_media_name(name)))
    };
    let ranges: Vec<String> = text.split('|').map(|range| range.trim().to_ascii_lowercase()).collect();
    match ranges.iter().find(|range| !is_range(range)) {
        Some(wrong) => Err(format!("{wrong:?} is no media type such as image/png, image/* or */*")),
        None => Ok(MediaRanges(ranges)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_types_are_compared_with_ranges() {
        let ranges = parse_media_ranges("image/*|Text/Plain").expect("ranges");
        for taken in ["image/png", "IMAGE/svg+xml", "text/plain; charset=utf-8"] {
            assert!(ranges.contain(&media_essence(taken).expect("a media type")), "{taken}");
        }
        for refused in ["text/html", "imagery/png", "application/json"] {
            assert!(!ranges.contain(&media_essence(refused).expect("a media type")), "{refused}");
        }
        assert!(parse_media_ranges("*/*").expect("a range").contain("a/b"));
        for wrong in ["", "image", "image/", "*/png", "image/png|", "a b/c", "*"] {
            assert!(parse_media_ranges(wrong).is_err(), "{wrong}");
        }
        for wrong in ["", "png", "image/", "/png", "image/p ng", "image/*"] {
            assert_eq!(media_essence(wrong), None, "{wrong}");
        }
    }
}
