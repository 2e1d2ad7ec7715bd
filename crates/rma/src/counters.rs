//! What the driver counts beside the NIC.

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident = $text:literal,)*) => {
        /// Counters of a NIC's driver since it was opened.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct DriverCounters { $($(#[doc = $doc])* pub $name: u64,)* }

        impl DriverCounters {
            /// Names and values.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$(($text, self.$name),)*].into_iter()
            }

            /// From values in the order of their declaration, as a daemon told them.
            pub(crate) fn from_values(mut next: impl FnMut() -> u64) -> Self {
                DriverCounters { $($name: next(),)* }
            }
        }
    };
}

counters! {
    /// Datagrams received, coalesced ones once.
    rx_datagrams = "driver_rx_datagrams",
    /// Datagrams given to the kernel, those that it cuts apart once.
    tx_datagrams = "driver_tx_datagrams",
    /// Receptions that the kernel refused, such as a peer's port that is closed.
    receive_errors = "driver_receive_errors",
    /// Messages that the kernel would not send: no route, too long for the path.
    drop_send_failed = "driver_drop_send_failed",
    /// Rounds of the NIC.
    rounds = "driver_rounds",
    /// Attempts to reserve message counters that failed.
    counter_reservations_failed = "driver_counter_reservations_failed",
    /// Times that the NIC slept.
    sleeps = "driver_sleeps",
}
