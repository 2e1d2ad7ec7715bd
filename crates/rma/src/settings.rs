//! What a program may choose.

use adverb_nic::one_rma::congestion::CongestionConfig;
use adverb_nic::one_rma::{ExecutorConfig, OneRmaConfig, PRIORITIES};
use adverb_os::choice::PathPolicy;
use adverb_os::faults::Faults;
use adverb_wire::Duration;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration as StdDuration;

/// How a NIC is opened. [`Settings::new`] has defaults for hosts, where a message's time is counted in the
/// turns that processes get, not in the paper's microseconds.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The NIC's address, one of this host's. In 127.0.0.0/8 all are.
    pub address: IpAddr,
    /// Tables and times of the NIC. Its address is set from the field above, its `window` and `max_piece`
    /// from those below.
    pub nic: OneRmaConfig,
    /// Solicitation window in bytes, at least 4096. `None`: a quarter of what the socket's receive buffer
    /// holds, at most 512 KB.
    pub window: Option<u32>,
    /// Bytes of one message's payload: a multiple of 64, no more than the path's MTU bears. `None`: what the
    /// MTU of the address's interface bears, at most 4096.
    pub max_piece: Option<u16>,
    /// Command slots of this process.
    pub slots: u32,
    /// Pacing and congestion control of this process's transfers.
    pub executor: ExecutorConfig,
    /// Folder in which the NIC's message counter survives restarts. `None`: `$XDG_STATE_HOME/adverb/1rma`, or
    /// `~/.local/state/adverb/1rma`.
    pub state: Option<PathBuf>,
    /// How messages reach the NICs of the same host and user: through shared memory where they agree, or as
    /// all others over UDP.
    pub path: PathPolicy,
    /// Harm done to every message that leaves, for tests. Then all messages go over UDP.
    pub faults: Faults,
    /// How long the NIC looks for messages before it lets its processor go; less where others want it.
    pub spin: StdDuration,
    /// Attach to the NIC of `adverb nicd` at this socket, instead of opening one in this process. Then only
    /// `executor`, `slots` (a wish, within the quota) and `daemon_patience` have a meaning; address and
    /// tables are the daemon's.
    pub attach: Option<PathBuf>,
    /// A daemon that ends none of this process's commands for so long hangs: then it counts as gone. No less
    /// than what its NIC may take for one, which is 12 s at most, and far less by default.
    pub daemon_patience: StdDuration,
}

/// Round trip of an idle host, wake-ups included.
const RTT: Duration = Duration::from_us(50);
/// Above the longest bound that a NIC's times may have.
const DAEMON_PATIENCE: StdDuration = StdDuration::from_secs(15);
/// Command slots of a host's NIC.
const SLOTS: u32 = 1024;

impl Settings {
    /// Defaults for a host with this address.
    pub fn new(address: IpAddr) -> Settings {
        let nic = OneRmaConfig {
            slots: SLOTS,
            slots_by_priority: [SLOTS; PRIORITIES],
            inbound_ops: 4096,
            // A process may have to wait for a processor as long.
            dispatch_timeout: Duration::from_ms(50),
            timeout: Duration::from_ms(100),
            rtt: RTT,
            bandwidth: 25_000_000_000,
            ..OneRmaConfig::default()
        };
        let congestion = CongestionConfig {
            local_target: Duration::from_us(500),
            remote_target: Duration::from_us(1000),
            rtt: RTT,
            window_start: 16.0,
            window_max: 256.0,
            ..CongestionConfig::default()
        };
        let executor = ExecutorConfig {
            congestion,
            transfers: 1 << 14,
            pacing_slack: Duration::from_ms(1),
            ..ExecutorConfig::default()
        };
        Settings {
            address,
            nic,
            window: None,
            max_piece: None,
            slots: 256,
            executor,
            state: None,
            path: PathPolicy::Auto,
            faults: Faults::default(),
            spin: StdDuration::from_micros(100),
            attach: None,
            daemon_patience: DAEMON_PATIENCE,
        }
    }

    /// Defaults for a process that attaches to the daemon at this socket.
    pub fn attached(socket: impl Into<PathBuf>) -> Settings {
        let attach = Some(socket.into());
        Settings { attach, ..Settings::new(IpAddr::from([0, 0, 0, 0])) }
    }

    /// The folder of the message counter. `None` when neither a setting nor the environment names one.
    pub(crate) fn state_folder(&self) -> Option<PathBuf> {
        let from_environment = || {
            let named = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
            let state = named("XDG_STATE_HOME").filter(|path| path.is_absolute());
            let state = state.or_else(|| named("HOME").map(|home| home.join(".local/state")));
            state.map(|state| state.join("adverb/1rma"))
        };
        self.state.clone().or_else(from_environment)
    }
}
