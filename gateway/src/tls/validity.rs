//! Parses the end of a certificate's validity, the only X.509 field (RFC 5280 §4.1.2.5) that no dependency exposes. The
//! input is the operator's own file; malformed input yields `None`.
use turnway_core::time::Millis;

const SEQUENCE: u8 = 0x30;
/// Tag of the version field, which comes first and is present only if the version is not 1.
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// Returns the end of validity of a DER certificate, or `None` if it cannot be parsed.
pub(super) fn not_after(certificate: &[u8]) -> Option<Millis> {
    let certificate = take_element(&mut &*certificate, SEQUENCE)?;
    let mut body = take_element(&mut &*certificate, SEQUENCE)?;
    if body.first() == Some(&VERSION) {
        next_element(&mut body)?;
    }
    // Skips serial number, signature algorithm and issuer.
    for _ in 0..3 {
        next_element(&mut body)?;
    }
    let mut validity = take_element(&mut body, SEQUENCE)?;
    next_element(&mut validity)?;
    let (tag, text) = next_element(&mut validity)?;
    parse_time(tag, text)
}

/// Returns the tag and the content of the next element.
fn next_element<'a>(bytes: &mut &'a [u8]) -> Option<(u8, &'a [u8])> {
    let [tag, short, rest @ ..] = *bytes else { return None };
    let (length, rest) = match *short {
        short @ 0..=0x7f => (usize::from(short), rest),
        // Number of length bytes. A length of more than four bytes is not a certificate's.
        long @ 0x81..=0x84 => {
            let (length, rest) = rest.split_at_checked(usize::from(long - 0x80))?;
            (length.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    *bytes = rest;
    Some((*tag, content))
}

fn take_element<'a>(bytes: &mut &'a [u8], tag: u8) -> Option<&'a [u8]> {
    next_element(bytes).filter(|(found, _)| *found == tag).map(|(_, content)| content)
}

/// Parses `YYMMDDHHMMSSZ`, with years from 1950 to 2049, or `YYYYMMDDHHMMSSZ`.
fn parse_time(tag: u8, text: &[u8]) -> Option<Millis> {
    let text = std::str::from_utf8(text).ok()?.strip_suffix('Z')?;
    let (year, rest) = match tag {
        UTC_TIME => text.split_at_checked(2)?,
        GENERALIZED_TIME => text.split_at_checked(4)?,
        _ => return None,
    };
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if rest.len() != 10 || !is_number(year) || !is_number(rest) {
        return None;
    }
    let year: u64 = year.parse().ok()?;
    let year = match (tag, year) {
        (UTC_TIME, 50..) => 1900 + year,
        (UTC_TIME, _) => 2000 + year,
        (_, _) => year,
    };
    let part = |at: usize| rest[at..at + 2].parse::<u64>().ok();
    let days = days_since_epoch(year, part(0)?, part(2)?)?;
    let seconds = ((days * 24 + part(4)?) * 60 + part(6)?) * 60 + part(8)?;
    Some(Millis(seconds * 1000))
}

/// Returns the days from 1970 to a date (Howard Hinnant's `days_from_civil`, with years that begin in March). An
/// earlier date yields 0: the certificate expired long ago.
fn days_since_epoch(year: u64, month: u64, day: u64) -> Option<u64> {
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let year = year.checked_sub(u64::from(month <= 2))?;
    let era = year / 400;
    let of_era = year % 400;
    let from_march = (month + 9) % 12;
    let of_year = (153 * from_march + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year;
    Some(days.saturating_sub(719_468))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;

    #[test]
    fn certificate_times_are_parsed_in_both_formats() {
        for (tag, text, seconds) in [
            (UTC_TIME, "700101000000Z", 0),
            (UTC_TIME, "000229235959Z", 951_868_799),
            (UTC_TIME, "491231235959Z", 2_524_607_999),
            (UTC_TIME, "500101000000Z", 0),
            (GENERALIZED_TIME, "20500101000000Z", 2_524_608_000),
            (GENERALIZED_TIME, "99991231235959Z", 253_402_300_799),
        ] {
            assert_eq!(parse_time(tag, text.as_bytes()), Some(Millis(seconds * 1000)), "{text}");
        }
        for (tag, text) in [
            (UTC_TIME, "20500101000000Z"),
            (UTC_TIME, "500101000000"),
            (UTC_TIME, "50+101000000Z"),
            (UTC_TIME, "501301000000Z"),
            (GENERALIZED_TIME, "500101000000Z"),
            (0x04, "500101000000Z"),
            (UTC_TIME, ""),
        ] {
            assert_eq!(parse_time(tag, text.as_bytes()), None, "{text}");
        }
    }

    /// Uses a certificate made by OpenSSL, valid for a hundred years.
    #[test]
    fn certificate_expiry_is_read() {
        let pem = include_bytes!("../../../tests/tls/server.pem");
        let whole = CertificateDer::from_pem_slice(pem).expect("a certificate");
        // openssl x509 -enddate: Oct 29 05:27:31 2126 GMT
        assert_eq!(not_after(&whole), Some(Millis(4_948_925_251_000)));
        for cut in 0..200 {
            // Truncated input yields `None`, and no input panics.
            assert_eq!(not_after(&whole[..cut]), None);
        }
        let mut bent = whole.to_vec();
        for at in 0..120 {
            for value in [0, 0x30, 0x80, 0x84, 0xff] {
                let was = std::mem::replace(&mut bent[at], value);
                let _ = not_after(&bent);
                bent[at] = was;
            }
        }
    }
}
