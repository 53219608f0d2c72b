//! Parses durations and sizes with units, and formats sizes.
use std::time::Duration;

/// Parses a duration: `250ms`, `30s`, `2m`, `1h`.
pub fn parse_wait(text: &str) -> Option<Duration> {
    let (count, unit) = split_unit(text)?;
    Some(match unit {
        "ms" => Duration::from_millis(count),
        "s" => Duration::from_secs(count),
        "m" => Duration::from_secs(count.checked_mul(60)?),
        "h" => Duration::from_secs(count.checked_mul(60 * 60)?),
        _ => return None,
    })
}

/// Parses a duration that may also be given in days: `90d`.
pub fn parse_long_wait(text: &str) -> Option<Duration> {
    let days = text.strip_suffix('d').and_then(|days| days.parse::<u32>().ok());
    days.map(|days| Duration::from_secs(86_400) * days).or_else(|| parse_wait(text))
}

/// Parses a number of bytes: `512B`, `64KiB`, `8MiB`, `2GiB`.
pub fn parse_size(text: &str) -> Option<u64> {
    let (count, unit) = split_unit(text)?;
    let shift = match unit {
        "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        _ => return None,
    };
    count.checked_mul(1 << shift)
}

/// Formats a number of bytes in the largest unit it reaches, with one decimal.
pub fn format_size(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    let Some(last) = (1..=4u32).rev().find(|power| bytes >> (10 * power) > 0) else {
        return format!("{bytes} B");
    };
    let tenths = (u128::from(bytes) * 10) >> (10 * last);
    format!("{}.{} {}", tenths / 10, tenths % 10, units[last as usize - 1])
}

fn split_unit(text: &str) -> Option<(u64, &str)> {
    let (count, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    Some((count.parse().ok()?, unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_parsed_with_a_unit() {
        assert_eq!(parse_wait("250ms"), Some(Duration::from_millis(250)));
        assert_eq!(parse_wait("2m"), Some(Duration::from_secs(120)));
        assert_eq!(parse_size("64KiB"), Some(65_536));
        assert_eq!(parse_size("0B"), Some(0));
        for bad in ["", "30", "s", "-1s", "1.5s", "30 s", "1d", "99999999999999999999s", "9999999999999999h"] {
            assert_eq!(parse_wait(bad), None, "{bad}");
        }
        for bad in ["", "64", "64K", "64kb", "64 KiB", "KiB", "-1B", "99999999999GiB"] {
            assert_eq!(parse_size(bad), None, "{bad}");
        }
    }

    #[test]
    fn sizes_are_formatted_in_the_largest_unit() {
        for (bytes, shown) in
            [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1_600_000, "1.5 MiB"), (u64::MAX, "16777215.9 TiB")]
        {
            assert_eq!(format_size(bytes), shown);
        }
    }
}
