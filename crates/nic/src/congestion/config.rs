//! Which scheme a NIC uses, and its parameters with their sources.

use adverb_wire::Duration;

/// What the sender of a reliable queue pair does about congestion.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub enum CongestionControl {
    /// A window that halves on loss and grows again, from and up to
    /// [`NicConfig::max_unacked_packets`](crate::NicConfig): for hosts whose sockets overflow. IRN, with its
    /// own bound on what is in flight, does without it.
    #[default]
    Halving,
    /// None: the window stays at [`NicConfig::max_unacked_packets`](crate::NicConfig).
    Fixed,
    /// A rate that falls when switches mark packets, and rises with time and bytes.
    Dcqcn(DcqcnConfig),
    /// A rate that follows the round-trip time and its slope.
    Timely(TimelyConfig),
    /// A window as TCP's: slow start, additive increase, halved once for a window with losses. With IRN's
    /// recovery, and without its BDP flow control, it is the iWARP-like baseline (IRN 4.6).
    Tcp(TcpConfig),
}

/// DCQCN (Zhu et al., SIGCOMM 2015), names as there. The defaults are the paper's;
/// [`DcqcnConfig::rate_hyper`] is ten times the additive step, as in the simulator that HPCC's authors
/// published.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct DcqcnConfig {
    /// g: weight of the newest notification in alpha.
    pub g: f64,
    /// R_AI, bits/s.
    pub rate_additive: f64,
    /// R_HAI, bits/s.
    pub rate_hyper: f64,
    /// Alpha decays when no notification came for this long.
    pub alpha_interval: Duration,
    /// T: the timer of rate increase.
    pub increase_interval: Duration,
    /// B: the byte counter of rate increase.
    pub increase_bytes: u64,
    /// F: cycles of fast recovery.
    pub fast_recovery: u32,
    /// The rate does not fall below this, bits/s: a packet of 4 KB each third of a millisecond, well inside
    /// usual timeouts.
    pub rate_min: f64,
    /// N: the receiver sends at most one notification for a queue pair in this time. It holds on a NIC that
    /// uses another scheme too, with its default.
    pub cnp_interval: Duration,
}

impl Default for DcqcnConfig {
    fn default() -> Self {
        DcqcnConfig {
            g: 1.0 / 256.0,
            rate_additive: 40e6,
            rate_hyper: 400e6,
            alpha_interval: Duration::from_us(55),
            increase_interval: Duration::from_us(55),
            increase_bytes: 10_000_000,
            fast_recovery: 5,
            rate_min: 100e6,
            cnp_interval: Duration::from_us(50),
        }
    }
}

/// TIMELY (Mittal et al., SIGCOMM 2015), names as there, values of the paper.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TimelyConfig {
    /// Weight of the newest difference between round-trip times.
    pub ewma: f64,
    /// Multiplicative decrease.
    pub beta: f64,
    /// Below this the rate only rises.
    pub t_low: Duration,
    /// Above this it only falls.
    pub t_high: Duration,
    /// What a gradient is measured against.
    pub min_rtt: Duration,
    /// Additive step, bits/s.
    pub delta: f64,
    /// Samples without a rise after which the step is five times as large.
    pub hai_after: u32,
    /// Bytes of a segment: its completion is a sample (the paper's are 16 to 64 KB).
    pub segment: u32,
    /// The rate does not fall below this, bits/s.
    pub rate_min: f64,
}

impl Default for TimelyConfig {
    fn default() -> Self {
        TimelyConfig {
            ewma: 0.875,
            beta: 0.8,
            t_low: Duration::from_us(50),
            t_high: Duration::from_us(500),
            min_rtt: Duration::from_us(20),
            delta: 10e6,
            hai_after: 5,
            segment: 16 << 10,
            rate_min: 100e6,
        }
    }
}

/// TCP's window (RFC 5681), in packets.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TcpConfig {
    /// Initial window (RFC 3390: 4 KB, so up to 4 packets of 1 KB).
    pub initial: u32,
}

impl Default for TcpConfig {
    fn default() -> Self {
        TcpConfig { initial: 4 }
    }
}
