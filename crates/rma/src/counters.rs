//! What the driver and the daemon count beside the NIC.

macro_rules! counters {
    (
        $(#[doc = $about:literal])* $counters:ident;
        $($(#[doc = $doc:literal])* $name:ident = $text:literal,)*
    ) => {
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
    /// Peers of this host that were found, and are reached through shared memory.
    near_links = "driver_near_links",
    /// Messages received through shared memory.
    near_rx_messages = "driver_near_rx_messages",
    /// Messages sent through shared memory.
    near_tx_messages = "driver_near_tx_messages",
    /// Sleeping peers that were woken for them.
    near_bells = "driver_near_bells",
    /// Messages that found a peer's ring full, and were dropped.
    near_drop_full = "driver_near_drop_full",
    /// Peers that broke the rules of their ring, and are reached over UDP again.
    near_broken = "driver_near_broken",
    /// Peers of this host that could not be agreed with, such as those of another version; they are reached
    /// over UDP.
    near_failed = "driver_near_failed",
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
    /// Connections closed because there were too many: of all, of one user or of one process.
    turned_away = "nicd_turned_away",
    /// Commands refused: of an application that names what is not its own, or what cannot be.
    commands_refused = "nicd_commands_refused",
    /// Connections closed because nothing was said on them in time.
    silent = "nicd_silent",
}
