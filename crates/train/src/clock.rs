//! Wall-clock time in the forms that logs and folder names need, always UTC.

use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds since the Unix epoch.
pub fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |elapsed| elapsed.as_secs_f64())
}

/// A moment of the proleptic Gregorian calendar, UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Civil {
    pub year: i64,
    pub month: u32,
    pub day: u32,
    pub hour: u32,
    pub minute: u32,
    pub second: u32,
    pub microsecond: u32,
}

impl Civil {
    /// The calendar date and time of `unix_seconds`.
    ///
    /// Days are converted with the era arithmetic of H. Hinnant, "chrono-Compatible Low-Level Date Algorithms".
    pub fn from_unix(unix_seconds: f64) -> Self {
        let microseconds = (unix_seconds * 1e6).round() as i64;
        let seconds = microseconds.div_euclid(1_000_000);
        let second_of_day = seconds.rem_euclid(86_400) as u32;

        let days = seconds.div_euclid(86_400) + 719_468;
        let era = days.div_euclid(146_097);
        let day_of_era = days.rem_euclid(146_097);
        let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let shifted_month = (5 * day_of_year + 2) / 153;
        let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };

        Self {
            year: year_of_era + era * 400 + i64::from(month <= 2),
            month: month as u32,
            day: (day_of_year - (153 * shifted_month + 2) / 5 + 1) as u32,
            hour: second_of_day / 3600,
            minute: second_of_day / 60 % 60,
            second: second_of_day % 60,
            microsecond: microseconds.rem_euclid(1_000_000) as u32,
        }
    }

    /// `YYYYMMDD-HHMMSS`, for names of folders.
    pub fn compact(&self) -> String {
        let Self { year, month, day, hour, minute, second, .. } = self;
        format!("{year:04}{month:02}{day:02}-{hour:02}{minute:02}{second:02}")
    }
}

impl std::fmt::Display for Civil {
    /// `YYYY-MM-DD HH:MM:SS.ffffff`
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { year, month, day, hour, minute, second, microsecond } = self;
        write!(f, "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{microsecond:06}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_moments() {
        assert_eq!(Civil::from_unix(0.0).to_string(), "1970-01-01 00:00:00.000000");
        assert_eq!(Civil::from_unix(951_827_696.5).to_string(), "2000-02-29 12:34:56.500000");
        assert_eq!(Civil::from_unix(1_735_689_599.0).to_string(), "2024-12-31 23:59:59.000000");
        assert_eq!(Civil::from_unix(1_735_689_600.0).compact(), "20250101-000000");
    }
}
