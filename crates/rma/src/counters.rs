//! What the driver and the daemon count beside the NIC.

macro_rules! counters {
    ($(#[doc = $about:literal])* $counters:ident; $($(#[doc = $doc:literal])* $name:ident = $text:literal,)*) => {
        $(#[doc = $about])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct $counters { $($(#[doc = $doc])* pub $name: u64,)* }

        impl $counters {
            /// Names and values.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$(($text, self.$name),)*].into_iter()
            }

            /// From values in the order of their declaration, as a daemon told them.
            pub(crate) fn from_values(mut next: impl FnMut() -> u64) -> Self {
                $counters { $($name: next(),)* }
            }
        }
    };
}

counters! {
    /// Counters of a NIC's driver since it was opened.
    DriverCounters;
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

counters! {
    /// What the daemon counts beside the NIC and its driver.
    NicdCounters;
    /// Connections taken.
    connections = "nicd_connections",
    /// Applications that ended, or died.
    gone = "nicd_gone",
    /// Applications let go because they broke the protocol.
    misbehaved = "nicd_misbehaved",
    /// Connections closed because there were too many, of all or of one process.
    turned_away = "nicd_turned_away",
    /// Commands refused: of an application that names what is not its own, or what cannot be.
    commands_refused = "nicd_commands_refused",
}
