//! Options that commands about 1RMA share: who one is, which NIC one uses, quantities with units.

use crate::args::choice;
use crate::error::Error;
use adverb_grants::Identity;
use adverb_rma::{PathPolicy, Rma, Settings};
use adverb_wire::Duration as Time;
use clap::Args;
use std::fmt::Display;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Who this side is.
#[derive(Args, Debug)]
pub struct Who {
    /// Certificate, as DIR/NAME: DIR/NAME.pem and DIR/NAME.key, with the CA of the other side in DIR/ca.pem
    #[arg(long = "as", value_name = "DIR/NAME", env = "ADVERB_AS")]
    pub identity: PathBuf,
    /// CA of the other side [default: DIR/ca.pem]
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
}

impl Who {
    /// Loads the certificate.
    pub fn load(&self) -> Result<Identity, Error> {
        let folder = self.identity.parent().unwrap_or(Path::new("."));
        let file = |ending: &str| {
            let mut name = self.identity.clone().into_os_string();
            name.push(ending);
            PathBuf::from(name)
        };
        let ca = self.ca.clone().unwrap_or_else(|| folder.join("ca.pem"));
        Identity::load(&ca, &file(".pem"), &file(".key")).map_err(|error| {
            let given = self.identity.display();
            Error::Remote(format!("--as {given}: {error}; `adverb certs` makes certificates for trials"))
        })
    }
}

/// The NIC that is used.
#[derive(Args, Debug)]
pub struct NicChoice {
    /// Open a 1RMA NIC in this process, at this address of this host
    #[arg(long, value_name = "IP", conflicts_with = "attach")]
    pub address: Option<IpAddr>,
    /// Attach to the NIC of `adverb nicd` at this socket
    #[arg(long, value_name = "SOCKET")]
    pub attach: Option<PathBuf>,
    /// Folder in which the NIC's message counter survives restarts [default: ~/.local/state/adverb/1rma]
    #[arg(long, value_name = "DIR", conflicts_with = "attach")]
    pub state: Option<PathBuf>,
    /// Time after which an operation that is not answered has failed, 1ms to 4s
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "25ms", conflicts_with = "attach")]
    pub timeout: Duration,
    /// How NICs of this host and user are reached
    #[arg(
        long,
        value_name = "PATH",
        value_parser = choice::<PathPolicy>(), default_value_t,
        conflicts_with = "attach"
    )]
    pub path: PathPolicy,
    /// Write what the NIC has counted, by name, to this file at the end, `serve` each second; JSON if its
    /// name ends in .json
    #[arg(long, value_name = "FILE")]
    pub counters: Option<PathBuf>,
}

impl NicChoice {
    /// Opens it, or attaches to it.
    pub fn open(&self) -> Result<Rma, Error> {
        let (option, settings) = match (&self.attach, self.address) {
            (Some(socket), _) => (format!("--attach {}", socket.display()), Settings::attached(socket)),
            (None, Some(address)) => {
                let mut settings =
                    Settings { state: self.state.clone(), path: self.path, ..Settings::new(address) };
                if !(Duration::from_millis(1)..=Duration::from_secs(4)).contains(&self.timeout) {
                    return Err(Error::Options(format!("--timeout {:?}: give 1ms to 4s", self.timeout)));
                }
                let ns = self.timeout.as_nanos() as u64;
                // Less of it for the way to the network, as by default.
                (settings.nic.timeout, settings.nic.dispatch_timeout) =
                    (Time::from_ns(ns), Time::from_ns(ns * 2 / 5));
                (format!("--address {address}"), settings)
            }
            (None, None) => return Err(Error::Options("give the NIC: --address or --attach".to_owned())),
        };
        Rma::open(settings).map_err(|error| Error::Device(format!("{option}: {error}")))
    }

    /// Writes the counters, where that was asked for. Who reads the file at the same time finds one state or
    /// the next, never a part.
    pub fn write_counters(&self, rma: &Rma) -> Result<(), Error> {
        let Some(path) = &self.counters else { return Ok(()) };
        let (nic, driver) = rma.counters();
        let named = nic.iter().chain(driver.iter()).map(|(name, n)| (name.into(), n));
        let text = adverb_io::render_counters(named, adverb_io::is_json(path));
        let mut fresh = path.clone().into_os_string();
        fresh.push(".new");
        let written = std::fs::write(&fresh, text).and_then(|()| std::fs::rename(&fresh, path));
        written.map_err(|source| Error::File { option: "--counters", path: path.clone(), source })
    }
}

/// `1500ms`, `90s`, `10m`, `24h`.
pub fn span(text: &str) -> Result<Duration, String> {
    let units = [("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
    let read = |(unit, seconds): (&str, f64)| {
        let number: f64 = text.strip_suffix(unit)?.parse().ok()?;
        (number.is_finite() && number > 0.0).then(|| Duration::try_from_secs_f64(number * seconds).ok())?
    };
    units.into_iter().find_map(read).ok_or_else(|| "want a time, such as 500ms, 90s, 10m or 2h".to_owned())
}

/// A whole number, decimal, or hexadecimal behind `0x`.
pub fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// `4096`, `64KB`, `1GB`: powers of 1024.
pub fn size(text: &str) -> Result<usize, String> {
    let units = [("KB", 1 << 10), ("MB", 1 << 20), ("GB", 1usize << 30), ("", 1)];
    let read =
        |(unit, bytes): (&str, usize)| text.strip_suffix(unit)?.parse::<usize>().ok()?.checked_mul(bytes);
    units.into_iter().find_map(read).ok_or_else(|| "want bytes, such as 4096, 64KB or 1GB".to_owned())
}

/// What the other side of `option value` said.
pub fn said(option: &str, value: impl Display, error: impl Display) -> Error {
    Error::Remote(format!("{option} {value}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_have_units() {
        assert_eq!(span("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(span("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(span("2h"), Ok(Duration::from_secs(7200)));
        assert_eq!(span("10m"), Ok(Duration::from_secs(600)));
        for wrong in ["", "5", "s", "-1s", "0s", "1e300h", "NaNs", "infs"] {
            assert!(span(wrong).is_err(), "{wrong}");
        }
        assert_eq!((size("4096"), size("64KB"), size("2GB")), (Ok(4096), Ok(65536), Ok(2 << 30)));
        for wrong in ["", "KB", "1.5MB", "-1", "99999999999999GB"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
