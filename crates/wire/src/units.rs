//! Units that every layer shares: packet sequence numbers, queue pair numbers, keys, global
//! identifiers, and virtual or real time in picoseconds.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::ops::{Add, AddAssign, Sub};

/// A 24-bit packet sequence number; arithmetic wraps modulo 2^24 (IBTA 9.7.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    /// Number of bits on the wire.
    pub const BITS: u32 = 24;
    /// Largest value, `2^24 - 1`.
    pub const MASK: u32 = (1 << Self::BITS) - 1;

    /// Takes the low 24 bits.
    #[inline]
    pub const fn new(value: u32) -> Self {
        Psn(value & Self::MASK)
    }

    /// The value, `0..2^24`.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The PSN after this one.
    #[inline]
    pub const fn next(self) -> Self {
        self.add(1)
    }

    /// The PSN before this one.
    #[inline]
    pub const fn previous(self) -> Self {
        Psn(self.0.wrapping_sub(1) & Self::MASK)
    }

    /// This PSN advanced by `count` packets.
    #[inline]
    pub const fn add(self, count: u32) -> Self {
        Psn(self.0.wrapping_add(count) & Self::MASK)
    }

    /// Signed circular distance from `earlier` to `self`, in packets, in `-2^23..2^23`.
    /// Positive when `self` is the later one.
    #[inline]
    pub const fn since(self, earlier: Psn) -> i32 {
        (((self.0.wrapping_sub(earlier.0)) << 8) as i32) >> 8
    }

    /// Whether `self` comes before `other` on the circle.
    #[inline]
    pub const fn is_before(self, other: Psn) -> bool {
        self.since(other) < 0
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A 24-bit queue pair number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct QpNumber(u32);

impl QpNumber {
    /// Subnet management; never used on RoCE.
    pub const SMI: QpNumber = QpNumber(0);
    /// General services: the communication manager's UD queue pair.
    pub const GSI: QpNumber = QpNumber(1);
    /// Destination of multicast packets (IBTA 9.2.3).
    pub const MULTICAST: QpNumber = QpNumber(0xff_ffff);

    /// Takes the low 24 bits.
    #[inline]
    pub const fn new(value: u32) -> Self {
        QpNumber(value & 0xff_ffff)
    }

    /// The value, `0..2^24`.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Debug for QpNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

impl fmt::Display for QpNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A local or remote memory key (lkey, rkey). The low byte is the part that a consumer may choose
/// when it binds a window (IBTA 10.6.7.2.2); the upper 24 bits name the region or window.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Key(pub u32);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

/// Two words that a processor has in one register.
#[cfg(target_arch = "x86_64")]
type Pair = core::arch::x86_64::__m128i;
#[cfg(not(target_arch = "x86_64"))]
type Pair = [u64; 2];

/// Two numbers side by side, lowest bytes first, which are written at once.
#[inline(always)]
pub(crate) fn pair(first: u64, second: u64) -> [u8; 16] {
    let pair: Pair = zerocopy::transmute!([first.to_le(), second.to_le()]);
    zerocopy::transmute!(pair)
}

/// A 128-bit global identifier. On RoCEv2 it is an IPv6 address, or an IPv4 address in its
/// IPv4-mapped form `::ffff:a.b.c.d` (IBTA annex A17.4.5).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The IP address that this identifier stands for.
    #[inline]
    pub fn ip(self) -> IpAddr {
        let v6 = Ipv6Addr::from(self.0);
        match v6.to_ipv4_mapped() {
            Some(v4) => IpAddr::V4(v4),
            None => IpAddr::V6(v6),
        }
    }

    /// Whether packets to or from this identifier are IPv4.
    #[inline]
    pub fn is_ipv4(self) -> bool {
        self.bits() >> 32 == 0xffff
    }

    /// Whether this is a multicast group, IPv4 or IPv6.
    #[inline]
    pub fn is_multicast(self) -> bool {
        let bits = self.bits();
        if self.is_ipv4() { bits >> 28 & 0xf == 0xe } else { bits >> 120 == 0xff }
    }

    /// Its bits as a number, to look it up by.
    #[inline]
    pub fn bits(self) -> u128 {
        u128::from_be_bytes(self.0)
    }

    /// The all-zero identifier, which names nothing.
    pub fn is_zero(self) -> bool {
        self.0 == [0; 16]
    }
}

impl From<IpAddr> for Gid {
    fn from(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(v4) => v4.into(),
            IpAddr::V6(v6) => Gid(v6.octets()),
        }
    }
}

impl From<Ipv4Addr> for Gid {
    fn from(ip: Ipv4Addr) -> Self {
        // As one number, which is one store.
        let last = u64::from(u32::from_le_bytes(ip.octets())) << 32 | 0xffff_0000;
        Gid(pair(0, last))
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.ip())
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.ip())
    }
}

/// A point in time, in picoseconds from an epoch that the driver chooses (simulation start, or the
/// process's own start). Picoseconds keep 400 Gb/s exact: one byte takes 20 ps. The range is 213 days.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(u64);

impl Instant {
    /// The driver's epoch.
    pub const ZERO: Instant = Instant(0);
    /// Later than every other instant; stands for "never".
    pub const NEVER: Instant = Instant(u64::MAX);

    /// From picoseconds since the epoch.
    #[inline]
    pub const fn from_ps(ps: u64) -> Self {
        Instant(ps)
    }

    /// From nanoseconds since the epoch.
    #[inline]
    pub const fn from_ns(ns: u64) -> Self {
        Instant(ns * 1_000)
    }

    /// Picoseconds since the epoch.
    #[inline]
    pub const fn as_ps(self) -> u64 {
        self.0
    }

    /// Time from `earlier` to `self`; zero when `earlier` is the later one.
    #[inline]
    pub const fn since(self, earlier: Instant) -> Duration {
        Duration(self.0.saturating_sub(earlier.0))
    }
}

impl Instant {
    /// So long ago; zero at the earliest.
    #[inline]
    pub const fn before(self, time: Duration) -> Instant {
        Instant::from_ps(self.as_ps().saturating_sub(time.as_ps()))
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;
    #[inline]
    fn add(self, d: Duration) -> Instant {
        Instant(self.0.saturating_add(d.0))
    }
}

impl AddAssign<Duration> for Instant {
    #[inline]
    fn add_assign(&mut self, d: Duration) {
        *self = *self + d;
    }
}

impl Sub for Instant {
    type Output = Duration;
    #[inline]
    fn sub(self, earlier: Instant) -> Duration {
        self.since(earlier)
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06} us", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}

/// A length of time in picoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Duration(u64);

impl Duration {
    /// No time.
    pub const ZERO: Duration = Duration(0);

    /// From picoseconds.
    #[inline]
    pub const fn from_ps(ps: u64) -> Self {
        Duration(ps)
    }

    /// From nanoseconds.
    #[inline]
    pub const fn from_ns(ns: u64) -> Self {
        Duration(ns * 1_000)
    }

    /// From microseconds.
    #[inline]
    pub const fn from_us(us: u64) -> Self {
        Duration(us * 1_000_000)
    }

    /// From milliseconds.
    #[inline]
    pub const fn from_ms(ms: u64) -> Self {
        Duration(ms * 1_000_000_000)
    }

    /// In picoseconds.
    #[inline]
    pub const fn as_ps(self) -> u64 {
        self.0
    }

    /// In whole nanoseconds, rounded down.
    #[inline]
    pub const fn as_ns(self) -> u64 {
        self.0 / 1_000
    }

    /// This length `n` times.
    #[inline]
    pub const fn times(self, n: u64) -> Self {
        Duration(self.0.saturating_mul(n))
    }
}

impl Duration {
    /// This without another; zero at the least.
    #[inline]
    pub const fn minus(self, other: Duration) -> Duration {
        Duration::from_ps(self.as_ps().saturating_sub(other.as_ps()))
    }
}

impl Add for Duration {
    type Output = Duration;
    #[inline]
    fn add(self, other: Duration) -> Duration {
        Duration(self.0.saturating_add(other.0))
    }
}

impl fmt::Debug for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06} us", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn psn_distance_wraps() {
        let last = Psn::new(0xff_ffff);
        assert_eq!(last.next(), Psn::new(0));
        assert_eq!(Psn::new(2).since(last), 3);
        assert_eq!(last.since(Psn::new(2)), -3);
        assert!(last.is_before(Psn::new(0)));
        assert_eq!(Psn::new(0).previous(), last);
        assert_eq!(Psn::new(0x80_0000).since(Psn::new(0)), -(1 << 23));
    }

    #[test]
    fn gid_maps_ipv4() {
        let g = Gid::from(Ipv4Addr::new(10, 0, 0, 1));
        assert!(g.is_ipv4());
        assert_eq!(g.ip(), IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)));
        assert!(!Gid::from(IpAddr::V6(Ipv6Addr::LOCALHOST)).is_ipv4());
    }
}
