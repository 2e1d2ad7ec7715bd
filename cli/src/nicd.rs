//! `adverb nicd`: the 1RMA NIC as a process of its own.

use crate::args::choice;
use crate::error::Error;
use crate::remote::size;
use adverb_rma::nicd::{NicdQuota, NicdSettings, NicdShare};
use adverb_rma::{OneRmaConfig, PRIORITIES, PathPolicy, Settings};
use clap::Args;
use std::fmt::{self, Display};
use std::io::Write;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// Shown by `adverb nicd --help`.
pub const EXAMPLES: &str = "\
Applications attach with the socket in their settings (adverb_rma::Settings::attached). The kernel tells the
daemon each application's process and user; keys are granted to a process by its number. A process that ends,
however it does, loses its slots and regions at once. A connection that has not asked to be let in after a
second is closed. Where --mode lets others than the socket's owner attach, one user's processes together have
at most half of the daemon's connections, slots, regions and of the host's memory, unless --per-user-.. says
otherwise; where it does not, all of it.

Examples:
  adverb nicd --address 192.0.2.1
  adverb nicd --address 127.0.0.2 --socket /tmp/nic2 --state /tmp/nic2.state
  adverb nicd --show-counters --socket /tmp/nic2
  adverb nicd --address 192.0.2.1 --quota 64 --priority 2 --user-quota 1000:512:0";

/// Options of `adverb nicd`.
#[derive(Args, Debug)]
pub struct Nicd {
    /// Address of the NIC, one of this host's; UDP port 61113 of it must be free
    #[arg(long, required_unless_present = "show_counters")]
    pub address: Option<IpAddr>,
    /// Print what the daemon at the socket has counted, by name, and end
    #[arg(long, conflicts_with = "address")]
    pub show_counters: bool,
    /// Socket that applications attach to [default: $XDG_RUNTIME_DIR/adverb/nicd.socket]
    #[arg(long)]
    pub socket: Option<PathBuf>,
    /// Permissions of the socket, octal: who may write to it may attach
    #[arg(long, default_value = "600")]
    pub mode: Mode,
    /// Folder in which the message counter survives restarts [default: ~/.local/state/adverb/1rma]
    #[arg(long)]
    pub state: Option<PathBuf>,
    /// Command slots of the NIC
    #[arg(long, default_value_t = 1024)]
    pub slots: u32,
    /// Entries of the region table
    #[arg(long, default_value_t = 1024)]
    pub regions: u32,
    /// Processes attached at once
    #[arg(long, default_value_t = 64)]
    pub processes: u32,
    /// Solicitation window in bytes, at least 4096 [default: a quarter of the socket's buffer, at most 512
    /// KB]
    #[arg(long)]
    pub window: Option<u32>,
    /// How NICs of this host and of the daemon's user are reached
    #[arg(long, value_name = "PATH", value_parser = choice::<PathPolicy>(), default_value_t)]
    pub path: PathPolicy,
    /// Command slots of a process
    #[arg(long, default_value_t = 256)]
    pub quota: u32,
    /// Priority of a process, 0 (highest) to 3
    #[arg(long, default_value_t = 0)]
    pub priority: u8,
    /// Memories and regions of a process together
    #[arg(long, default_value_t = 128)]
    pub region_quota: u32,
    /// Command slots and priority of processes of one user, instead of the above; may be given several times
    #[arg(long, value_name = "UID:SLOTS:PRIORITY")]
    pub user_quota: Vec<UserQuota>,
    /// Connections of one user's processes together [default: --processes, or half where others may attach]
    #[arg(long, value_name = "N")]
    pub per_user_connections: Option<u32>,
    /// Command slots of one user's processes together [default: --slots, or half]
    #[arg(long, value_name = "N")]
    pub per_user_slots: Option<u32>,
    /// Memories and regions of one user's processes together [default: --regions, or half]
    #[arg(long, value_name = "N")]
    pub per_user_regions: Option<u32>,
    /// Bytes that one user's processes may share with the daemon together [default: the host's memory, or
    /// half]
    #[arg(long, value_name = "BYTES", value_parser = size)]
    pub per_user_memory: Option<usize>,
}

/// Permissions.
#[derive(Clone, Copy, Debug)]
pub struct Mode(pub u32);

impl std::str::FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
        mode.map(Mode).ok_or_else(|| "want three octal digits, such as 660".to_owned())
    }
}

/// What processes of a user may have.
#[derive(Clone, Copy, Debug)]
pub struct UserQuota {
    /// The user.
    pub uid: u32,
    /// Command slots.
    pub slots: u32,
    /// Priority.
    pub priority: u8,
}

impl fmt::Display for UserQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.uid, self.slots, self.priority)
    }
}

impl std::str::FromStr for UserQuota {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split(':');
        let mut next = || words.next().and_then(|word| word.parse::<u32>().ok());
        let (uid, slots, priority) = (next(), next(), next().and_then(|n| u8::try_from(n).ok()));
        match (uid, slots, priority, words.next()) {
            (Some(uid), Some(slots), Some(priority), None) => Ok(UserQuota { uid, slots, priority }),
            _ => Err("want user, slots and priority, such as 1000:256:0".to_owned()),
        }
    }
}

impl Nicd {
    /// Whether the numbers go together. The NIC would say so too, but not of which option.
    fn check(&self) -> Result<(), Error> {
        let check =
            |option: &str, given: &dyn Display, value: u32, bounds: RangeInclusive<u32>, why: &str| {
                if bounds.contains(&value) {
                    return Ok(());
                }
                let (least, most) = bounds.into_inner();
                Err(Error::Options(format!("{option} {given}: give {least} to {most}; {why}")))
            };
        if let Some(window) = self.window {
            check("--window", &window, window, 4096..=u32::MAX, "one operation may take 4096 bytes")?;
        }
        let (slots, regions) = (1..=self.slots, 1..=self.regions);
        let all = "the NIC has as many slots (--slots)";
        check("--quota", &self.quota, self.quota, slots.clone(), all)?;
        check("--priority", &self.priority, self.priority.into(), 0..=3, "0 is the highest")?;
        let all_regions = "the table has as many entries (--regions)";
        check("--region-quota", &self.region_quota, self.region_quota, regions, all_regions)?;
        for (option, given, most) in [
            ("--per-user-connections", self.per_user_connections, self.processes),
            ("--per-user-slots", self.per_user_slots, self.slots),
            ("--per-user-regions", self.per_user_regions, self.regions),
        ] {
            if let Some(given) = given {
                check(option, &given, given, 1..=most, "the NIC has as many for all")?;
            }
        }
        for user in &self.user_quota {
            check("--user-quota", user, user.slots, slots.clone(), all)?;
            check(
                "--user-quota",
                user,
                user.priority.into(),
                0..=3,
                "a priority, of which 0 is the highest",
            )?;
        }
        Ok(())
    }
}

/// Opens the NIC, says where applications attach, and serves until it is ended by a signal; or shows the
/// counters of one that does.
pub fn nicd(arguments: &Nicd) -> Result<(), Error> {
    let socket = arguments.socket.clone().or_else(default_socket).ok_or_else(|| {
        Error::Options("XDG_RUNTIME_DIR is not set: name a socket with --socket".to_owned())
    })?;
    let failed = |why: String| Error::Device(why);
    let Some(address) = arguments.address else {
        let counters = adverb_rma::nicd::counters(&socket).map_err(|e| failed(e.to_string()))?;
        let named = counters.into_iter().map(|(name, n)| (name.into(), n));
        let mut out = std::io::stdout();
        return out.write_all(adverb_io::render_counters(named, false).as_bytes()).map_err(Error::Output);
    };
    if let Some(folder) = socket.parent() {
        std::fs::create_dir_all(folder).map_err(|e| failed(format!("{}: {e}", folder.display())))?;
    }
    arguments.check()?;
    let defaults = Settings::new(address);
    let nic = Settings {
        state: arguments.state.clone(),
        window: arguments.window,
        path: arguments.path,
        nic: OneRmaConfig {
            slots: arguments.slots,
            slots_by_priority: [arguments.slots; PRIORITIES],
            regions: arguments.regions,
            processes: arguments.processes,
            ..defaults.nic.clone()
        },
        ..defaults
    };
    let quota =
        NicdQuota { slots: arguments.quota, priority: arguments.priority, regions: arguments.region_quota };
    let quota_by_user = arguments.user_quota.iter().map(|user| {
        let quota = NicdQuota { slots: user.slots, priority: user.priority, ..quota };
        (user.uid, quota)
    });
    let share = NicdShare::of(&nic.nic, arguments.mode.0);
    let share = NicdShare {
        connections: arguments.per_user_connections.unwrap_or(share.connections),
        slots: arguments.per_user_slots.unwrap_or(share.slots),
        regions: arguments.per_user_regions.unwrap_or(share.regions),
        bytes: arguments.per_user_memory.map_or(share.bytes, |bytes| bytes as u64),
    };
    let settings = NicdSettings {
        nic,
        socket: socket.clone(),
        mode: arguments.mode.0,
        quota,
        quota_by_user: quota_by_user.collect(),
        share,
    };
    let mut nicd = adverb_rma::nicd::Nicd::open(settings).map_err(|e| failed(e.to_string()))?;
    adverb_os::say::announce(format_args!("1RMA NIC of {address} ready at {}", socket.display()));
    nicd.serve()
}

fn default_socket() -> Option<PathBuf> {
    let folder = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute())?;
    Some(folder.join("adverb/nicd.socket"))
}
