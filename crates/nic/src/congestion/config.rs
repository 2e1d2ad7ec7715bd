//! Which scheme a NIC uses, and its parameters.

/// What the sender of a reliable queue pair does about congestion.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub enum CongestionControl {
    /// A window that halves on loss and grows again, from and up to [`NicConfig::max_unacked_packets`](crate::NicConfig):
    /// for hosts whose sockets overflow. IRN, with its own bound on what is in flight, does without it.
    #[default]
    Halving,
    /// None: the window stays at [`NicConfig::max_unacked_packets`](crate::NicConfig).
    Fixed,
}
