//! What a NIC that offers IRN is configured with, and what two NICs have agreed on.

use super::{WIDE, WINDOW};
use adverb_wire::Duration;

/// How lost packets are recovered: IRN's way, or one of the ways it is compared with (IRN 4.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Scheme {
    /// The receiver keeps what comes early; the sender sends again what is known to be lost.
    #[default]
    Selective,
    /// The receiver keeps what comes early; the sender knows the cumulative acknowledgement only, so it finds
    /// one loss a round trip.
    NoSack,
    /// The receiver keeps nothing that comes early; the sender sends everything again from the loss on.
    GoBackN,
}

/// How long a sender waits for acknowledgements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Timers {
    /// The paper's two timeouts, by what is in flight.
    Paper,
    /// The smoothed round trip and four times its variation, [`IrnConfig::rto_low`] at least and
    /// [`IrnConfig::rto_high`] at most. Before the first sample the paper's.
    Measured {
        /// Tail probes, after two round trips and this time at least.
        probe: Option<Duration>,
    },
}

/// IRN's parameters. Both ends of a connection should have the same scheme; everything else is one end's own
/// business.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IrnConfig {
    /// Recovery.
    pub scheme: Scheme,
    /// BDP-FC: packets that may be in flight in each direction of a queue pair, up to
    /// [`IrnConfig::window`]. `None` is "no BDP-FC": the bitmaps' size alone bounds them.
    pub bdp_packets: Option<u32>,
    /// Packets of each direction of a queue pair that this host can take in at once, up to
    /// [`IrnConfig::window`]: the hello says so, and the peer keeps no more in flight.
    pub receive_packets: u32,
    /// Bitmaps span [`WIDE`] packets instead of [`WINDOW`]: for simulations of fabrics with a longer
    /// bandwidth-delay product, and of IRN without BDP-FC (IRN 4.3), which otherwise the bitmaps' size stands
    /// in for. A NIC with 24 KB of bitmaps for each queue pair is none that anybody builds.
    pub wide: bool,
    /// Timeout while at most [`IrnConfig::few_packets`] are in flight.
    pub rto_low: Duration,
    /// Timeout while more are.
    pub rto_high: Duration,
    /// Which of the timeouts it is.
    pub timers: Timers,
    /// The paper's N.
    pub few_packets: u32,
    /// NACKs without progress before recovery begins; more than 1 makes it robust against reordering (IRN 7).
    pub nack_threshold: u32,
    /// Beyond the paper: retransmissions that are lost too are found by what left after them and arrived, not
    /// by the timer. BDP-FC then leaves out of its count what the receiver has, so that something does leave
    /// after them. With [`Scheme::Selective`] only.
    pub redetect: bool,
    /// Beyond the paper: a NACK names the whole run of packets that its own is one of, so that packets that
    /// arrive together are answered together, and a NACK that is lost costs no retransmission. Only between
    /// peers that both say so in their hellos; where [`IrnConfig::agreed`] stands for hellos, both do.
    pub runs: bool,
    /// Timeouts that follow each other without progress double, up to the queue pair's local ACK timeout.
    pub backoff: bool,
    /// Time from finding a packet lost until it can be sent again, as for a fetch over PCIe (IRN 6.3: 2 us).
    pub retransmit_delay: Duration,
    /// That the peers know IRN was agreed on at connection set-up, out of band, and how many packets of each
    /// direction they take in at once, up to [`IrnConfig::window`]. Then there are no hellos, and a queue
    /// pair's first request is IRN's. It takes the word of whoever says so: a peer that is plain RC drops
    /// everything, and the queue pair fails by its retry count.
    pub agreed: Option<u32>,
    /// Time after which a hello that was not answered is sent again; it doubles each time.
    pub hello_interval: Duration,
}

impl Default for IrnConfig {
    /// For real hosts, where processes wait for a processor: timeouts ten times the paper's, and tail probes
    /// before them.
    fn default() -> Self {
        IrnConfig {
            scheme: Scheme::Selective,
            bdp_packets: Some(128),
            receive_packets: WINDOW,
            wide: false,
            rto_low: Duration::from_us(1000),
            rto_high: Duration::from_us(3200),
            timers: Timers::Measured { probe: Some(Duration::from_us(200)) },
            few_packets: 3,
            nack_threshold: 1,
            redetect: true,
            runs: true,
            backoff: true,
            retransmit_delay: Duration::ZERO,
            agreed: None,
            hello_interval: Duration::from_ms(10),
        }
    }
}

impl IrnConfig {
    /// The paper's default scenario: 40 Gb/s, 24 us round trip, 110 packets of 1 KB.
    pub fn paper() -> Self {
        IrnConfig {
            bdp_packets: Some(110),
            rto_low: Duration::from_us(100),
            rto_high: Duration::from_us(320),
            timers: Timers::Paper,
            redetect: false,
            runs: false,
            backoff: false,
            hello_interval: Duration::from_us(320),
            ..Self::default()
        }
    }

    /// Whether lost retransmissions are looked for.
    #[inline]
    pub(super) fn redetects(&self) -> bool {
        self.redetect && self.scheme == Scheme::Selective
    }

    /// Packets that a bitmap spans: the most that may be in flight in one direction of a queue pair.
    #[inline]
    pub fn window(&self) -> u32 {
        if self.wide { WIDE } else { WINDOW }
    }

    /// Bitmaps span so many packets at least, and at most [`WIDE`]; connection set-up has told both ends so.
    pub fn agree_on(&mut self, packets: u32) {
        self.wide = packets > WINDOW;
        self.receive_packets = self.window();
        self.agreed = Some(self.window());
    }

    /// Packets that may be in flight towards a receiver that keeps up to `window`.
    #[inline]
    pub(crate) fn limit(&self, window: u32) -> u32 {
        self.bdp_packets.unwrap_or(self.window()).clamp(1, window)
    }
}

/// How a queue pair recovers from loss.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LossRecovery {
    /// RC as IBTA has it. This NIC does not offer IRN, or the peer has not answered.
    GoBackN,
    /// RC as IBTA has it so far; the peer is being asked.
    Undecided,
    /// The peer knows IRN; requests use it from the next moment on at which nothing is in flight.
    Irn,
    /// The peer's NIC keeps nothing of the connection (StaR). This one knows of each packet whether it was
    /// executed, and sends again what was lost.
    Star,
}
