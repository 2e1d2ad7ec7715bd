//! Functions of real numbers whose results are the same bits on every machine: made of additions,
//! multiplications and divisions, which IEEE 754 defines exactly. Those of the standard library call the
//! platform's, and a run would depend on where it runs.

/// Natural logarithm of a positive, normal number, within 2 units in the last place or 4e-16 near 1.
///
/// `x = m * 2^e` with `m` around 1; `ln m = 2 * atanh((m - 1) / (m + 1))` as a series.
pub fn ln(x: f64) -> f64 {
    assert!(x.is_normal() && x > 0.0, "a positive number, not {x}");
    const LN_2: f64 = core::f64::consts::LN_2;
    let bits = x.to_bits();
    let mut exponent = ((bits >> 52) & 0x7ff) as i32 - 1023;
    let mut m = f64::from_bits(bits & ((1 << 52) - 1) | 1023 << 52);
    if m > core::f64::consts::SQRT_2 {
        m *= 0.5;
        exponent += 1;
    }
    let s = (m - 1.0) / (m + 1.0);
    let square = s * s;
    // |s| is below 0.172: the term after the last is below 1e-18.
    let series = (0..12).rev().fold(0.0, |sum, n| sum * square + 1.0 / f64::from(2 * n + 1));
    f64::from(exponent) * LN_2 + 2.0 * s * series
}

/// `x` to the power `n`, by squaring.
pub fn power(x: f64, mut n: u32) -> f64 {
    let (mut result, mut square) = (1.0, x);
    while n > 0 {
        if n & 1 != 0 {
            result *= square;
        }
        square *= square;
        n >>= 1;
    }
    result
}

/// `e` to the power `x`, within 1e-15 of the result; 0 or infinity where that has no normal number.
///
/// `x = k * ln 2 + r` with `r` at most half of `ln 2`; `e^r` as a series, `2^k` as an exponent.
pub fn exp(x: f64) -> f64 {
    // ln 2 in two parts, so that k times the first one is exact.
    const HIGH: f64 = 0.693_147_180_369_123_8;
    const LOW: f64 = 1.908_214_929_270_587_7e-10;
    if x < -708.0 {
        return 0.0;
    }
    if x > 709.0 {
        return f64::INFINITY;
    }
    let scaled = x * core::f64::consts::LOG2_E;
    // Truncates towards zero: with a half more it rounds to the nearest.
    let k = (scaled + if scaled < 0.0 { -0.5 } else { 0.5 }) as i32;
    let r = x - f64::from(k) * HIGH - f64::from(k) * LOW;
    let mut sum = 1.0;
    // The term after the last is below 1e-17.
    for n in (1..=14).rev() {
        sum = 1.0 + sum * r / f64::from(n);
    }
    sum * f64::from_bits(((1023 + k) as u64) << 52)
}

/// A positive, normal `x` to the power `y`.
pub fn pow(x: f64, y: f64) -> f64 {
    exp(y * ln(x))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_platform() {
        let mut rng = fastrand::Rng::with_seed(5);
        for _ in 0..100_000 {
            let x = (1.0 - rng.f64()) * if rng.bool() { 1.0 } else { 1e6 };
            let (ours, theirs) = (ln(x), x.ln());
            assert!((ours - theirs).abs() <= 4e-16 + theirs.abs() * 5e-16, "ln {x}: {ours} {theirs}");
            let n = rng.u32(0..100_000);
            let (ours, theirs) = (power(1.0 - 1e-6, n), (1.0 - 1e-6f64).powi(n as i32));
            assert!((ours / theirs - 1.0).abs() < 1e-10);
            let y = rng.f64() * 20.0 - 10.0;
            let (ours, theirs) = (exp(y * 60.0), (y * 60.0).exp());
            assert!((ours / theirs - 1.0).abs() < 1e-14, "exp {}: {ours} {theirs}", y * 60.0);
            let (ours, theirs) = (pow(x, y), x.powf(y));
            assert!((ours / theirs - 1.0).abs() < 1e-13, "{x} to the power {y}: {ours} {theirs}");
        }
    }

    /// Bits that every machine must have: the trace of a scenario hangs on them.
    #[test]
    fn results_are_these_bits() {
        assert_eq!(ln(1.0), 0.0);
        assert_eq!(ln(2.0).to_bits(), core::f64::consts::LN_2.to_bits());
        assert_eq!(ln(0.1).to_bits(), 0xc002_6bb1_bbb5_5515);
        assert_eq!(power(0.5, 10), 1.0 / 1024.0);
        assert_eq!((exp(0.0), exp(-1000.0), exp(1000.0)), (1.0, 0.0, f64::INFINITY));
        assert_eq!(pow(1024.0, 0.0), 1.0);
        assert_eq!(power(0.999, 1000).to_bits(), 0x3fd7_8852_6411_edac);
    }
}
