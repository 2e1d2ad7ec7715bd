//! What a client can do to others whose gets the same NIC answers: docs/redn-attacks.md. In the simulator, on
//! NICs whose processing units take time, so that rates mean something.

mod common;

use adverb_nic::Counters;
use adverb_rdma::record::{Record, record_len};
use adverb_rdma::{
    Access, Connect, Data, Duration, Error, Key, Pd, Rdma, Region, Remote, SendFlags, SendOp, SendRequest,
    Status,
};
use adverb_redn::Loaded;
use adverb_redn::chain::Address;
use adverb_redn::language::lower::Options;
use adverb_redn::language::{compile, parse};
use adverb_redn::service::chain::{Lookup, Shape, message};
use adverb_redn::service::client::{Client, Got, Half};
use adverb_redn::service::layout::{Extent, Layout, Sought, tag};
use adverb_sim::host::hardware::profiles;
use adverb_sim::program::{Setup, Start};
use adverb_sim::{CableKind, Config, Sim, Topology};
use common::{Said, text};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// What the second client does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Second {
    /// The same as the first one.
    Honest,
    /// It knows the key of a region (index, values, WQEs of its own chain), and uses it.
    RightKey(usize, Verb),
    /// It stores a bucket inside a value, and asks for that one.
    Forged,
    /// A program that it may start never ends.
    Endless,
    /// It sends messages without waiting for replies.
    Flood,
    /// It asks for a value that is longer than its buffer.
    Length,
}

/// What it does with a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verb {
    Read,
    Write,
    CompareSwap,
}

const SHAPE: Shape = Shape { slots: 16, reply_len: 1024 };
const KEYS: u64 = 64;
const VALUES_LEN: u64 = 1 << 16;
const BUCKETS: u64 = 8192;
/// Where in the values a secret stands that no bucket names.
const SECRET_AT: u64 = 40_960;
const SECRET: [u8; 64] = [0x5e; 64];
/// How long the first client asks.
const SPAN: Duration = Duration::from_ms(2);

/// What the test knows, and no client is told.
#[derive(Default)]
struct Secrets {
    regions: Vec<Remote>,
    /// Where the forged bucket stands.
    forged: u64,
}

/// What came of a run.
#[derive(Default)]
struct Run {
    /// Gets of the first client, all of which were right.
    gets: Cell<u64>,
    /// What the second client got.
    second: RefCell<Option<Said<String>>>,
    secrets: RefCell<Secrets>,
}

/// A table in two regions, or, as in the paper, in one.
struct Table {
    pd: Pd,
    index: Region,
    values: (Region, u64),
    layout: Layout,
    next: u64,
}

impl Table {
    async fn new(rdma: &Rdma, paper: bool) -> Said<Table> {
        let pd = rdma.create_pd().await.map_err(text)?;
        let read = Access::LOCAL_WRITE | Access::REMOTE_READ;
        let index_len = BUCKETS * 16;
        let (index, values) = if paper {
            let both = pd.region(index_len + VALUES_LEN, read).await.map_err(text)?;
            (both.clone(), (both, index_len))
        } else {
            let index = pd.region(index_len, read).await.map_err(text)?;
            (index, (pd.region(VALUES_LEN, Access::LOCAL_WRITE).await.map_err(text)?, 0))
        };
        let layout = Layout {
            buckets: BUCKETS,
            seed: 42,
            index: index.addr(),
            values: values.0.addr() + values.1,
            values_len: VALUES_LEN,
        };
        assert!(layout.is_sound(), "{layout:x?}");
        values.0.write(values.1 + SECRET_AT, &SECRET).await.map_err(text)?;
        Ok(Table { pd, index, values, layout, next: 0 })
    }

    /// Inserts a key, and returns where its value is among the values.
    async fn set(&mut self, key: &[u8], value: &[u8]) -> Said<u64> {
        let len = record_len(key.len(), value.len());
        let hash = self.layout.hash(key);
        let mut bytes = vec![0; len];
        Record { version: 1, hash, key, value }.emit(&mut bytes);
        self.values.0.write(self.values.1 + self.next, &bytes).await.map_err(text)?;
        let at = self.next;
        self.next += len as u64;
        let sought = self.layout.sought(hash);
        for bucket in sought.buckets.map(Layout::bucket_at) {
            if self.index.load(bucket).await.map_err(text)? == 0 {
                let word = self.layout.word(Extent { at, len: len as u32 });
                self.index.store(bucket + 8, word).await.map_err(text)?;
                self.index.store(bucket, tag(sought.fingerprint)).await.map_err(text)?;
                let found = bytes.windows(value.len()).position(|part| part == value);
                return Ok(at + found.ok_or("the value")? as u64);
            }
        }
        Err("no room".to_owned())
    }
}

fn key(n: u64) -> Vec<u8> {
    format!("key {n}").into_bytes()
}

fn value(n: u64) -> Vec<u8> {
    (0..64).map(|at| (n as usize * 131 + at * 7) as u8).collect()
}

/// A fingerprint that is no key's, under which the forged bucket is asked for.
const FORGED: u64 = 0x0102_0304_0506;

async fn serve(rdma: Rdma, run: Rc<Run>, paper: bool) -> Said<()> {
    let listener = rdma.listen("gets").await.map_err(text)?;
    let mut table = Table::new(&rdma, paper).await?;
    for n in 0..KEYS {
        table.set(&key(n), &value(n)).await?;
    }
    table.set(b"long", &[7; 20_000]).await?;
    // A value like any other: what a client has stored. It is a bucket that names the secret.
    let word = table.layout.word(Extent { at: SECRET_AT, len: SECRET.len() as u32 });
    let bucket = [tag(FORGED).to_ne_bytes(), word.to_ne_bytes()].concat();
    let at = table.set(b"forged", &bucket).await?;
    run.secrets.borrow_mut().forged = table.layout.values + at;
    let mut served = Vec::new();
    for _ in 0..2 {
        let asked = listener.accept().await.map_err(text)?;
        let buffer = Remote::from_bytes(asked.own().map_err(text)?).ok_or("a buffer")?;
        let lookup = Lookup::new(SHAPE);
        let mut loaded = Loaded::create(&rdma, &table.pd, lookup.chain).await.map_err(text)?;
        let of = |region: &Region| region.remote();
        let values = Address { lkey: table.values.0.lkey(), addr: table.layout.values, rkey: Key(0) };
        let index = Address { lkey: Key(0), addr: table.layout.index, rkey: of(&table.index).rkey };
        loaded.give(lookup.index, index);
        loaded.give(lookup.values, values);
        loaded.give(lookup.buffer, Address { addr: buffer.addr, rkey: buffer.rkey, ..Address::default() });
        loaded.connect(&Connect::default()).await.map_err(text)?;
        let Layout { buckets, seed, index, values, values_len } = table.layout;
        let told: Vec<u8> =
            [buckets, seed, index, values, values_len].into_iter().flat_map(u64::to_be_bytes).collect();
        let how = Connect { access: Access::empty(), ..Connect::default() };
        let qp = loaded.qp(lookup.client).clone();
        run.secrets.borrow_mut().regions =
            vec![of(&table.index), of(&table.values.0), of(loaded.code(lookup.client))];
        let line = asked.accept(&qp, &told, &how).await.map_err(text)?;
        loaded.start().await.map_err(text)?;
        served.push((loaded, line));
    }
    rdma.until(&[adverb_rdma::On::Stop], None).await.map_err(text)?;
    Ok(())
}

/// A program without an end, for whoever starts it.
async fn serve_endless(rdma: Rdma) -> Said<()> {
    let file = parse("program p(x: u48) {\nvar n: u48\nloop recycle { n += x }\n}").map_err(text)?;
    let compiled = compile(&file, Options::default()).map_err(text)?;
    let _served = adverb_redn::run::serve(&rdma, "endless", compiled).await.map_err(text)?;
    rdma.until(&[adverb_rdma::On::Stop], None).await.map_err(text)?;
    Ok(())
}

async fn connected(rdma: &Rdma) -> Result<(Client, adverb_rdma::Line), Error> {
    let half = Half::new(rdma, SHAPE).await?;
    let deadline = rdma.now().await? + Duration::from_ms(5000);
    let own = half.buffer.remote().to_bytes();
    let (line, told) = half.qp.connect("gets", &own, &Connect::default(), Some(deadline)).await?;
    let words: Vec<u64> = told.as_chunks::<8>().0.iter().map(|word| u64::from_be_bytes(*word)).collect();
    let [buckets, seed, index, values, values_len] = words[..] else { return Err(Error::Garbled("layout")) };
    Ok((half.connected(Layout { buckets, seed, index, values, values_len }).await?, line))
}

/// Asks for keys that are there and for some that are not, for a while; all answers have to be right.
async fn ask(rdma: &Rdma, gets: &Cell<u64>) -> Said<()> {
    let (mut client, _line) = connected(rdma).await.map_err(text)?;
    let end = rdma.now().await.map_err(text)? + SPAN;
    while rdma.now().await.map_err(text)? < end {
        let n = gets.get() * 7919 % (KEYS + KEYS / 4);
        let expected = if n < KEYS { Got::Value(value(n)) } else { Got::Missing };
        let got = client.get(&key(n)).await.map_err(text)?;
        if got != expected {
            return Err(format!("key {n}: {got:?}"));
        }
        gets.set(gets.get() + 1);
    }
    Ok(())
}

/// The second client; what it got.
async fn second(rdma: &Rdma, run: &Run, what: Second) -> Said<String> {
    if what == Second::Honest {
        return ask(rdma, &Cell::new(0)).await.map(|()| String::new());
    }
    if what == Second::Endless {
        let client = adverb_redn::run::connect(rdma, "endless", Duration::from_ms(10)).await.map_err(text)?;
        client.ask(&1u64.to_be_bytes()[2..]).await.map_err(text)?;
        return Ok("started".to_owned());
    }
    let (mut client, _line) = connected(rdma).await.map_err(text)?;
    match what {
        Second::Length => Ok(format!("{:?}", client.get(b"long").await)),
        Second::RightKey(region, verb) => {
            let to = run.secrets.borrow().regions[region];
            let (own, qp) = (client.buffer(), client.qp());
            let ended = match verb {
                Verb::Read => qp.read((own, 0), 8, (&to, 0)).await,
                Verb::Write => qp.write((own, 0), 8, (&to, 0)).await,
                Verb::CompareSwap => qp.compare_swap((&to, 0), (0, 1), (own, 0)).await.map(drop),
            };
            Ok(format!("{ended:?}"))
        }
        Second::Forged => {
            let bucket = run.secrets.borrow().forged;
            let sought = Sought { fingerprint: FORGED, buckets: [0, 0] };
            let message = message(&sought, [bucket, client.layout().index]);
            post(&client, &message, false).await.map_err(text)?;
            let cq = client.qp().send_cq().clone();
            let deadline = rdma.now().await.map_err(text)? + Duration::from_ms(1);
            loop {
                if let Some(reply) = cq.poll(1).await.map_err(text)?.first() {
                    let bytes = client.buffer().read(0, 64).await.map_err(text)?;
                    let secret = if bytes == SECRET { "the secret" } else { "nothing" };
                    return Ok(format!("{:?}, {} bytes: {secret}", reply.status, reply.byte_len));
                }
                if rdma.until(&[adverb_rdma::On::Cq(&cq)], Some(deadline)).await.map_err(text)?.is_none() {
                    return Ok("no reply".to_owned());
                }
            }
        }
        Second::Flood => {
            let sought = client.layout().sought(client.layout().hash(&key(1)));
            let buckets = sought.buckets.map(|bucket| client.layout().bucket(bucket));
            let end = rdma.now().await.map_err(text)? + SPAN;
            let mut sent = 0;
            while rdma.now().await.map_err(text)? < end {
                match post(&client, &message(&sought, buckets), true).await {
                    Ok(()) => sent += 1,
                    Err(_) => rdma.sleep(Duration::from_us(1)).await.map_err(text)?,
                }
                for completion in client.qp().send_cq().poll(64).await.map_err(text)? {
                    if completion.status != Status::Success {
                        return Ok(format!("{:?} after {sent}", completion.status));
                    }
                }
            }
            Ok(format!("sent {sent}"))
        }
        Second::Honest | Second::Endless => unreachable!("done before"),
    }
}

async fn post(client: &Client, message: &[u8], signaled: bool) -> Result<(), Error> {
    let flags = SendFlags { signaled, ..SendFlags::default() };
    let data = Data::Inline(message.to_vec());
    let request = SendRequest { wr_id: 0, op: SendOp::Send, flags, data, ud: None, xrc_srqn: 0 };
    client.qp().post(vec![request]).await
}

/// Two clients of one NIC: gets of the first one, what the second one got, counters of the server's NIC.
fn beside(what: Second, paper: bool) -> (u64, String, Counters) {
    let hardware = profiles::by_name("connectx5").unwrap().without_processors();
    let cable = CableKind { rate: 100_000_000_000, delay: Duration::from_ns(110) };
    let fabric = Config::new(Topology::star(3, cable));
    let mut sim = Sim::new(Config { payload: true, flow_bytes_max: 8, hardware, ..fabric }).unwrap();
    let run = Rc::new(Run::default());
    let (one, two, three) = (run.clone(), run.clone(), run.clone());
    let programs = vec![
        Start::new("server", 0, move |rdma| serve(rdma, one.clone(), paper)).serving(),
        Start::new("endless", 0, serve_endless).serving(),
        Start::new("first", 1, move |rdma| {
            let run = two.clone();
            async move { ask(&rdma, &run.gets).await }
        }),
        Start::new("second", 2, move |rdma| {
            let run = three.clone();
            async move {
                let got = second(&rdma, &run, what).await;
                *run.second.borrow_mut() = Some(got);
                Ok::<(), String>(())
            }
        }),
    ];
    sim.set_programs(Setup { programs, exchange_ps: 1_000_000, ..Setup::default() });
    while !sim.programs_ended() && sim.run(100_000_000_000, 1000) {}
    let how: Vec<_> = sim.programs().map(|(name, doing, ..)| format!("{name}: {doing:?}")).collect();
    let first = how.iter().any(|line| line == "first: Ended(Ok(()))");
    assert!(first, "{what:?}: {how:?}");
    let got = run.second.take().unwrap_or_else(|| panic!("{how:?}")).unwrap_or_else(|why| panic!("{why}"));
    (run.gets.get(), got, *sim.nic_counters(0))
}

/// Each attack ends as it should, and leaves the first client eight tenths of the rate that it has beside an
/// honest second one.
#[test]
fn attacks_of_a_second_client_leave_the_first_one_alone() {
    let (honest, _, _) = beside(Second::Honest, false);
    assert!(honest > 100, "{honest} gets");
    let keys = (0..3).flat_map(|region| {
        [Verb::Read, Verb::Write, Verb::CompareSwap].map(|verb| Second::RightKey(region, verb))
    });
    for what in keys.chain([Second::Forged, Second::Endless, Second::Flood, Second::Length]) {
        let (gets, got, counters) = beside(what, false);
        println!("{what:?}: {gets} gets beside it, {honest} beside an honest client; {got}");
        assert!(gets * 10 >= honest * 8, "{what:?}: {gets} of {honest} gets");
        match what {
            Second::RightKey(..) => {
                assert!(got.contains("RemoteAccess") && counters.error_naks_sent == 1, "{got}");
            }
            // The chain's own READ is refused, by the NIC that it runs in.
            Second::Forged => assert!(!got.contains("secret") && counters.error_naks_sent == 1, "{got}"),
            Second::Flood => assert!(counters.rnr_naks_sent > 0, "{got}"),
            Second::Length => assert!(counters.error_naks_received == 1, "{got}"),
            Second::Endless | Second::Honest => {}
        }
    }
}

/// The hole in the paper's scheme: where index and values are one region, a value may be a bucket.
#[test]
fn a_bucket_inside_a_value_is_believed_in_the_papers_layout_only() {
    let (_, got, _) = beside(Second::Forged, true);
    assert_eq!(got, "Success, 64 bytes: the secret");
    let (_, got, _) = beside(Second::Forged, false);
    assert!(!got.contains("secret"), "{got}");
}
