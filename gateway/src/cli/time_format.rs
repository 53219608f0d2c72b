//! Formats times for people, and parses the waits that they write. Used by the commands that print tables, and by the
//! replay.
use super::table::stdout_is_terminal;
use crate::config::amount::parse_long_wait;
use std::time::Duration;

/// Parses a wait of minutes to days, as an option has it.
pub(super) fn parse_wait(text: &str) -> Result<Duration, String> {
    parse_long_wait(text).ok_or_else(|| "expected a time such as 7d, 12h or 30m".to_owned())
}

/// Formats Unix milliseconds as an ISO 8601 date and time of day, UTC.
pub(super) fn format_date(ms: u64) -> String {
    let days = ms / 86_400_000;
    let of_day = ms % 86_400_000;
    // Howard Hinnant's `days_to_civil`, for dates after 1970; years begin in March.
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let of_era = shifted % 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let hour = of_day / 3_600_000;
    let minute = of_day / 60_000 % 60;
    let second = of_day / 1000 % 60;
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", ms % 1000)
}

/// Formats the time that has passed since `ms` in one unit, short enough for a table column.
pub(super) fn format_ago(ms: u64, now: u64) -> String {
    let seconds = now.saturating_sub(ms) / 1000;
    match seconds {
        0..60 => format!("{seconds}s ago"),
        60..3600 => format!("{}m ago", seconds / 60),
        3600..86_400 => format!("{}h ago", seconds / 3600),
        86_400.. => format!("{}d ago", seconds / 86_400),
    }
}

/// Returns the form of a past time in a table: its age on a terminal, else its date.
pub(super) fn format_time(ms: u64, now: u64) -> String {
    if stdout_is_terminal() { format_ago(ms, now) } else { format_date(ms) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elapsed_time_is_shown_in_one_unit() {
        let cases = [(0, "0s ago"), (59_999, "59s ago"), (60_000, "1m ago"), (7_200_000, "2h ago")];
        for (passed, expected) in cases {
            assert_eq!(format_ago(1_000_000, 1_000_000 + passed), expected);
        }
        assert_eq!(format_ago(0, 90 * 86_400_000), "90d ago");
        // The clock of this machine is behind.
        assert_eq!(format_ago(5_000, 0), "0s ago");
    }

    #[test]
    fn timestamps_are_formatted_as_calendar_dates() {
        assert_eq!(format_date(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(format_date(951_782_400_000), "2000-02-29T00:00:00.000Z");
        assert_eq!(format_date(1_764_000_000_123), "2025-11-24T16:00:00.123Z");
        assert_eq!(format_date(1_735_689_599_999), "2024-12-31T23:59:59.999Z");
    }
}
