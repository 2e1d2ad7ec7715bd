//! What the driver counts beside the NIC.

/// Counters of a NIC's driver since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DriverCounters {
    /// Datagrams received, coalesced ones once.
    pub rx_datagrams: u64,
    /// Datagrams given to the kernel, those that it cuts apart once.
    pub tx_datagrams: u64,
    /// Receptions that the kernel refused, such as a peer's port that is closed.
    pub receive_errors: u64,
    /// Messages that the kernel would not send: no route, too long for the path.
    pub drop_send_failed: u64,
    /// Rounds of the NIC.
    pub rounds: u64,
    /// Attempts to reserve message counters that failed.
    pub counter_reservations_failed: u64,
    /// Times that the NIC's thread slept.
    pub sleeps: u64,
}

impl DriverCounters {
    /// Names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("driver_rx_datagrams", self.rx_datagrams),
            ("driver_tx_datagrams", self.tx_datagrams),
            ("driver_receive_errors", self.receive_errors),
            ("driver_drop_send_failed", self.drop_send_failed),
            ("driver_rounds", self.rounds),
            ("driver_counter_reservations_failed", self.counter_reservations_failed),
            ("driver_sleeps", self.sleeps),
        ]
        .into_iter()
    }
}
