//! Valid and invalid UTF-8 (RFC 3629), in the order of Markus Kuhn's decoder stress test, which Autobahn's groups
//! 6.5 to 6.23 follow too. Generated from the ranges, not copied.

/// Returns valid texts, with the number of their group.
pub(crate) fn valid() -> Vec<(&'static str, String)> {
    let char = |code| char::from_u32(code).expect("a character").to_string();
    let mut all = vec![("6.5", "κόσμε".to_owned()), ("6.2", "Hello-µ@ßöäüàá-UTF-8!!".to_owned())];
    // First and last code point of each encoded length, and those around the surrogates.
    for code in [0x7f, 0x80, 0x7ff, 0x800, 0xd7ff, 0xe000, 0xfffd, 0xffff, 0x1_0000, 0x10_ffff] {
        all.push(("6.6", char(code)));
    }
    for (first, last) in [(0xa0, 0xb0), (0x4e00, 0x4e0a), (0x1_f600, 0x1_f607)] {
        all.push(("6.6", (first..last).map(char).collect()));
    }
    all
}

/// Returns noncharacters, which may be sent.
pub(crate) fn noncharacters() -> Vec<(&'static str, String)> {
    let codes = (0..=0x10).flat_map(|plane| [plane << 16 | 0xfffe, plane << 16 | 0xffff]);
    codes.map(|code| ("6.22", char::from_u32(code).expect("a scalar value").to_string())).collect()
}

/// Returns byte sequences that are invalid, with the number of their group.
pub(crate) fn invalid() -> Vec<(&'static str, Vec<u8>)> {
    let mut all: Vec<(&str, Vec<u8>)> = Vec::new();
    let mut add = |group, bytes: &[u8]| all.push((group, bytes.to_vec()));
    // Code points beyond the range, and forms of five and six bytes.
    add("6.7", b"\xf7\xbf\xbf\xbf");
    add("6.7", b"\xfb\xbf\xbf\xbf\xbf");
    add("6.7", b"\xfd\xbf\xbf\xbf\xbf\xbf");
    add("6.8", b"\xf8\x88\x80\x80\x80");
    add("6.8", b"\xfc\x84\x80\x80\x80\x80");
    add("6.9", b"\xf4\x90\x80\x80");
    // Continuation bytes without a first byte.
    add("6.10", b"\x80");
    add("6.10", b"\xbf");
    for count in 2..8 {
        let bytes: Vec<u8> = [0x80, 0xbf].into_iter().cycle().take(count).collect();
        add("6.10", &bytes);
    }
    let lonely: Vec<u8> = (0x80..0xc0).collect();
    add("6.10", &lonely);
    // First bytes without continuation bytes.
    for first in 0xc0..0xfe {
        add("6.11", &[first, b' ']);
    }
    for (first, more) in [(0xc0, 0x80), (0xdf, 0xbf)] {
        for length in 1..6 {
            // 110…, 1110…, and so on: the first byte of a form of `length` + 1 bytes, one of which is missing.
            let marker = !0u8 << (7 - length);
            let begin = if first == 0xc0 { marker } else { marker | (0xff >> (length + 2)) };
            let mut bytes = vec![begin];
            bytes.extend(vec![more; length - 1]);
            add("6.12", &bytes);
        }
    }
    add("6.13", b"\xc0\xe0\x80\xf0\x80\x80\xf8\x80\x80\x80\xfc\x80\x80\x80\x80");
    add("6.13", b"\xdf\xef\xbf\xf7\xbf\xbf\xfb\xbf\xbf\xbf\xfd\xbf\xbf\xbf\xbf");
    for bytes in [&b"\xfe"[..], b"\xff", b"\xfe\xfe\xff\xff"] {
        add("6.14", bytes);
    }
    // Overlong forms: of a slash, of the last code point that fits into fewer bytes, and of zero.
    for bytes in [&b"\xc0\xaf"[..], b"\xe0\x80\xaf", b"\xf0\x80\x80\xaf", b"\xf8\x80\x80\x80\xaf"] {
        add("6.15", bytes);
    }
    add("6.15", b"\xfc\x80\x80\x80\x80\xaf");
    for bytes in [&b"\xc1\xbf"[..], b"\xe0\x9f\xbf", b"\xf0\x8f\xbf\xbf", b"\xf8\x87\xbf\xbf\xbf"] {
        add("6.16", bytes);
    }
    add("6.16", b"\xfc\x83\xbf\xbf\xbf\xbf");
    for bytes in [&b"\xc0\x80"[..], b"\xe0\x80\x80", b"\xf0\x80\x80\x80", b"\xf8\x80\x80\x80\x80"] {
        add("6.17", bytes);
    }
    add("6.17", b"\xfc\x80\x80\x80\x80\x80");
    // Surrogates, alone and in pairs.
    let surrogate = |code: u16| [0xed, 0x80 | (code >> 6 & 0x3f) as u8, 0x80 | (code & 0x3f) as u8];
    for code in [0xd800, 0xdb7f, 0xdb80, 0xdbff, 0xdc00, 0xdf80, 0xdfff] {
        add("6.18", &surrogate(code));
    }
    for high in [0xd800, 0xdb7f, 0xdb80, 0xdbff] {
        for low in [0xdc00, 0xdfff] {
            add("6.19", &[surrogate(high), surrogate(low)].concat());
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn utf8_tables_are_consistent_with_the_standard_library() {
        assert!(valid().len() > 10 && noncharacters().len() == 34 && invalid().len() > 100);
        for (group, bytes) in invalid() {
            assert!(std::str::from_utf8(&bytes).is_err(), "{group} {bytes:02x?}");
        }
    }
}
