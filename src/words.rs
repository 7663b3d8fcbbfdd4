//! Numbers and times in sentences for people.

/// `count` with its noun, in the plural but for one.
pub(crate) fn plural(count: u64, one: &str, many: &str) -> String {
    format!("{} {}", grouped(count), either(count, one, many))
}

/// The word that goes with a count.
pub(crate) const fn either<'a>(count: u64, one: &'a str, many: &'a str) -> &'a str {
    if count == 1 { one } else { many }
}

/// Thousands apart: 1 234 567 is easier to read than 1234567.
pub(crate) fn grouped(value: u64) -> String {
    let digits = value.to_string();
    if digits.len() <= 4 {
        return digits;
    }
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push('\u{a0}');
        }
        out.push(digit);
    }
    out
}

/// Three digits of a value and its unit; the units are in steps of `step`.
pub(crate) fn scaled(value: f64, step: f64, units: &[&str]) -> String {
    let (mut value, mut unit) = (value, 0);
    // What would be rounded up to a full step has the next unit.
    while unit + 1 < units.len() && value >= step - 0.5 {
        value /= step;
        unit += 1;
    }
    let decimals = match value {
        _ if unit == 0 => 0,
        ..9.995 => 2,
        ..99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$} {}", units[unit])
}

/// A span of time: `850 ns`, `41.3 µs`, `1.25 s`.
pub(crate) fn span(ns: u64) -> String {
    scaled(ns as f64, 1000.0, &["ns", "µs", "ms", "s"])
}

/// Bits a second: `940 Mb/s`.
pub(crate) fn bit_rate(bits_per_s: f64) -> String {
    scaled(bits_per_s, 1000.0, &["b/s", "kb/s", "Mb/s", "Gb/s", "Tb/s"])
}

/// A share in per cent, with as many digits as it takes not to read 0 or 100.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    let share = part as f64 * 100.0 / whole.max(1) as f64;
    match share {
        0.0 => "0 %".into(),
        ..0.001 => "less than 0.001 %".into(),
        ..0.1 => format!("{share:.3} %"),
        ..10.0 => format!("{share:.1} %"),
        // Rounded down, so that 100 % is all of them.
        _ => format!("{:.0} %", share.floor()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        assert_eq!(grouped(1234), "1234");
        assert_eq!(grouped(1_234_567), "1\u{a0}234\u{a0}567");
        assert_eq!(plural(1, "packet", "packets"), "1 packet");
    }

    #[test]
    fn spans_have_three_digits_and_a_unit() {
        assert_eq!(span(0), "0 ns");
        assert_eq!(span(999), "999 ns");
        assert_eq!(span(41_300), "41.3 µs");
        assert_eq!(span(999_400), "999 µs");
        assert_eq!(span(999_600), "1.00 ms");
        assert_eq!(span(7_200_000_000_000), "7200 s");
    }

    #[test]
    fn shares_are_never_rounded_to_none_or_all() {
        assert_eq!(percent(0, 7), "0 %");
        assert_eq!(percent(1, 1_000_000), "less than 0.001 %");
        assert_eq!(percent(1, 2000), "0.050 %");
        assert_eq!(percent(6, 500), "1.2 %");
        assert_eq!(percent(999, 1000), "99 %");
        assert_eq!(percent(5, 5), "100 %");
        assert_eq!(percent(0, 0), "0 %");
    }
}
