//! Wall-clock time in the forms that logs and folder names need, always UTC.

use jiff::Timestamp;
use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds since the Unix epoch.
pub fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |elapsed| elapsed.as_secs_f64())
}

/// `YYYY-MM-DD HH:MM:SS.ffffff`
pub fn date_time(unix_seconds: f64) -> String {
    timestamp(unix_seconds).strftime("%Y-%m-%d %H:%M:%S%.6f").to_string()
}

/// `YYYYMMDD-HHMMSS`, for names of folders.
pub fn compact(unix_seconds: f64) -> String {
    timestamp(unix_seconds).strftime("%Y%m%d-%H%M%S").to_string()
}

/// To the nearest microsecond, within the years that the calendar has.
fn timestamp(unix_seconds: f64) -> Timestamp {
    let microseconds = (unix_seconds * 1e6).round() as i64;
    let nearest = if microseconds < 0 { Timestamp::MIN } else { Timestamp::MAX };
    Timestamp::from_microsecond(microseconds).unwrap_or(nearest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_moments() {
        assert_eq!(date_time(0.0), "1970-01-01 00:00:00.000000");
        assert_eq!(date_time(951_827_696.5), "2000-02-29 12:34:56.500000");
        assert_eq!(date_time(1_735_689_599.0), "2024-12-31 23:59:59.000000");
        assert_eq!(compact(1_735_689_600.0), "20250101-000000");
        assert!(date_time(f64::INFINITY).starts_with("9999-12-30"), "the last day of the calendar");
    }
}
