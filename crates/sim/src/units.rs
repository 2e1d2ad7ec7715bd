//! Quantities as people write them: `100G`, `1us`, `20MB`, `12 packets`.

use adverb_wire::Duration;

/// Splits a quantity into its number and its unit.
fn split(text: &str) -> Result<(f64, &str), String> {
    let text = text.trim();
    let at = text.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_')).unwrap_or(text.len());
    let number: f64 =
        text[..at].replace('_', "").parse().map_err(|_| format!("`{text}` does not start with a number"))?;
    Ok((number, text[at..].trim()))
}

/// A time: `ps`, `ns`, `us`, `ms`, `s`.
pub fn parse_time(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text)?;
    let ps = match unit {
        "ps" => 1.0,
        "ns" => 1e3,
        "us" => 1e6,
        "ms" => 1e9,
        "s" => 1e12,
        _ => return Err(format!("`{text}` needs a unit of time: ps, ns, us, ms or s")),
    };
    Ok(Duration::from_ps((number * ps).round() as u64))
}

/// A rate in bits per second: `M`, `G`, `T`, with or without `bps` or `b/s`.
pub fn parse_rate(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text)?;
    let factor = match unit.trim_end_matches("b/s").trim_end_matches("bps").trim_end() {
        "" if unit.is_empty() => 1.0,
        "K" | "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        _ => return Err(format!("`{text}` needs a unit of rate: M, G or T (bits per second)")),
    };
    Ok((number * factor).round() as u64)
}

/// Bytes: a plain number, or `B`, `KB`, `MB`, `GB` (powers of 1000), `KiB`, `MiB`, `GiB`.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text)?;
    let factor = match unit {
        "" | "B" => 1.0,
        "KB" | "kB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        "KiB" => 1024.0,
        "MiB" => 1024.0 * 1024.0,
        "GiB" => 1024.0 * 1024.0 * 1024.0,
        _ => return Err(format!("`{text}` needs a unit of size: B, KB, MB, GB, KiB, MiB or GiB")),
    };
    Ok((number * factor).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read() {
        assert_eq!(parse_time("1us"), Ok(Duration::from_us(1)));
        assert_eq!(parse_time("1.5 ns"), Ok(Duration::from_ps(1500)));
        assert_eq!(parse_rate("100G"), Ok(100_000_000_000));
        assert_eq!(parse_rate("40 Gbps"), Ok(40_000_000_000));
        assert_eq!(parse_bytes("20MB"), Ok(20_000_000));
        assert_eq!(parse_bytes("4 KiB"), Ok(4096));
        assert_eq!(parse_bytes("1_000"), Ok(1000));
        assert!(parse_time("5").unwrap_err().contains("unit of time"));
        assert!(parse_rate("fast").is_err());
        assert!(parse_bytes("3 packets").is_err());
    }
}
