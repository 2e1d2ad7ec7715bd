//! From the command line to the settings that the library reads, and to the line that says what it will run
//! on.

use crate::args::Nic;
use crate::error::Error;
use adverb_io::{Choice, Congestion, Direction, PathPolicy, Settings, StarTrust, Transport};
use adverb_os::via;
use std::fmt::Write;
use std::net::Ipv6Addr;
use std::path::PathBuf;

/// The settings of the environment, overridden by those options that are given.
pub fn from_options(options: &Nic) -> Result<Settings, Error> {
    let mut settings = Settings::from_env().map_err(|e| Error::Device(e.to_string()))?;
    let faults = &mut settings.faults;
    set(&mut faults.loss, options.loss);
    set(&mut faults.duplicate, options.duplicate);
    set(&mut faults.reorder, options.reorder);
    set(&mut faults.corrupt, options.corrupt);
    set(&mut faults.mark, options.mark);
    set(&mut faults.delay, options.delay);
    set(&mut faults.direction, options.direction);
    faults.seed = options.seed.or(faults.seed);
    set(&mut settings.path, options.path);
    set(&mut settings.transport, options.transport);
    settings.star_threshold = options.star_threshold.or(settings.star_threshold);
    settings.star_hold = options.star_hold.or(settings.star_hold);
    settings.star_registry = options.star_registry.or(settings.star_registry);
    set(&mut settings.star_trust, options.star_trust);
    set(&mut settings.congestion, options.congestion);
    settings.address = options.address.or(settings.address);
    settings.trace |= options.trace;
    if let Some(switch) = &options.via {
        // A name stays one.
        let named = if via::is_path(switch) { absolute("--via", switch)? } else { switch.clone() };
        settings.via = Some(named);
    }
    if let Some(path) = &options.via_token {
        settings.via_token = Some(absolute("--via-token", path)?);
    }
    // The program may change its working directory before it opens the device.
    if let Some(path) = &options.pcap {
        settings.pcap = Some(absolute("--pcap", path)?);
    }
    if let Some(path) = &options.counters {
        settings.counters = Some(absolute("--counters", path)?);
    }
    Ok(settings)
}

fn set<T>(field: &mut T, option: Option<T>) {
    if let Some(value) = option {
        *field = value;
    }
}

pub fn absolute(option: &'static str, path: &PathBuf) -> Result<PathBuf, Error> {
    let path =
        std::path::absolute(path).map_err(|source| Error::File { option, path: path.clone(), source })?;
    match path.parent().map(std::fs::metadata) {
        Some(Err(source)) => Err(Error::File { option, path, source }),
        _ => Ok(path),
    }
}

/// The device and everything about it that is not as usual, in one line.
pub fn describe(settings: &Settings) -> Result<String, Error> {
    let device = adverb_io::devices(settings).map_err(|e| Error::Device(e.to_string()))?;
    let mut line = format!(
        "{} at {} ({}, MTU {}), RoCEv2, GID 0 {}",
        device.name,
        device.address,
        device.interface,
        device.active_mtu.bytes(),
        device.gids.first().map(|gid| Ipv6Addr::from(gid.0).to_string()).unwrap_or_default()
    );
    let choices = choices(settings);
    if !choices.is_empty() {
        // Writing to a String cannot fail.
        let _ = write!(line, "; {}", choices.join(", "));
    }
    Ok(line)
}

fn choices(settings: &Settings) -> Vec<String> {
    let mut list = Vec::new();
    match settings.transport {
        Transport::Rc => {}
        Transport::Irn => list.push("IRN with peers that offer it too".to_owned()),
        Transport::StarServer => list.push("StaR, stateless with star-clients".to_owned()),
        Transport::StarClient => list.push("StaR, stateful with star-servers".to_owned()),
        Transport::Star => list.push("StaR, with the role that suits both".to_owned()),
    }
    if settings.star_trust == StarTrust::Carried {
        list.push("StaR's addresses travel".to_owned());
    }
    if let Some(room) = settings.star_registry {
        list.push(format!("StaR's registry, with room for {room} rules"));
    }
    if settings.congestion != Congestion::default() {
        list.push(format!("congestion control {}", settings.congestion.name()));
    }
    let faults = &settings.faults;
    for (name, value) in faults.probabilities() {
        if value != 0.0 {
            list.push(format!("{name} {value}"));
        }
    }
    if !faults.delay.is_zero() {
        list.push(format!("delay {:?}", faults.delay));
    }
    if faults.any() {
        match faults.direction {
            Direction::Rx => list.push("received packets only".to_owned()),
            Direction::Tx => list.push("sent packets only".to_owned()),
            Direction::Both => {}
        }
    }
    list.extend(faults.seed.map(|seed| format!("seed {seed}")));
    list.extend(settings.via.iter().map(|switch| format!("through the switch {}", switch.display())));
    if settings.path == PathPolicy::Udp {
        list.push("UDP only".to_owned());
    }
    list.extend(settings.pcap.iter().map(|path| format!("frames to {}", path.display())));
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use adverb_io::Faults;
    use std::time::Duration;

    #[test]
    fn what_is_usual_is_not_said() {
        assert!(choices(&Settings::default()).is_empty());
        let faults = Faults { direction: Direction::Tx, ..Faults::default() };
        let tx = Settings { faults, ..Settings::default() };
        assert!(choices(&tx).is_empty(), "a direction without faults means nothing");
    }

    #[test]
    fn what_is_unusual_is_said_in_one_order() {
        let faults = Faults {
            loss: 0.01,
            corrupt: 0.5,
            mark: 0.25,
            delay: Duration::from_micros(20),
            direction: Direction::Rx,
            seed: Some(7),
            ..Faults::default()
        };
        let settings = Settings {
            faults,
            congestion: Congestion::Dcqcn,
            path: PathPolicy::Udp,
            transport: Transport::Irn,
            ..Settings::default()
        };
        let said = choices(&settings).join(", ");
        assert_eq!(
            said,
            "IRN with peers that offer it too, congestion control dcqcn, loss 0.01, corrupt 0.5, mark 0.25, \
             delay 20µs, received packets only, seed 7, UDP only"
        );
    }

    #[test]
    fn a_file_is_found_from_anywhere_and_its_directory_exists() {
        let here = std::env::current_dir().unwrap();
        assert_eq!(absolute("--pcap", &PathBuf::from("a.pcap")).unwrap(), here.join("a.pcap"));
        let refused =
            absolute("--pcap", &PathBuf::from("/no/such/directory/a.pcap")).unwrap_err().to_string();
        assert!(refused.contains("--pcap") && refused.contains("/no/such/directory"), "{refused}");
    }
}
