//! Agents of one process, with processes that are threads: what is granted arrives and is taken back, and
//! nobody puts rules that are not his.

use super::local::Granter;
use super::*;
use adverb_io::registry::words::{Ask, Region};
use adverb_nic::{Rule, RuleFor};
use adverb_tls::{ClientStream, Holder as Certified, write_trial_certificates};
use adverb_wire::Key;
use std::io::Write;
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError};

const PATIENCE: Duration = Duration::from_secs(10);
/// The client's queue pairs: of slots 5 and 6.
const CLIENTS: [u32; 2] = [5 << SLOT_SHIFT | 7, 6 << SLOT_SHIFT | 7];

/// The agents of a server's and of a client's address, and a folder with their certificates and a stranger's.
struct Site {
    folder: PathBuf,
    port: u16,
    agents: [Arc<Agent>; 2],
}

impl Site {
    /// Each test has addresses of its own, 127.0.`net`.1 and so on.
    fn new(net: u8, patience: Duration) -> Site {
        let folder = std::env::temp_dir().join(format!("adverb-registry-{}-{net}", std::process::id()));
        // Of an earlier run, if there is one.
        let _ = std::fs::remove_dir_all(&folder);
        let addresses = [1, 2, 9].map(|last| IpAddr::from([127, 0, net, last]));
        let certified = ["one", "two", "nine"].iter().zip(addresses);
        let certified = certified.map(|(name, at)| Certified { name: (*name).into(), addresses: vec![at] });
        write_trial_certificates(&folder, &certified.collect::<Vec<_>>()).unwrap();
        let doors = (0..20).find_map(|_| {
            let one = TcpListener::bind((addresses[0], 0)).unwrap();
            let two = TcpListener::bind((addresses[1], one.local_addr().unwrap().port())).ok()?;
            Some([one, two])
        });
        let doors = doors.expect("a port that both addresses have");
        let port = doors[0].local_addr().unwrap().port();
        let agents = [("one", 0), ("two", 1)].map(|(name, at)| {
            Arc::new(Agent::new(addresses[at], port, patience, &identity(&folder, name)).unwrap())
        });
        for (agent, door) in agents.iter().cloned().zip(doors) {
            spawn("door", move || door::run(&agent, &door)).unwrap();
        }
        Site { folder, port, agents }
    }

    /// A process of the client's that takes rules: what it is told, and nothing it says if it is silent.
    fn taker(&self, client: u32, silent: bool) -> Receiver<Order> {
        let path = PathBuf::from(format!("\0{}-{client}", self.folder.display()));
        let listener = Listener::bind(&path).unwrap();
        let far = Channel::connect(&path, 60).unwrap();
        let near = listener.accept().unwrap();
        lock(&self.agents[1].takers).insert(client >> SLOT_SHIFT, Arc::new(Mutex::new(near)));
        let (heard, orders) = mpsc::channel();
        std::thread::spawn(move || {
            while let Ok(Some(line)) = next_word(&far, Duration::from_secs(60)) {
                heard.send(Order::parse(&line).unwrap()).unwrap();
                if !silent && far.send(b"done", &[]).is_err() {
                    break;
                }
            }
        });
        orders
    }

    /// A connection to the client's agent, with somebody's certificate.
    fn call(&self, name: &str) -> ClientStream {
        let to = self.agents[1].address.ip();
        let tcp = TcpStream::connect((to, self.port)).unwrap();
        let connector = identity(&self.folder, name).connector(ALPN).unwrap();
        connector.connect(tcp, &to.to_string(), PATIENCE).unwrap()
    }

    fn server(&self) -> Gid {
        self.agents[0].address
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn identity(folder: &std::path::Path, name: &str) -> Identity {
    let file = |ending: &str| folder.join(format!("{name}.{ending}"));
    Identity::load(&folder.join("ca.pem"), &file("pem"), &file("key")).unwrap()
}

/// Says a line; the answer, unless the connection ends.
fn say_to(stream: &mut ClientStream, line: &str) -> Option<Said> {
    stream.write_all(format!("{line}\n").as_bytes()).and_then(|()| stream.flush()).ok()?;
    Said::parse(&Lines::default().next(stream).ok()?)
}

fn next(orders: &Receiver<Order>) -> Order {
    orders.recv_timeout(PATIENCE).expect("an order")
}

fn is_quiet(orders: &Receiver<Order>) -> bool {
    matches!(orders.try_recv(), Err(mpsc::TryRecvError::Empty))
}

fn region(key: u32) -> Region {
    Region { key: Key(key), va: 4096, len: 100, rights: 3 }
}

fn number(n: u32) -> QpNumber {
    QpNumber::new(n)
}

#[test]
fn what_is_granted_arrives_and_is_taken_back() {
    let site = Site::new(91, PATIENCE);
    let clients = CLIENTS.map(|client| site.taker(client, false));
    let (server, peer) = (site.server(), site.agents[1].address);
    let put = |number, what| Order::Put(Rule { server, number, what });
    let mut granter = Granter::new(&site.agents[0]);
    let mut asks = |ask: Ask| granter.answer(&ask);
    let connect =
        |n: u32, pd, client: u32| Ask::Connect { number: number(n), pd, peer, peer_number: number(client) };
    assert_eq!(asks(Ask::Region { pd: 1, region: region(10) }), Said::Done, "nobody needs to know");
    assert_eq!(asks(connect(70, 1, CLIENTS[0])), Said::Done);
    assert_eq!(next(&clients[0]), put(number(70), RuleFor::Posted));
    assert_eq!(next(&clients[0]), put(number(70), region(10).rule()));
    assert_eq!(asks(connect(71, 2, CLIENTS[1])), Said::Done);
    assert_eq!(next(&clients[1]), put(number(71), RuleFor::Posted), "of its own domain only");
    assert_eq!(asks(Ask::Region { pd: 2, region: region(20) }), Said::Done);
    assert_eq!(next(&clients[1]), put(number(71), region(20).rule()));
    assert_eq!(asks(Ask::EndRegion { key: Key(10) }), Said::Done);
    assert_eq!(next(&clients[0]), Order::Remove(server, number(70), Some(Key(10))));
    assert_eq!(asks(Ask::EndConnect { number: number(70) }), Said::Done);
    assert_eq!(next(&clients[0]), Order::Remove(server, number(70), None));
    // A process that is not there, and one that takes no rules.
    let refused = asks(connect(72, 1, 9 << SLOT_SHIFT));
    assert!(matches!(&refused, Said::Refused(why) if why.contains("no process")), "{refused:?}");
    assert!(clients.iter().all(is_quiet));
    // The process ends.
    drop(granter);
    assert_eq!(next(&clients[1]), Order::Remove(server, number(71), None));
    assert!(clients.iter().all(is_quiet));
}

/// A window of type 2 is granted to its queue pair's peer alone, at each of its connections; what is
/// registered anew takes its rule's place where it has the same peers, and goes from those that it has no
/// more.
#[test]
fn windows_of_one_queue_pair_and_regions_that_change() {
    let site = Site::new(97, PATIENCE);
    let clients = CLIENTS.map(|client| site.taker(client, false));
    let (server, peer) = (site.server(), site.agents[1].address);
    let put = |n, what| Order::Put(Rule { server, number: number(n), what });
    let mut granter = Granter::new(&site.agents[0]);
    let mut asks = |ask: Ask| assert_eq!(granter.answer(&ask), Said::Done, "{ask}");
    let connect =
        |n: u32, pd, client: u32| Ask::Connect { number: number(n), pd, peer, peer_number: number(client) };
    for (n, pd, client) in [(70, 1, 0), (71, 1, 1)] {
        asks(connect(n, pd, CLIENTS[client]));
        assert_eq!(next(&clients[client]), put(n, RuleFor::Posted));
    }
    asks(Ask::Window { number: number(70), pd: 1, region: region(10) });
    assert_eq!(next(&clients[0]), put(70, region(10).rule()));
    asks(Ask::EndConnect { number: number(70) });
    assert_eq!(next(&clients[0]), Order::Remove(server, number(70), None));
    // It stays bound.
    asks(connect(70, 1, CLIENTS[0]));
    assert_eq!(next(&clients[0]), put(70, RuleFor::Posted));
    assert_eq!(next(&clients[0]), put(70, region(10).rule()));
    // Through the other queue pair, now.
    asks(Ask::Window { number: number(71), pd: 1, region: region(10) });
    assert_eq!(next(&clients[0]), Order::Remove(server, number(70), Some(Key(10))));
    assert_eq!(next(&clients[1]), put(71, region(10).rule()));
    asks(Ask::EndRegion { key: Key(10) });
    assert_eq!(next(&clients[1]), Order::Remove(server, number(71), Some(Key(10))));
    // A region: fewer rights, then another domain.
    asks(Ask::Region { pd: 1, region: region(20) });
    let narrow = Region { rights: 1, ..region(20) };
    asks(Ask::Region { pd: 1, region: narrow });
    for (n, client) in [(70, 0), (71, 1)] {
        assert_eq!(next(&clients[client]), put(n, region(20).rule()));
        assert_eq!(next(&clients[client]), put(n, narrow.rule()));
    }
    asks(Ask::Region { pd: 2, region: narrow });
    for (n, client) in [(70, 0), (71, 1)] {
        assert_eq!(next(&clients[client]), Order::Remove(server, number(n), Some(Key(20))));
    }
    assert!(clients.iter().all(is_quiet));
}

#[test]
fn rules_end_with_the_connection_that_brought_them() {
    let site = Site::new(92, PATIENCE);
    let clients = CLIENTS.map(|client| site.taker(client, false));
    let server = site.server();
    let rule = |n: u32| Order::Put(Rule { server, number: number(n), what: RuleFor::Posted });
    let put = |stream: &mut ClientStream, at: usize, n: u32| {
        assert_eq!(say_to(stream, &format!("{} {}", CLIENTS[at], rule(n))), Some(Said::Done));
        assert_eq!(next(&clients[at]), rule(n));
    };
    let mut first = site.call("one");
    assert_eq!(say_to(&mut first, &format!("server {server}")), Some(Said::Done));
    put(&mut first, 0, 70);
    put(&mut first, 1, 71);
    // Another one of the same server: what the first has brought ends, and so does the first.
    let mut second = site.call("one");
    assert_eq!(say_to(&mut second, &format!("server {server}")), Some(Said::Done));
    assert_eq!(next(&clients[0]), Order::Remove(server, number(70), None));
    assert_eq!(next(&clients[1]), Order::Remove(server, number(71), None));
    assert_eq!(say_to(&mut first, "ping"), None);
    put(&mut second, 0, 72);
    drop(second);
    assert_eq!(next(&clients[0]), Order::Remove(server, number(72), None));
    assert!(clients.iter().all(is_quiet));
}

#[test]
fn what_was_told_is_told_again_when_a_connection_was_lost() {
    let site = Site::new(93, PATIENCE);
    let client = site.taker(CLIENTS[0], false);
    let (server, peer) = (site.server(), site.agents[1].address);
    let mut granter = Granter::new(&site.agents[0]);
    let connect = Ask::Connect { number: number(70), pd: 1, peer, peer_number: number(CLIENTS[0]) };
    assert_eq!(granter.answer(&connect), Said::Done);
    let posted = Order::Put(Rule { server, number: number(70), what: RuleFor::Posted });
    assert_eq!(next(&client), posted);
    // Somebody breaks it, as a network does.
    let aside = TcpStream::connect((peer.ip(), site.port)).unwrap();
    site.agents[1].enter(server, u64::MAX, aside);
    assert_eq!(next(&client), Order::Remove(server, number(70), None));
    assert_eq!(next(&client), posted, "by itself");
}

#[test]
fn nobody_puts_rules_that_are_not_his() {
    let site = Site::new(94, PATIENCE);
    let client = site.taker(CLIENTS[0], false);
    let (server, nine) = (site.server(), Gid::from(IpAddr::from([127, 0, 94, 9])));
    let refused = |said: Option<Said>| matches!(said, Some(Said::Refused(_)));
    // An address that the certificate does not name; no address; something else first.
    for first in [format!("server {server}"), "server one".to_owned(), format!("{} ping", CLIENTS[0])] {
        assert!(refused(say_to(&mut site.call("nine"), &first)), "{first}");
    }
    // Its own address, and another server's rules; what is no order; a queue pair that is none.
    let mut stream = site.call("nine");
    assert_eq!(say_to(&mut stream, &format!("server {nine}")), Some(Said::Done));
    for line in [
        format!("{} put {server} 70 posted", CLIENTS[0]),
        format!("{} remove {server} 70 *", CLIENTS[0]),
        format!("{} put {nine} 70", CLIENTS[0]),
        format!("16777216 put {nine} 70 posted"),
        format!("put {nine} 70 posted"),
        "server 127.0.0.1".to_owned(),
        String::new(),
    ] {
        assert!(refused(say_to(&mut stream, &line)), "{line}");
    }
    assert!(is_quiet(&client), "nothing has come");
    assert_eq!(say_to(&mut stream, "ping"), Some(Said::Done), "it is served still");
    // A line without an end, and bytes that are no text.
    assert_eq!(say_to(&mut stream, &"x".repeat(4096)), None);
    let mut stream = site.call("nine");
    stream.write_all(&[0xff, 0xfe, b'\n']).unwrap();
    assert_eq!(say_to(&mut stream, "ping"), None);
    assert!(is_quiet(&client));
}

#[test]
fn a_process_that_does_not_answer_is_waited_for_once() {
    let site = Site::new(95, Duration::from_millis(400));
    let client = site.taker(CLIENTS[0], true);
    let order = Order::Remove(site.server(), number(70), None);
    let began = now();
    let said = site.agents[1].order(number(CLIENTS[0]), &order);
    assert!(matches!(&said, Said::Refused(why) if why.contains("does not answer")), "{said:?}");
    assert!(now() - began >= Duration::from_millis(200), "its time");
    let said = site.agents[1].order(number(CLIENTS[0]), &order);
    assert!(matches!(&said, Said::Refused(why) if why.contains("no process")), "{said:?}");
    assert_eq!(next(&client), order);
    // It hears that its agent has gone.
    let ended = client.recv_timeout(PATIENCE);
    assert_eq!(ended, Err(RecvTimeoutError::Disconnected));
}

#[test]
fn lines_come_in_pieces_and_have_an_end() {
    let mut lines = Lines::default();
    let mut text = &b"one\ntwo\nthr"[..];
    assert_eq!(lines.next(&mut text).unwrap(), "one");
    assert_eq!(lines.next(&mut text).unwrap(), "two");
    assert!(lines.next(&mut text).is_err(), "an end within a line");
    assert!(Lines::default().next(&mut &[b'x'; 1000][..]).is_err(), "a line without end");
    assert!(Lines::default().next(&mut &[0xff, b'\n'][..]).is_err());
}
