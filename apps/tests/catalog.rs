//! The catalog's program in real processes, each over two NICs of its own, some of which are killed. The same
//! program in virtual time: `adverb swarm --app catalog`. A child is this program again, told by its
//! environment which part to play.
#![allow(clippy::disallowed_methods, reason = "tests of real time")]

#[path = "../../crates/rma/tests/common/child.rs"]
mod child;

use adverb_apps::catalog::{Bug, Client, serve};
use adverb_io::program::Programs as Queues;
use adverb_program::Both;
use adverb_rdma::{Connect, Duration, Error, On, Rdma};
use adverb_rma::{Programs as Transfers, Rma, Settings};
use child::Part;
use std::net::{IpAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

const PART: &str = "ADVERB_TEST_PART";
/// The value after which the home ends.
const LAST: u64 = 1 << 40;

/// A folder of shared memory for the NICs of a test, which goes with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = format!("/dev/shm/adverb-apps-test-{}-{name}", std::process::id());
        std::fs::create_dir_all(&path).unwrap();
        Folder(path.into())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn address(test: u8, host: u8) -> IpAddr {
    let [.., high, low] = std::process::id().to_be_bytes();
    IpAddr::from([127, 128 + high % 64, low, test * 20 + host])
}

/// Both NICs of an address, and their driver.
fn open(address: IpAddr, folder: &Path) -> (Rc<Queues>, Rc<Both>) {
    let settings = format!("address={address},directory={}/{address}", folder.display());
    let settings = adverb_io::Settings::parse(&settings).unwrap();
    let queues = Queues::open(&settings).unwrap_or_else(|error| panic!("{error}"));
    let state = Some(folder.to_owned());
    let rma = Arc::new(Rma::open(Settings { state, ..Settings::new(address) }).unwrap());
    let transfers = Transfers::beside(rma, queues.waits().clone());
    let both = Both::new(queues.clone(), transfers).unwrap();
    (queues, both)
}

fn connect() -> Connect {
    // Half a second, seven times: a machine may be busy.
    Connect { timeout: 17, ..Connect::default() }
}

#[expect(clippy::print_stdout, reason = "a child tells its parent")]
fn tell(what: &str) {
    println!("\n{what}");
}

/// A child's part: the record's home, or a client that updates it for as long as it lives.
#[test]
fn part() {
    let Some(part) = std::env::var_os(PART) else { return };
    let part = part.into_string().unwrap();
    let words: Vec<&str> = part.split(' ').collect();
    let [role, address, folder, name] = words[..] else { panic!("{part}") };
    let (queues, both) = open(address.parse().unwrap(), Path::new(folder));
    let done = queues.block_on(async {
        let rdma = Rdma::new(both);
        if role == "home" {
            let changes = serve(&rdma, name, &connect(), Some(LAST)).await?;
            tell(&format!("changes {changes}"));
            return Ok(());
        }
        let client = Client::open(&rdma, name, &connect(), None, Bug::None).await?;
        for turn in 1.. {
            client.update(turn).await?;
            client.look_up().await?;
            if turn % 20 == 0 {
                tell("updates");
            }
        }
        Ok::<_, Error>(())
    });
    assert_eq!(done, Ok(()));
}

fn start(role: &str, address: IpAddr, folder: &Folder, name: &str) -> Part {
    Part::play("part", PART, &format!("{role} {address} {} {name}", folder.0.display()))
}

/// A free address for the exchange.
fn rendezvous() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

#[test]
fn one_program_uses_both_nics_while_its_peers_are_killed() {
    let (folder, name) = (Folder::new("catalog-1"), rendezvous());
    let mut home = start("home", address(1, 1), &folder, &name);
    let mut others: Vec<Part> = (0..2).map(|n| start("client", address(1, 3 + n), &folder, &name)).collect();
    let (queues, both) = open(address(1, 2), &folder.0);
    queues
        .block_on(async {
            let rdma = Rdma::new(both);
            let client = Client::open(&rdma, &name, &connect(), None, Bug::None).await?;
            for other in &mut others {
                other.hear("updates");
                for value in 1000..1020 {
                    client.update(value).await?;
                    // Values of others may come between; each lookup finds a whole one.
                    let found = client.look_up().await?.expect("the home answers");
                    assert!(found > 0, "something was written before");
                }
                // In the middle of whatever it is doing, with both NICs.
                other.kill();
            }
            // Nobody else is left: what is written now is what is found.
            for value in 2000..2050 {
                assert!(client.update(value).await?);
                assert_eq!(client.look_up().await?, Some(value));
            }
            assert!(client.update(LAST).await?);
            Ok::<_, Error>(())
        })
        .unwrap();
    // The home sleeps on a word by 1RMA's name that queue pairs have changed.
    let changes: u64 = home.hear("changes ").parse().unwrap();
    assert!(changes >= 2, "{changes} changes seen");
    assert!(home.child.wait().unwrap().success());
}

#[test]
fn a_killed_home_is_told_by_the_exchange_and_by_both_nics() {
    let (folder, name) = (Folder::new("catalog-2"), rendezvous());
    let mut home = start("home", address(2, 1), &folder, &name);
    let (queues, both) = open(address(2, 2), &folder.0);
    queues
        .block_on(async {
            let rdma = Rdma::new(both);
            let quick = Connect { timeout: 12, retries: 2, ..Connect::default() };
            let client = Client::open(&rdma, &name, &quick, None, Bug::None).await?;
            assert!(client.update(7).await?);
            assert_eq!(client.look_up().await?, Some(7));
            let own = rdma.allocate(64).await?;
            let limit = rdma.now().await? + Duration::from_ms(20_000);
            let on = [On::Word(&own, 0, 0), On::Gone(client.line())];
            let waits = rdma.until(&on, Some(limit));
            home.kill();
            assert_eq!(
                waits.await?,
                Some(1),
                "the wait at one NIC ends by what the other one's driver hears"
            );
            assert_eq!(client.look_up().await?, None);
            assert!(client.update(8).await.is_err());
            Ok::<_, Error>(())
        })
        .unwrap();
}

#[test]
fn two_addresses_are_not_one_programs() {
    let folder = Folder::new("catalog-3");
    let settings = format!("address={},directory={}", address(3, 1), folder.0.display());
    let queues = Queues::open(&adverb_io::Settings::parse(&settings).unwrap()).unwrap();
    let state = Some(folder.0.clone());
    let rma = Arc::new(Rma::open(Settings { state, ..Settings::new(address(3, 2)) }).unwrap());
    let transfers = Transfers::beside(rma, queues.waits().clone());
    assert!(matches!(Both::new(queues, transfers).map(drop), Err(Error::System(_))));
}
