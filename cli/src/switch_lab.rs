//! `adverb switch lab`: hosts in network namespaces, each on a cable of one switch, and a command among them.
//! No root is needed where the kernel lets users have namespaces of their own.
//!
//! `unshare` starts this command anew inside, where it makes the hosts, is the switch on a thread, and waits
//! for the command. When it ends, however that comes, the namespaces end with the last process in them.

use crate::error::Error;
use adverb_os::{signals, sys};
use adverb_switchd::{Config, Process};
use clap::Args;
use std::fs;
use std::io::IsTerminal;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};

/// Where inside are the names of namespaces, the switch's socket, and what processes of a host share.
const FOLDER: &str = "/run/adverb";
/// Hosts at most: 10.9.0.1 to this.
const HOSTS_MAX: u8 = 32;
/// What the interfaces carry: that of Ethernet.
const MTU: &str = "1500";
/// Set for the command as it runs inside.
const INSIDE: &str = "ADVERB_SWITCH_LAB";

/// Shown by `adverb switch lab --help`.
pub const EXAMPLES: &str = "\
Host N is the network namespace hN; its interface veth0 has 10.9.0.N, 10.9.0.0/24 and the default route. All
protocols cross the switch, TCP too. The command is started beside the hosts, not in one of them.

Examples:
  adverb switch lab -- sh -c '
    nsenter --net=/run/netns/h1 adverb run -- ib_write_bw &
    nsenter --net=/run/netns/h2 adverb run -- ib_write_bw 10.9.0.1'
  adverb switch lab --hosts 3 lock.toml -- bash";

/// `adverb switch lab`.
#[derive(Args, Debug)]
pub struct Lab {
    /// How many hosts, from 2 to 32
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = hosts())]
    pub hosts: u8,
    /// The switch's file; an entry [[port]] for a host's address may have faults and a capture [default: a
    /// switch that forwards]
    #[arg(value_name = "FILE.toml")]
    pub file: Option<PathBuf>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<std::ffi::OsString>,
}

fn hosts() -> clap::builder::RangedI64ValueParser<u8> {
    clap::value_parser!(u8).range(2..=i64::from(HOSTS_MAX))
}

fn failed(what: &str) -> impl Fn(std::io::Error) -> Error + '_ {
    move |e| Error::Device(format!("{what}: {e}"))
}

/// Makes the lab, runs the command, and has its exit status.
pub fn lab(arguments: &Lab) -> Result<ExitCode, Error> {
    let status = match std::env::var_os(INSIDE) {
        None => outside()?,
        Some(_) => inside(arguments)?,
    };
    Ok(ExitCode::from(match (status.code(), status.signal()) {
        (Some(code), _) => code as u8,
        // As shells say it.
        (None, signal) => 128u8.wrapping_add(signal.unwrap_or(0) as u8),
    }))
}

/// Starts this command anew in namespaces of its own.
fn outside() -> Result<ExitStatus, Error> {
    let this = std::env::current_exe().map_err(failed("finding this program"))?;
    let mut command = Command::new("unshare");
    if sys::effective_uid() != 0 {
        command.args(["--user", "--map-root-user"]);
    }
    // Not to be taken for an option of unshare's.
    command.args(["--net", "--mount", "--"]).arg(this).args(std::env::args_os().skip(1)).env(INSIDE, "1");
    let done = wait(&mut command).map_err(failed("unshare (of util-linux)"))?;
    match done.code() {
        // What unshare says of itself, and nothing inside does before the hosts stand.
        Some(1) if !is_allowed() => Err(Error::Device(
            "this kernel lets this user have no namespaces; run it as root, or see user.max_user_namespaces, \
             kernel.unprivileged_userns_clone and AppArmor's restrictions"
                .to_owned(),
        )),
        _ => Ok(done),
    }
}

/// Whether namespaces such as those of [`outside`] can be had.
fn is_allowed() -> bool {
    let mut command = Command::new("unshare");
    if sys::effective_uid() != 0 {
        command.args(["--user", "--map-root-user"]);
    }
    let done = command.args(["--net", "--mount", "true"]).stderr(Stdio::null()).status();
    done.is_ok_and(|status| status.success())
}

/// Runs a command to its end. It has the terminal's signals from there; without a terminal, what asks this
/// process to end asks the command.
fn wait(command: &mut Command) -> std::io::Result<ExitStatus> {
    let mut child = signals::for_child(command).spawn()?;
    let (id, by_terminal) = (child.id(), std::io::stdin().is_terminal());
    signals::on_stop(move || {
        if !by_terminal {
            signals::terminate(id);
        }
    })?;
    child.wait()
}

fn inside(arguments: &Lab) -> Result<ExitStatus, Error> {
    let mut config = match &arguments.file {
        Some(path) => Config::read(path).map_err(|e| Error::Options(e.to_string()))?,
        None => Config::parse("").map_err(Error::Options)?,
    };
    let hosts: Vec<(IpAddr, String)> = (1..=arguments.hosts)
        .map(|n| (IpAddr::from(Ipv4Addr::new(10, 9, 0, n)), format!("port{n}")))
        .collect();
    // A folder that nobody outside sees: names of namespaces, sockets and shared memory go with it.
    tool("mount", &["-t", "tmpfs", "tmpfs", "/run"])?;
    fs::create_dir("/run/netns").map_err(failed("/run/netns"))?;
    for (n, (address, port)) in (1..).zip(&hosts) {
        make_host(&format!("h{n}"), *address, port)?;
    }
    config.wire(&hosts).map_err(Error::Options)?;
    let (program, rest) =
        arguments.command.split_first().ok_or(Error::Options("give a command".to_owned()))?;
    let mut process = Process::open(config, Path::new(FOLDER)).map_err(|e| Error::Device(e.to_string()))?;
    let stopper = process.stopper();
    let switch = std::thread::Builder::new().name("switch".to_owned()).spawn(move || process.run());
    let switch = switch.map_err(failed("starting the switch"))?;
    let mut command = Command::new(program);
    command.args(rest).env_remove(INSIDE).env("ADVERB", settings());
    let done = wait(&mut command).map_err(|source| Error::Exec(PathBuf::from(program), source));
    stopper.stop();
    // It panics nowhere that its own tests know of; then its frames end, and nothing else.
    match switch.join() {
        Ok(Err(e)) => Err(Error::Device(e.to_string())),
        _ => done,
    }
}

/// What the user has set for the NIC, with the lab's folder.
fn settings() -> String {
    let before = std::env::var("ADVERB").ok().filter(|text| !text.is_empty());
    before.map_or_else(String::new, |text| text + ",") + "directory=" + FOLDER
}

/// A host with its interface, whose other end is a port.
fn make_host(name: &str, address: IpAddr, port: &str) -> Result<(), Error> {
    let ip = |words: &str| tool("ip", &words.split(' ').collect::<Vec<_>>());
    ip(&format!("netns add {name}"))?;
    ip(&format!("link add veth0 netns {name} mtu {MTU} type veth peer name {port} mtu {MTU}"))?;
    // A veth would carry several frames as one, which no wire does.
    ip(&format!("-n {name} link set veth0 gso_max_segs 1"))?;
    ip(&format!("-n {name} addr add {address}/24 dev veth0"))?;
    ip(&format!("-n {name} link set lo up"))?;
    ip(&format!("-n {name} link set veth0 up"))?;
    ip(&format!("-n {name} route add default dev veth0"))?;
    ip(&format!("link set {port} up"))
}

/// Runs a tool, whose words stand in the error.
fn tool(name: &str, words: &[&str]) -> Result<(), Error> {
    let done = Command::new(name).args(words).stdin(Stdio::null()).output();
    let done = done.map_err(failed(name))?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr).trim().to_owned();
    Err(Error::Device(format!("{name} {}: {said}", words.join(" "))))
}
