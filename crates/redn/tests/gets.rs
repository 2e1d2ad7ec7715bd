//! Gets that a recycled chain answers: in the simulator under faults, and on real NICs.

mod common;

use adverb_rdma::record::{Record, record_len};
use adverb_rdma::{
    Access, Connect, Data, Duration, Endpoint, Error, On, Pd, Rdma, Region, Remote, SendFlags, SendOp,
    SendRequest,
};
use adverb_redn::Loaded;
use adverb_redn::chain::Address;
use adverb_redn::service::chain::{Lookup, Shape, message};
use adverb_redn::service::client::{By, Client, Counters, Got, Half};
use adverb_redn::service::layout::{Extent, Layout, tag};
use adverb_redn::service::rpc::{Limits, Server};
use adverb_redn::service::setup::Offer;
use adverb_sim::faults::{Chances, FaultPlan, LinkFaults, Rule};
use adverb_sim::host::TransportConfig;
use adverb_sim::host::hardware::{Profile, profiles};
use adverb_sim::program::{Setup, Start};
use adverb_sim::{CableKind, Config, Sim, Topology};
use common::{Said, text, two_for_real};
use std::cell::RefCell;
use std::rc::Rc;

/// A table that a test writes: keys where there is room, and no displacement.
struct Table {
    pd: Pd,
    index: Region,
    values: Region,
    layout: Layout,
    /// Where records are written, round and round.
    first: u64,
    end: u64,
    next: u64,
    version: u64,
}

impl Table {
    async fn new(rdma: &Rdma, buckets: u64, values_len: u64) -> Said<Table> {
        let pd = rdma.create_pd().await.map_err(text)?;
        let read = Access::LOCAL_WRITE | Access::REMOTE_READ;
        let index = pd.region(buckets * 16, read).await.map_err(text)?;
        let values = pd.region(values_len, Access::LOCAL_WRITE).await.map_err(text)?;
        let layout = Layout { buckets, seed: 42, index: index.addr(), values: values.addr(), values_len };
        assert!(layout.is_sound(), "{layout:x?}");
        Ok(Table { pd, index, values, layout, first: 0, end: values_len, next: 0, version: 0 })
    }

    /// Writes a record, round and round, and returns where.
    async fn record(&mut self, key: &[u8], value: &[u8]) -> Said<Extent> {
        let len = record_len(key.len(), value.len());
        if self.next + len as u64 > self.end {
            self.next = self.first;
        }
        self.version += 1;
        let mut bytes = vec![0; len];
        Record { version: self.version, hash: self.layout.hash(key), key, value }.emit(&mut bytes);
        self.values.write(self.next, &bytes).await.map_err(text)?;
        let at = self.next;
        self.next += len as u64;
        Ok(Extent { at, len: len as u32 })
    }

    /// Inserts a key, or replaces its value. False if both its buckets are others'.
    async fn set(&mut self, key: &[u8], value: &[u8]) -> Said<bool> {
        let extent = self.record(key, value).await?;
        let sought = self.layout.sought(self.layout.hash(key));
        for own in [true, false] {
            for bucket in sought.buckets {
                let at = Layout::bucket_at(bucket);
                let found = self.index.load(at).await.map_err(text)?;
                if found == (if own { tag(sought.fingerprint) } else { 0 }) {
                    self.index.store(at + 8, self.layout.word(extent)).await.map_err(text)?;
                    self.index.store(at, tag(sought.fingerprint)).await.map_err(text)?;
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    async fn must(&mut self, key: &[u8], value: &[u8]) -> Said<()> {
        if self.set(key, value).await? { Ok(()) } else { Err(format!("no room for {key:?}")) }
    }
}

/// Admits the next client.
async fn admit(
    rdma: &Rdma,
    table: &Table,
    listener: &adverb_rdma::Listener,
    how: Serve,
) -> Said<(Loaded, adverb_rdma::Line)> {
    let asked = listener.accept().await.map_err(text)?;
    let buffer = Remote::from_bytes(asked.own().map_err(text)?).ok_or("a buffer")?;
    let made = if how.audited { Lookup::audited } else { Lookup::new };
    let lookup = made(how.shape);
    let mut loaded = Loaded::create(rdma, &table.pd, lookup.chain).await.map_err(text)?;
    let of =
        |region: &Region| Address { addr: region.addr(), lkey: region.lkey(), rkey: region.remote().rkey };
    loaded.give(lookup.index, Address { lkey: adverb_rdma::Key(0), ..of(&table.index) });
    loaded.give(lookup.values, Address { rkey: adverb_rdma::Key(0), ..of(&table.values) });
    loaded.give(lookup.buffer, Address { addr: buffer.addr, rkey: buffer.rkey, ..Address::default() });
    loaded.connect(&Connect::default()).await.map_err(text)?;
    let mut told = Vec::new();
    let Layout { buckets, seed, index, values, values_len } = table.layout;
    for word in [buckets, seed, index, values, values_len] {
        told.extend_from_slice(&word.to_be_bytes());
    }
    let how = Connect { access: Access::empty(), timeout: how.timeout, ..Connect::default() };
    let qp = loaded.qp(lookup.client).clone();
    let line = asked.accept(&qp, &told, &how).await.map_err(text)?;
    loaded.start().await.map_err(text)?;
    Ok((loaded, line))
}

/// A client of what is served under this name.
async fn client(rdma: &Rdma, name: &str, how: Ask) -> Result<(Client, adverb_rdma::Line), Error> {
    let half = Half::new(rdma, how.shape).await?;
    let deadline = rdma.now().await? + adverb_rdma::Duration::from_ms(5000);
    let own = half.buffer.remote().to_bytes();
    let connect = Connect { timeout: how.timeout, ..Connect::default() };
    let (line, told) = half.qp.connect(name, &own, &connect, Some(deadline)).await?;
    let words: Vec<u64> = told.as_chunks::<8>().0.iter().map(|word| u64::from_be_bytes(*word)).collect();
    let [buckets, seed, index, values, values_len] = words[..] else { return Err(Error::Garbled("layout")) };
    Ok((half.connected(Layout { buckets, seed, index, values, values_len }).await?, line))
}

fn key(n: u64) -> Vec<u8> {
    format!("key {n}").into_bytes()
}

fn value(n: u64, len: usize) -> Vec<u8> {
    (0..len).map(|at| (n as usize * 131 + at * 7) as u8).collect()
}

const SMALL: Shape = Shape { slots: 16, reply_len: 1024 };
/// Keys that stay as they are, and keys that are set again and again; those behind them are missing.
const COLD: u64 = 200;
const HOT: u64 = 4;

/// A hot key's value: how often it was set, and bytes that depend on it.
fn hot(n: u64, round: u64) -> Vec<u8> {
    let mut out = round.to_be_bytes().to_vec();
    out.extend(value(n + round * 31, 392));
    out
}

/// What a server does.
#[derive(Clone, Copy, Debug)]
struct Serve {
    clients: u32,
    len: usize,
    shape: Shape,
    /// Local ACK timeout.
    timeout: u8,
    /// Between two sets of hot keys.
    pause: Option<Duration>,
    /// Every WQE of a chain makes a completion.
    audited: bool,
}

const SERVE: Serve = Serve { clients: 1, len: 64, shape: SMALL, timeout: 14, pause: None, audited: false };

/// Serves keys until it is stopped, and sets hot ones meanwhile: in places that are used again soon, so that
/// some are written anew while they are read.
async fn serve(rdma: Rdma, name: String, how: Serve) -> Said<()> {
    let listener = rdma.listen(&name).await.map_err(text)?;
    let mut table = Table::new(&rdma, 1 << 14, 1 << 20).await?;
    for n in 0..COLD {
        table.must(&key(n), &value(n, how.len)).await?;
    }
    table.first = table.next;
    table.end = table.first + (HOT + 1) * record_len(key(COLD).len(), hot(0, 0).len()) as u64;
    for n in 0..HOT {
        table.must(&key(COLD + n), &hot(n, 0)).await?;
    }
    let mut served = Vec::new();
    for _ in 0..how.clients {
        served.push(admit(&rdma, &table, &listener, how).await?);
    }
    let mut round = 1;
    loop {
        let deadline = match how.pause {
            Some(pause) => Some(rdma.now().await.map_err(text)? + pause),
            None => None,
        };
        let mut on: Vec<On<'_>> = served.iter().map(|(_, line)| On::Gone(line)).collect();
        on.push(On::Stop);
        match rdma.until(&on, deadline).await.map_err(text)? {
            None => {}
            Some(gone) if gone < served.len() && served.len() > 1 => drop(served.remove(gone)),
            Some(_) => return Ok(()),
        }
        for n in 0..HOT {
            table.must(&key(COLD + n), &hot(n, round)).await?;
        }
        round += 1;
    }
}

/// What a client does.
#[derive(Clone, Copy, Debug)]
struct Ask {
    len: usize,
    shape: Shape,
    gets: u64,
    /// Local ACK timeout.
    timeout: u8,
    /// Gets under way.
    at_once: u32,
}

const ASK: Ask = Ask { len: 64, shape: SMALL, gets: 1000, timeout: 14, at_once: 1 };

async fn all(client: &mut Client, keys: &[&[u8]], at_once: u32) -> Result<Vec<Got>, Error> {
    if at_once > 1 {
        return client.get_all(keys, at_once).await;
    }
    let mut gots = Vec::new();
    for key in keys {
        gots.push(client.get(key).await?);
    }
    Ok(gots)
}

/// Gets of keys that are there, of keys that change, and of keys that are not, each checked.
async fn ask(rdma: Rdma, name: String, how: Ask) -> Said<Counters> {
    let (mut client, _line) = client(&rdma, &name, how).await.map_err(text)?;
    let mut rounds = [0; HOT as usize];
    let mut at = 0;
    while at < how.gets {
        let number = |n: u64| match n % 2 {
            0 => COLD + n / 2 % HOT,
            _ => n * 7919 % (COLD + HOT + COLD / 4),
        };
        let numbers: Vec<u64> = (at..how.gets.min(at + 64)).map(number).collect();
        let keys: Vec<Vec<u8>> = numbers.iter().map(|n| key(*n)).collect();
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let gots = all(&mut client, &keys, how.at_once).await;
        let gots = gots.map_err(|error| format!("gets from {at}: {error} ({:?})", client.counters))?;
        for (n, got) in numbers.into_iter().zip(gots) {
            let sound = match &got {
                Got::Value(found) if n < COLD => *found == value(n, how.len),
                Got::Value(found) if n < COLD + HOT => {
                    let n = n - COLD;
                    let round = u64::from_be_bytes(found[..8].try_into().unwrap_or_default());
                    // Gets that are under way at once may be answered a second time, out of their order.
                    let newer = round >= rounds[n as usize] || how.at_once > 1;
                    rounds[n as usize] = round;
                    newer && *found == hot(n, round)
                }
                Got::Missing => n >= COLD + HOT,
                Got::Unsure => (COLD..COLD + HOT).contains(&n),
                Got::Value(_) => false,
            };
            if !sound {
                return Err(format!("key {n} of {rounds:?}: {got:?}"));
            }
        }
        at += 64;
    }
    Ok(client.counters)
}

/// What a simulation is like.
#[derive(Clone, Copy, Debug)]
struct World {
    hardware: &'static str,
    prefetch: Option<u8>,
    chances: Chances,
    /// One packet's fault or every one's, in words.
    rule: Option<&'static str>,
    irn: bool,
    seed: u64,
}

const WORLD: World = World {
    hardware: "neutral",
    prefetch: None,
    chances: Chances {
        loss: 0.0,
        burst: 0.0,
        bit_error: 0.0,
        duplicate: 0.0,
        reorder: 0.0,
        reorder_ps: 0,
        jitter_ps: 0,
    },
    rule: None,
    irn: false,
    seed: 1,
};

/// A chain's server, and clients one after the other on another host; what each of them says.
fn simulated<T: 'static, F: Future<Output = Said<T>> + 'static>(
    world: World,
    server: Serve,
    clients: impl Fn(u32, Rdma, String) -> F + 'static,
) -> Vec<T> {
    simulated_with(world, server.clients, move |rdma, name| serve(rdma, name, server), clients)
}

/// The same with another server of so many clients.
fn simulated_with<T: 'static, S, F>(
    world: World,
    many: u32,
    server: impl Fn(Rdma, String) -> S + 'static,
    clients: impl Fn(u32, Rdma, String) -> F + 'static,
) -> Vec<T>
where
    S: Future<Output = Said<()>> + 'static,
    F: Future<Output = Said<T>> + 'static,
{
    let hardware = profiles::by_name(world.hardware).unwrap_or(Profile::NEUTRAL);
    let cable = CableKind { rate: 100_000_000_000, delay: Duration::from_ns(110) };
    let irn = world.irn.then(adverb_nic::IrnConfig::default);
    let transport = TransportConfig { prefetch: world.prefetch, irn, ..TransportConfig::default() };
    let fabric = Config {
        payload: true,
        flow_bytes_max: 8,
        hardware,
        transport,
        seed: world.seed,
        ..Config::new(Topology::two_hosts(cable))
    };
    let mut sim = Sim::new(fabric).unwrap();
    let rng = |link| fastrand::Rng::with_seed(world.seed << 8 | link);
    let links = (0..2).map(|link| LinkFaults::new(world.chances, rng(link))).collect();
    let script = world.rule.iter().map(|rule| Rule::parse(rule).unwrap()).collect();
    sim.set_faults(FaultPlan { links, script, ..FaultPlan::default() });
    let name = || "table".to_owned();
    let mut programs = vec![Start::new("server", 0, move |rdma| server(rdma, name())).serving()];
    let said = Rc::new(RefCell::new(Vec::new()));
    let clients = Rc::new(clients);
    for n in 0..many {
        let (kept, clients) = (said.clone(), clients.clone());
        let run = move |rdma| {
            let (kept, clients) = (kept.clone(), clients.clone());
            async move {
                let answer = clients(n, rdma, name()).await?;
                kept.borrow_mut().push((n, answer));
                Ok::<(), String>(())
            }
        };
        programs.push(Start::new(format!("client {n}"), 1, run));
    }
    sim.set_programs(Setup { programs, exchange_ps: 1_000_000, ..Setup::default() });
    sim.run(u64::MAX, u64::MAX);
    let how: Vec<_> = sim.programs().map(|(_, doing, ..)| doing.clone()).collect();
    let mut said = said.take();
    assert_eq!(said.len(), many as usize, "{world:?}: {how:?}");
    said.sort_by_key(|(n, _)| *n);
    said.into_iter().map(|(_, answer)| answer).collect()
}

#[test]
fn a_chain_answers_hits_and_misses_for_ever() {
    for (slots, audited) in [(8, false), (16, false), (64, false), (8, true), (64, true)] {
        let shape = Shape { slots, ..SMALL };
        let counters = simulated(WORLD, Serve { shape, audited, ..SERVE }, move |_, rdma, name| {
            ask(rdma, name, Ask { shape, ..ASK })
        });
        assert_eq!((counters[0].torn, counters[0].strangers), (0, 0), "{counters:?}");
    }
    let counters = two_for_real(
        10,
        |rdma, name| serve(rdma, name, SERVE),
        |rdma, name| ask(rdma, name, Ask { gets: 10_000, ..ASK }),
    );
    assert_eq!((counters.torn, counters.strangers, counters.timeouts), (0, 0, 0));
}

/// A right chain may not depend on how many WQEs a fetch brings, nor on what takes how long.
#[test]
fn a_chain_is_right_however_much_is_fetched_ahead() {
    for hardware in ["neutral", "connectx5"] {
        for prefetch in [1, 2, 3, 5, 8, 16, 33, 64] {
            let world = World { hardware, prefetch: Some(prefetch), ..WORLD };
            for at_once in [1, 4, 16] {
                // A WQE that completes takes no other way, so one of the depths is enough of audited chains.
                let audited = prefetch == 5;
                simulated(world, Serve { audited, ..SERVE }, move |_, rdma, name| {
                    ask(rdma, name, Ask { gets: 320, at_once, ..ASK })
                });
            }
        }
    }
}

/// Values are written anew while two clients read them, over links that lose, double and hold up packets.
fn under_faults(gets: u64, seeds: core::ops::Range<u64>) {
    let (mut torn, mut retried) = (0, 0);
    for seed in seeds {
        let chances =
            Chances { loss: 0.01, duplicate: 0.02, reorder: 0.05, reorder_ps: 20_000_000, ..WORLD.chances };
        let world = World { chances, seed, irn: seed % 2 == 1, hardware: "connectx5", ..WORLD };
        let pause = Some(Duration::from_ns(700));
        let server = Serve { clients: 2, pause, timeout: 5, ..SERVE };
        let counters = simulated(world, server, move |n, rdma, name| {
            ask(rdma, name, Ask { gets, at_once: 1 + 3 * n, timeout: 5, ..ASK })
        });
        torn += counters.iter().map(|counters| counters.torn + counters.strangers).sum::<u64>();
        retried += counters.iter().map(|counters| counters.retries).sum::<u64>();
    }
    assert!(torn > 0 && retried > 0, "nothing was written while it was read");
}

#[test]
fn gets_are_right_under_faults_and_writes() {
    under_faults(500, 0..4);
}

#[test]
#[ignore = "two minutes"]
fn hundred_thousand_gets_are_right_under_faults_and_writes() {
    under_faults(25_000, 0..2);
}

/// The 24 bits of a WAIT's index, and with them all that wraps sooner, begin again.
#[test]
#[ignore = "minutes"]
fn gets_are_right_past_two_to_the_twenty_fourth() {
    let how = Ask { gets: (1 << 24) + 4096, at_once: 4, ..ASK };
    let counters = simulated(WORLD, SERVE, move |_, rdma, name| ask(rdma, name, how));
    assert!(counters[0].asked > 1 << 24, "{counters:?}");
    assert_eq!((counters[0].timeouts, counters[0].torn), (0, 0), "{counters:?}");
}

/// Messages that come while the chain is busy find no receive: they wait, and change nothing.
#[test]
fn a_client_that_asks_too_much_at_once_waits() {
    let run = |at_once| {
        move |_: u32, rdma: Rdma, name: String| async move {
            let before = rdma.now().await.map_err(text)?;
            ask(rdma.clone(), name, Ask { gets: 640, at_once, ..ASK }).await?;
            Ok(rdma.now().await.map_err(text)? - before)
        }
    };
    let world = World { hardware: "connectx5", ..WORLD };
    let times: Vec<u64> = [1, SMALL.outstanding(), SMALL.slots]
        .map(|at_once| simulated(world, SERVE, run(at_once))[0].as_ps())
        .to_vec();
    assert!(times[1] < times[0], "{times:?}");
}

/// Replies that overtake the acknowledgements of their messages make no room in the send queue: the client
/// waits for those.
#[test]
fn replies_before_acknowledgements_do_not_overrun_the_send_queue() {
    let world = World { rule: Some("delay ack every src=0 dst=1 by=1ms"), ..WORLD };
    for at_once in [1, SMALL.slots] {
        let counters =
            simulated(world, SERVE, move |_, rdma, name| ask(rdma, name, Ask { gets: 320, at_once, ..ASK }));
        assert_eq!((counters[0].timeouts, counters[0].torn), (0, 0), "{counters:?}");
    }
}

/// The same of a program that answers: what it has no room for waits, and the client is none the worse.
#[test]
fn replies_before_acknowledgements_do_not_overrun_a_programs_send_queue() {
    let late = World { rule: Some("delay ack every src=1 dst=0 by=1ms"), ..WORLD };
    let lost = World { chances: Chances { loss: 0.05, ..WORLD.chances }, hardware: "connectx5", ..WORLD };
    for world in [late, lost] {
        for at_once in [1, SMALL.slots] {
            let (offer, endpoint) = (Rc::new(RefCell::new(None)), Rc::new(RefCell::new(None)));
            let (offered, told) = (offer.clone(), endpoint.clone());
            let answered = move |rdma: Rdma, _: String| {
                let (offered, told) = (offered.clone(), told.clone());
                async move { answer_by_program(&rdma, &offered, &told).await.map_err(text) }
            };
            let counters = simulated_with(world, 1, answered, move |_, rdma, _| {
                let (offer, endpoint) = (offer.clone(), endpoint.clone());
                async move { ask_a_program(&rdma, &offer, &endpoint, at_once).await.map_err(text) }
            });
            assert_eq!((counters[0].asked, counters[0].timeouts), (640, 0), "{world:?}, {at_once}");
        }
    }
}

/// What passes between a client and a program that answers, beside the queue pair.
type Slip<T> = RefCell<Option<T>>;

/// Takes what somebody has left, as soon as it is there.
async fn take<T>(rdma: &Rdma, slip: &Slip<T>) -> Result<T, Error> {
    loop {
        if let Some(left) = slip.borrow_mut().take() {
            return Ok(left);
        }
        let soon = rdma.now().await? + Duration::from_us(1);
        rdma.until(&[], Some(soon)).await?;
    }
}

async fn answer_by_program(rdma: &Rdma, offer: &Slip<Offer>, told: &Slip<Endpoint>) -> Result<(), Error> {
    let mut server = Server::new(rdma, Limits { clients: 1, slots: SMALL.slots }).await?;
    let offer = take(rdma, offer).await?;
    let (_, endpoint) = server.connect(&offer).await.map_err(|_| Error::Garbled("an offer"))?;
    *told.borrow_mut() = Some(endpoint);
    // A record's key is in it, and the value is as long as the key.
    let find = |key: &[u8]| {
        let mut bytes = vec![0; record_len(key.len(), key.len())];
        Record { version: 1, hash: 0, key, value: key }.emit(&mut bytes);
        Some(bytes)
    };
    loop {
        if server.answer(find).await? == 0 {
            let woken = rdma.until(&[On::Cq(server.cq()), On::Stop], None).await?;
            if woken == Some(1) {
                return Ok(());
            }
        }
        assert_eq!(server.counters.broken, 0);
    }
}

async fn ask_a_program(
    rdma: &Rdma,
    offer: &Slip<Offer>,
    told: &Slip<Endpoint>,
    at_once: u32,
) -> Result<Counters, Error> {
    let half = Half::new(rdma, SMALL).await?;
    let how = Connect::default();
    let endpoint = half.qp.endpoint(&how).await?;
    *offer.borrow_mut() =
        Some(Offer { endpoint, buffer: half.buffer.remote(), shape: SMALL, one_sided: false });
    let peer = take(rdma, told).await?;
    half.qp.connect_to(&endpoint, &peer, &how).await?;
    let layout = Layout { buckets: 64, seed: 1, index: 4096, values: 1 << 20, values_len: 1 << 20 };
    let mut client = half.connected_to(By::Program, layout).await?;
    let keys: Vec<Vec<u8>> = (0..640).map(key).collect();
    let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    for (got, key) in all(&mut client, &keys, at_once).await?.iter().zip(&keys) {
        assert_eq!(*got, Got::Value(key.to_vec()));
    }
    Ok(client.counters)
}

/// A client that names bytes among the values as a bucket, where it had a forged one put, gets nothing: READs
/// have the index's key only. Whoever else asks meanwhile is answered.
#[test]
fn a_forged_bucket_among_the_values_is_not_read() {
    let server = Serve { clients: 2, ..SERVE };
    let said = simulated(WORLD, server, |n, rdma, name| async move {
        if n == 1 {
            return ask(rdma, name, ASK).await.map(|_| None);
        }
        let (mut client, _line) = client(&rdma, &name, ASK).await.map_err(text)?;
        let own = client.get(&key(1)).await.map_err(text)?;
        assert_eq!(own, Got::Value(value(1, 64)));
        let inside = client.layout().values + 64;
        let forged = message(&client.layout().sought(1), [inside, inside]);
        let request = SendRequest {
            wr_id: 7,
            op: SendOp::Send,
            flags: SendFlags::default(),
            data: Data::Inline(forged.to_vec()),
            ud: None,
            xrc_srqn: 0,
        };
        client.qp().post(vec![request]).await.map_err(text)?;
        Ok(client.get(&key(1)).await.err())
    });
    assert!(said[0].is_some(), "the chain went on");
    assert!(said[1].is_none());
}
