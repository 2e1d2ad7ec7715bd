//! `adverb region` and `adverb certs`: keys of 1RMA regions, out of band.

use crate::error::Error;
use crate::output::print;
use crate::remote::{Who, said, span};
use adverb_grants::{Holder, Session, rights_text, write_trial_certificates};
use adverb_rma::Rights;
use clap::{Args, Subcommand};
use std::fs::OpenOptions;
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Shown by `adverb region --help`.
pub const EXAMPLES: &str = "\
The owner of a region is a process that offers it, such as `adverb kv serve`. It knows a client by the first
DNS name in the client's certificate, and its policy file says what that client may do.

Examples:
  adverb region list --owner 192.0.2.1:7450 --as certs/app
  adverb region grant kv-data --owner 192.0.2.1:7450 --as certs/app --to 192.0.2.7:4711 --rights read \\
      --for 10m --out kv-data.grant
  adverb region rotate kv-index kv-data --owner 192.0.2.1:7450 --as certs/control";

/// Shown by `adverb certs --help`.
pub const CERTS_EXAMPLES: &str = "\
For trials and tests: the CA's key is not kept, so a second run makes another CA. Where there is a CA already,
use its certificates; an owner's needs the name or address that clients connect to, a client's needs a DNS
name.

Examples:
  adverb certs --out certs kv=127.0.0.2,127.0.0.3 app control";

/// `adverb region`.
#[derive(Subcommand, Debug)]
pub enum Region {
    /// List the regions of an owner that this client may use
    List(List),
    /// Get keys of a region for a process, and write them into a file
    Grant(Box<Grant>),
    /// Give regions other keys, of which their clients are told ahead
    Rotate(Rotate),
}

/// Who is asked, and by whom.
#[derive(Args, Debug)]
pub struct Asked {
    /// The regions' owner
    #[arg(long, value_name = "HOST:PORT")]
    pub owner: String,
    /// Name in the owner's certificate [default: HOST]
    #[arg(long, value_name = "NAME")]
    pub owner_name: Option<String>,
    /// Who asks.
    #[command(flatten)]
    pub who: Who,
}

impl Asked {
    fn connect(&self) -> Result<Session, Error> {
        let identity = self.who.load()?;
        Session::connect(&self.owner, self.owner_name.as_deref(), &identity)
            .map_err(|error| self.failed(error))
    }

    fn failed(&self, error: adverb_grants::Error) -> Error {
        said("--owner", &self.owner, error)
    }
}

/// `adverb region list`.
#[derive(Args, Debug)]
pub struct List {
    /// Who is asked.
    #[command(flatten)]
    pub asked: Asked,
}

/// `adverb region grant`.
#[derive(Args, Debug)]
pub struct Grant {
    /// Name of the region
    #[arg(value_name = "REGION")]
    pub region: String,
    /// Who is asked.
    #[command(flatten)]
    pub asked: Asked,
    /// The process that will use the keys: its NIC's address and its process number; they are of no use to
    /// others
    #[arg(long, value_name = "IP:PID")]
    pub to: Process,
    /// What it may do: of read, write, rekey
    #[arg(long, value_name = "RIGHT,...", value_parser = rights, default_value = "read")]
    pub rights: Rights,
    /// For how long
    #[arg(long = "for", value_name = "TIME", value_parser = span, default_value = "10m")]
    pub ttl: Duration,
    /// New file for the keys, for adverb_rma::Grant::from_bytes; only its owner may read it
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
}

/// `adverb region rotate`.
#[derive(Args, Debug)]
pub struct Rotate {
    /// Names of regions
    #[arg(required = true, value_name = "REGION")]
    pub regions: Vec<String>,
    /// Who is asked.
    #[command(flatten)]
    pub asked: Asked,
}

/// `adverb certs`.
#[derive(Args, Debug)]
pub struct Certs {
    /// Folder for ca.pem, and NAME.pem and NAME.key for each name
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Who gets a certificate; addresses are those at which it is an owner
    #[arg(required = true, value_name = "NAME[=IP,...]", value_parser = holder)]
    pub holders: Vec<Holder>,
}

/// A process on a NIC.
#[derive(Clone, Copy, Debug)]
pub struct Process(IpAddr, u32);

impl FromStr for Process {
    type Err = String;

    fn from_str(text: &str) -> Result<Process, String> {
        let parsed = text.rsplit_once(':').and_then(|(address, pid)| {
            let address = address.trim_matches(['[', ']']);
            Some(Process(address.parse().ok()?, pid.parse().ok()?))
        });
        parsed.ok_or_else(|| {
            "want address and process number, such as 192.0.2.7:4711 or [2001:db8::7]:4711".to_owned()
        })
    }
}

fn rights(text: &str) -> Result<Rights, String> {
    text.split(',').try_fold(Rights::empty(), |all, word| match word {
        "read" => Ok(all | Rights::READ),
        "write" => Ok(all | Rights::WRITE),
        "rekey" => Ok(all | Rights::REKEY),
        other => Err(format!("`{other}` is no right; give some of read, write, rekey")),
    })
}

fn holder(text: &str) -> Result<Holder, String> {
    let (name, addresses) = text.split_once('=').unwrap_or((text, ""));
    let addresses = addresses.split(',').filter(|one| !one.is_empty()).map(|one| {
        one.parse()
            .map_err(|_| format!("`{one}` is no address; want NAME or NAME=IP,IP such as kv=127.0.0.2"))
    });
    let addresses = addresses.collect::<Result<Vec<IpAddr>, String>>()?;
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte)) {
        return Err(format!("`{name}` is no DNS name; want letters, digits, `-` and `.`"));
    }
    Ok(Holder { name: name.to_owned(), addresses })
}

/// `adverb certs`.
pub fn certs(arguments: &Certs) -> Result<(), Error> {
    write_trial_certificates(&arguments.out, &arguments.holders)
        .map_err(|error| said("--out", arguments.out.display(), error))
}

/// `adverb region`.
pub fn region(action: &Region) -> Result<(), Error> {
    match action {
        Region::List(list) => print(&listed(&list.asked)?),
        Region::Grant(wanted) => print(&grant(wanted)?),
        Region::Rotate(rotation) => rotate(rotation),
    }
}

fn listed(asked: &Asked) -> Result<String, Error> {
    let session = asked.connect()?;
    let regions = session.list().map_err(|error| asked.failed(error))?;
    if regions.is_empty() {
        return Ok(format!("no regions for `{}`\n", session.client()));
    }
    let mut text = format!(
        "{:<20} {:<15} {:<10} {:>12} {:<16} {:>4} {:>6}\n",
        "region", "address", "id", "bytes", "rights", "key", "leases"
    );
    for region in &regions {
        text += &format!(
            "{:<20} {:<15} {:#010x} {:>12} {:<16} {:>4} {:>6}\n",
            region.name,
            region.address,
            region.id().wire(),
            region.len,
            rights_text(region.rights()),
            region.epoch,
            region.leases
        );
    }
    Ok(text)
}

fn grant(wanted: &Grant) -> Result<String, Error> {
    let session = wanted.asked.connect()?;
    let Process(address, pid) = wanted.to;
    // Before the keys: a file that cannot be written leaves no lease behind.
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&wanted.out);
    let failed = |source| Error::File { option: "--out", path: wanted.out.clone(), source };
    let mut file = file.map_err(failed)?;
    let leased =
        session.grant(&wanted.region, (address, pid), wanted.rights, wanted.ttl).map_err(|error| {
            // It is empty.
            let _ = std::fs::remove_file(&wanted.out);
            wanted.asked.failed(error)
        })?;
    file.write_all(&leased.grant.to_bytes()).map_err(failed)?;
    Ok(format!(
        "{}: {} by process {pid} of {address}, lease {}, for {:.0} s, in {}\n",
        wanted.region,
        rights_text(leased.grant.rights()),
        leased.lease,
        leased.left.as_secs_f64(),
        wanted.out.display()
    ))
}

fn rotate(rotation: &Rotate) -> Result<(), Error> {
    let session = rotation.asked.connect()?;
    for name in &rotation.regions {
        let done = session.rotate(name).map_err(|error| rotation.asked.failed(error))?;
        print(&format!(
            "{name}: key {}, told ahead to {} of {} leases in {:.1} ms\n",
            done.epoch,
            done.told,
            done.told + done.untold,
            done.waited_us as f64 / 1e3
        ))?;
    }
    Ok(())
}
