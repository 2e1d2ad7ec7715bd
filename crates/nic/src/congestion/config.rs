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
    /// A window that falls by the share of packets that switches have marked.
    Dctcp(DctcpConfig),
    /// A window that keeps the round-trip time at a target.
    Swift(SwiftConfig),
    /// A window that keeps links just below full, by what switches say of them.
    Hpcc(HpccConfig),
}

impl CongestionControl {
    /// Switches have to stamp packets ([`Telemetry`](super::Telemetry)), which those of a real network do
    /// not.
    pub fn needs_telemetry(&self) -> bool {
        matches!(self, CongestionControl::Hpcc(_))
    }

    /// It goes by what each acknowledgement says of one packet, so that each packet asks for one. It governs
    /// requests only: answers to READs are not acknowledged.
    pub fn heeds_each_packet(&self) -> bool {
        use CongestionControl::{Dctcp, Hpcc, Swift};
        matches!(self, Dctcp(_) | Swift(_) | Hpcc(_))
    }
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
    /// Whether it begins in slow start. Without, the first window is where additive increase begins, and slow
    /// start comes after timeouts only: AIMD, as IRN is combined with it (IRN 4.4).
    pub slow_start: bool,
}

impl Default for TcpConfig {
    fn default() -> Self {
        TcpConfig { initial: 4, slow_start: true }
    }
}

/// DCTCP (Alizadeh et al., SIGCOMM 2010; RFC 8257), names as there.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct DctcpConfig {
    /// g: weight of the newest share of marked packets in alpha.
    pub g: f64,
    /// Initial window, packets.
    pub initial: u32,
}

impl Default for DctcpConfig {
    fn default() -> Self {
        DctcpConfig { g: 1.0 / 16.0, initial: 10 }
    }
}

/// Swift (Kumar et al., SIGCOMM 2020), names as there. The paper prints no values for most; these are those
/// of htsim's Swift. What hosts add to a delay is another window there, and is not modelled.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SwiftConfig {
    /// Base target delay: a round trip, headers' and packets' times included, and the queue that is wanted.
    pub target: Duration,
    /// Additive increase, packets a round trip.
    pub ai: f64,
    /// Multiplicative decrease.
    pub beta: f64,
    /// What one decrease takes at most.
    pub max_mdf: f64,
    /// How much longer the target is for the smallest windows; zero for no scaling by flows.
    pub fs_range: Duration,
    /// Window from which on the target is not scaled, packets.
    pub fs_max_cwnd: f64,
    /// Window at which it is scaled by all of `fs_range`.
    pub fs_min_cwnd: f64,
    /// The window does not fall below this, packets.
    pub min_cwnd: f64,
    /// Initial window, packets.
    pub initial: u32,
}

impl Default for SwiftConfig {
    fn default() -> Self {
        SwiftConfig {
            target: Duration::from_us(20),
            ai: 1.0,
            beta: 0.8,
            max_mdf: 0.5,
            fs_range: Duration::from_us(100),
            fs_max_cwnd: 100.0,
            fs_min_cwnd: 0.1,
            min_cwnd: 0.001,
            initial: 10,
        }
    }
}

/// HPCC (Li et al., SIGCOMM 2019), names as there; the defaults are the paper's.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct HpccConfig {
    /// T: round trip of the idle network.
    pub base_rtt: Duration,
    /// Eta: how full links are wanted.
    pub eta: f64,
    /// maxStage: rounds of additive increase before a multiplicative one.
    pub max_stage: u32,
    /// W_AI, bytes.
    pub additive: u32,
}

impl Default for HpccConfig {
    fn default() -> Self {
        HpccConfig { base_rtt: Duration::from_us(13), eta: 0.95, max_stage: 5, additive: 80 }
    }
}
