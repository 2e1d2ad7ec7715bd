//! What a client can do to another one of the same hull, each a process of its own: docs/redn-attacks.md.
//!
//! This process is the first client. The second one is the test's own program once more, which plays a part.

use crate::world::*;
use adverb_io::looks::look;
use adverb_os::mapping::Mapping;
use adverb_rdma::{
    CompletionOp, Data, Error, File, Key, On, RateLimit, Rdma, Remote, SendFlags, SendOp, SendRequest, Status,
};
use adverb_redn::Loaded;
use adverb_redn::chain::QueueId;
use adverb_redn::language::lower::Options;
use adverb_redn::language::{compile, parse};
use adverb_redn::run::Served;
use adverb_redn::service::chain::{Shape, message};
use adverb_redn::service::client::{By, Client, Got};
use adverb_redn::service::hull::{Files, Hull, Limits};
use adverb_redn::service::item::Item;
use adverb_redn::service::layout::{BUCKET_LEN, Sought, tag};
use adverb_redn::service::setup::Line;
use adverb_redn::service::table::Table;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Of the variable that says which part is to be played: words.
const PART: &str = "ADVERB_TEST_REDN_PART";
/// Before what a part says, among what the test's own program prints.
const SAYS: &str = "part: ";
/// How long the first client asks beside each second one.
const SPAN: Duration = Duration::from_millis(150);
/// Pairs of rounds, an honest second client and an attack.
const ROUNDS: usize = 5;
/// At most so many where rates are judged and the host is busy.
const ROUNDS_MAX: usize = 25;
/// Set where rates are judged (`make test-long STEP=attacks`), on a host with nothing else to do: a second
/// client takes processor time of whoever else needs it, whatever it does with it.
const JUDGED: &str = "ADVERB_RATES";
/// Of the rate beside an honest second client, what an attack has to leave.
const LEFT: f64 = 0.8;
const KEYS: u64 = 64;
/// What each queue of a program that never ends may take: about 20,000 requests a second.
const ENDLESS_KBPS: u32 = 10_000;
/// A fingerprint that is no key's, under which a forged bucket is asked for.
const FORGED: u64 = 0x0102_0304_0506;

/// Held while rates are compared, so that tests of rates do not disturb each other.
static ALONE: Mutex<()> = Mutex::new(());

/// What a part says to the test that has started it.
fn says(text: &str) {
    std::io::stdout().write_all(format!("{SAYS}{text}\n").as_bytes()).unwrap();
}

fn key(n: u64) -> String {
    format!("key{n}")
}

fn value(n: u64) -> String {
    format!("value {n} ").repeat(8)
}

/// A bucket that names bytes by their address, whatever they are.
fn bucket(address: u64, len: u64) -> [u8; 16] {
    let [.., a, b, c, d, e] = address.to_be_bytes();
    let [.., x, y, z] = len.to_be_bytes();
    let mut out = [0; 16];
    out[..8].copy_from_slice(&tag(FORGED).to_ne_bytes());
    out[8..].copy_from_slice(&[x, y, z, a, b, c, d, e]);
    out
}

/// A table with what attacks need: a bucket inside a value, and a value longer than most buffers.
fn table(host: u8, words: &[&str]) -> Server {
    let server = Server::start(host, words);
    // The first record of all: so its place is known, and the address of what its value holds.
    server.set("forged", [0; 16]);
    for n in 0..KEYS {
        server.set(&key(n), value(n));
    }
    server.set("long", vec![b'7'; 20_000]);
    server
}

/// Where in the values the first record's data stands: behind a record's 32 bytes, its key, and 8 of an item.
const FORGED_AT: u64 = 32 + "forged".len() as u64 + 8;

async fn post(client: &Client, message: &[u8]) -> Result<(), Error> {
    let flags = SendFlags { signaled: true, ..SendFlags::default() };
    let data = Data::Inline(message.to_vec());
    let request = SendRequest { wr_id: 0, op: SendOp::Send, flags, data, ud: None, xrc_srqn: 0 };
    client.qp().post(vec![request]).await
}

/// How long a reply is waited for that should not come.
const MOMENT: Duration = Duration::from_millis(20);

/// What a message is answered with: a reply's bytes, or why there is none for so long.
async fn ask(rdma: &Rdma, client: &Client, message: &[u8], wait: Duration) -> Result<Vec<u8>, String> {
    let text = |error: Error| error.to_string();
    post(client, message).await.map_err(text)?;
    let cq = client.qp().send_cq().clone();
    let deadline = rdma.now().await.map_err(text)? + adverb_rdma::Duration::from_ms(wait.as_millis() as u64);
    loop {
        for completion in cq.poll(16).await.map_err(text)? {
            if completion.status != Status::Success {
                return Err(format!("{:?}", completion.status));
            }
            if completion.op == CompletionOp::RecvWriteImm {
                let len = (completion.byte_len as usize).min(client.buffer().len() as usize);
                return client.buffer().read(0, len).await.map_err(text);
            }
        }
        if rdma.until(&[On::Cq(&cq)], Some(deadline)).await.map_err(text)?.is_none() {
            return Err("no reply".to_owned());
        }
    }
}

/// Places and keys that stand in the WQEs of another process's chains.
fn keys_of(pid: u32) -> Vec<Remote> {
    const READ: u8 = 0x10;
    const ATOMICS: [u8; 2] = [0x11, 0x12];
    let mut found: BTreeMap<u32, u64> = BTreeMap::new();
    for queue in look(pid).unwrap() {
        let mut at = 0;
        while let Some(block) = queue.code.get(at..at + 64) {
            let word = |at: usize| u32::from_be_bytes(block[at..at + 4].try_into().unwrap());
            if block[3] == READ || ATOMICS.contains(&block[3]) {
                let address = u64::from(word(16)) << 32 | u64::from(word(20));
                found.entry(word(24)).or_insert(address);
            }
            let segments = usize::from(block[7] & 0x3f).max(1);
            at += segments.div_ceil(4) * 64;
        }
    }
    found.into_iter().map(|(rkey, addr)| Remote { addr, len: 8, rkey: Key(rkey) }).collect()
}

/// What a second client does, for ever.
async fn attack(rdma: &Rdma, what: &str, setup: &str, hull: u32) -> Result<(), String> {
    let mut tries = 0u64;
    let mut begun = |outcome: &dyn std::fmt::Display| {
        if tries == 0 {
            says(&format!("begun: {outcome}"));
        }
        tries += 1;
    };
    if what == "honest" || what == "flood" {
        let (mut client, _line) = connect(rdma, setup).await?;
        let sought = client.layout().sought(client.layout().hash(key(1).as_bytes()));
        let message = message(&sought, sought.buckets.map(|bucket| client.layout().bucket(bucket)));
        for n in 0.. {
            if what == "honest" {
                let got = client.get(key(n % KEYS).as_bytes()).await.map_err(|error| error.to_string())?;
                assert!(is_value(&got, &value(n % KEYS)), "{got:?}");
            } else {
                // No receive of its own is posted again: replies fall on each other in its own buffer.
                let _ = post(&client, &message).await;
                client.qp().send_cq().poll(64).await.map_err(|error| error.to_string())?;
            }
            begun(&what);
        }
    }
    let mut keys = Vec::new();
    // One that stays keeps its first connection.
    let (what, stays) = what.strip_suffix("-stay").map_or((what, false), |what| (what, true));
    for n in 0.. {
        let shape = Shape { slots: 8, reply_len: 1024 };
        let (client, _line) = connect_to(By::Chain, rdma, setup, shape).await?;
        let outcome = match what {
            "keys" => {
                if keys.is_empty() {
                    keys = keys_of(hull);
                    assert!(keys.len() >= 4, "{keys:?}");
                }
                let to = &keys[n / 3 % keys.len()];
                let (own, qp) = (client.buffer(), client.qp());
                let ended = match n % 3 {
                    0 => qp.read((own, 0), 8, (to, 0)).await,
                    1 => qp.write((own, 0), 8, (to, 0)).await,
                    _ => qp.compare_swap((to, 0), (0, 1), (own, 0)).await.map(drop),
                };
                let ended = format!("{ended:?}");
                assert!(ended.contains("RemoteAccess"), "{to:?}: {ended}");
                ended
            }
            "forged" => {
                let sought = Sought { fingerprint: FORGED, buckets: [0, 0] };
                let inside = client.layout().values + FORGED_AT;
                let told = ask(rdma, &client, &message(&sought, [inside, inside]), MOMENT).await;
                assert!(told.is_err(), "{told:?}");
                format!("{told:?}")
            }
            "length" => {
                let sought = client.layout().sought(client.layout().hash(b"long"));
                let buckets = sought.buckets.map(|bucket| client.layout().bucket(bucket));
                let told = ask(rdma, &client, &message(&sought, buckets), MOMENT).await;
                assert!(told.is_err(), "{told:?}");
                format!("{told:?}")
            }
            other => panic!("no such part: {other}"),
        };
        begun(&outcome);
        if stays {
            rdma.until(&[On::Stop], None).await.map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}

#[test]
#[ignore = "a process that the tests beside it start"]
fn part() {
    let words = std::env::var(PART).expect("started by a test");
    let words: Vec<&str> = words.split(' ').collect();
    let [what, setup, hull, host] = words[..] else { panic!("{words:?}") };
    let (programs, rdma) = open(host.parse().unwrap());
    let hull = hull.parse().unwrap();
    match what {
        "hull" => programs.block_on(hull_with_endless_programs(&rdma)),
        "endless" => programs.block_on(start_endless(&rdma, setup)),
        _ => programs.block_on(attack(&rdma, what, setup, hull)).unwrap(),
    }
}

/// A hull like that of `serve`, in whose NIC a second client may also start a program that never ends: one
/// after the other, each until its control line says `stop`.
async fn hull_with_endless_programs(rdma: &Rdma) {
    let (buckets, values_len) = (1024, 4 << 20);
    let index = rdma.create_file(buckets * BUCKET_LEN).await.unwrap();
    let values = rdma.create_file(values_len).await.unwrap();
    let files = Files::Apart { index: &index, values: &values };
    let limits = Limits { clients: 100, slots: 64, mbps: 0, memory: 1 << 20, audit: None, one_sided: false };
    let told = "127.0.0.1:1".to_owned();
    let mut hull = Hull::open(rdma, files, (buckets, values_len), 7, told, limits).await.unwrap();
    let layout = *hull.layout();
    let map = |file: &File, len: u64| Mapping::of_number(file.number(), len as usize).unwrap();
    let (index, values) = (map(&index, layout.index_len()), map(&values, values_len));
    let (mut table, _) = Table::open(layout, index.words(), values.words(), 1).unwrap();
    for n in 0..KEYS {
        let item = Item { flags: 0, ends_s: 0, data: value(n).as_bytes() }.to_value();
        table.set(key(n).as_bytes(), &item).unwrap();
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    says(&format!("begun: {}", listener.local_addr().unwrap()));
    let (mut lines, mut endless) = (Vec::new(), None);
    for stream in listener.incoming().map_while(Result::ok) {
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).unwrap();
        match line.trim() {
            "endless" => {
                let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
                let file = parse("program p(x: u48) {\nvar n: u48\nloop recycle { n += x }\n}").unwrap();
                let compiled = compile(&file, Options::default()).unwrap();
                writeln!(&stream, "{free}").unwrap();
                let served = adverb_redn::run::serve(rdma, &free.to_string(), compiled).await.unwrap();
                for queue in 0..served.loaded.chain().queues.len() as u16 {
                    let limit = RateLimit { kbps: ENDLESS_KBPS, ..RateLimit::default() };
                    served.loaded.qp(QueueId(queue)).limit_rate(limit).await.unwrap();
                }
                endless = Some(served);
            }
            "stop" => {
                // It was under way until now.
                let stopped = endless.take().map(|served: Served| served.loaded);
                let next = async |loaded: &Loaded, queue: u16| loaded.qp(QueueId(queue)).live().await;
                let mut blocks = 0;
                if let Some(loaded) = stopped {
                    for queue in 0..loaded.chain().queues.len() as u16 {
                        blocks += next(&loaded, queue).await.unwrap().next;
                    }
                }
                writeln!(&stream, "{blocks}").unwrap();
            }
            line => {
                let Ok(Line::Connect(offer)) = Line::parse(line) else { panic!("{line}") };
                writeln!(&stream, "{}", hull.connect(&offer).await.unwrap()).unwrap();
            }
        }
        lines.push(stream);
    }
}

/// One line to such a hull, and its answer.
fn tell(setup: &str, word: &str) -> String {
    let stream = TcpStream::connect(setup).unwrap();
    writeln!(&stream, "{word}").unwrap();
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line).unwrap();
    line.trim().to_owned()
}

/// Starts a program that never ends, and stays connected with it.
async fn start_endless(rdma: &Rdma, setup: &str) {
    let name = tell(setup, "endless");
    let limit = adverb_rdma::Duration::from_ms(10_000);
    let client = adverb_redn::run::connect(rdma, &name, limit).await.unwrap();
    client.ask(&1u64.to_be_bytes()[2..]).await.unwrap();
    says("begun: it goes round");
    rdma.until(&[On::Stop], None).await.unwrap();
}

/// A second client that has begun.
struct Second {
    child: Child,
    /// How its first try ended.
    outcome: String,
}

/// Where a second client connects, and the process that has the NIC there.
struct Target {
    setup: String,
    pid: u32,
}

impl Second {
    fn start(what: &str, to: &Target, host: u8) -> Second {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["attacks::part", "--exact", "--ignored", "--nocapture"]);
        command.env(PART, format!("{what} {} {} {host}", to.setup, to.pid));
        command.env(SERIES, std::process::id().to_string());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let said = lines.find_map(|line| Some(line.split_once(&format!("{SAYS}begun: "))?.1.to_owned()));
        let Some(outcome) = said else {
            let mut why = String::new();
            child.stderr.take().unwrap().read_to_string(&mut why).unwrap();
            panic!("{what} did not begin: {why}");
        };
        Second { child, outcome }
    }

    /// Ends it, which must not have ended before.
    fn end(mut self, what: &str) {
        if let Some(status) = self.child.try_wait().unwrap() {
            let mut why = String::new();
            self.child.stderr.take().unwrap().read_to_string(&mut why).unwrap();
            panic!("{what}: {status}: {why}");
        }
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Gets of the first client in a span, all of which are right.
async fn gets(client: &mut Client) -> u64 {
    let (begin, mut n) = (now(), 0u64);
    while now() - begin < SPAN {
        let at = n * 7919 % (KEYS + KEYS / 4);
        let got = client.get(key(at).as_bytes()).await.unwrap();
        match at < KEYS {
            true => assert!(is_value(&got, &value(at)), "key{at}: {got:?}"),
            false => assert_eq!(got, Got::Missing),
        }
        n += 1;
    }
    n
}

fn median(mut ratios: Vec<f64>) -> f64 {
    ratios.sort_by(f64::total_cmp);
    ratios[ratios.len() / 2]
}

fn rates_are_judged() -> bool {
    std::env::var_os(JUDGED).is_some()
}

/// Rounds beside an honest second client and beside an attack take turns, and the first client's gets go on
/// in each; the median of the ratios of their rates, and how an attack's first try ended. Where rates are
/// judged, an attack is one whose interval lies below the bound: after the last round it is the upper end of
/// the median's (ranks 8 to 18 of 25, 95%).
async fn rounds(
    (what, to, host): (&str, &Target, u8),
    client: &mut Client,
    after: impl Fn(),
) -> (f64, String) {
    let (mut ratios, mut outcome) = (Vec::new(), String::new());
    gets(client).await;
    let more =
        |ratios: &[f64]| rates_are_judged() && ratios.len() < ROUNDS_MAX && median(ratios.to_vec()) < LEFT;
    while ratios.len() < ROUNDS || more(&ratios) {
        let mut rates = [0.0; 2];
        for (rate, what) in rates.iter_mut().zip(["honest", what]) {
            let second = Second::start(what, to, host);
            *rate = gets(client).await as f64;
            assert!(*rate > 0.0, "no get beside {what}");
            outcome = second.outcome.clone();
            second.end(what);
            after();
        }
        ratios.push(rates[1] / rates[0]);
    }
    assert_eq!((client.counters.timeouts, client.counters.fallbacks), (0, 0));
    ratios.sort_by(f64::total_cmp);
    let rank = if ratios.len() < ROUNDS_MAX { ratios.len() / 2 } else { 17 };
    if rates_are_judged() {
        assert!(ratios[rank] >= LEFT, "{what}: {ratios:.2?}");
    }
    (ratios[rank], outcome)
}

/// The same beside a hull of its own; and what that has counted.
fn beside(what: &str, host: u8) -> (f64, BTreeMap<String, u64>, String) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let server = table(host, &[]);
    let (programs, rdma) = open(host + 1);
    let (ratio, outcome) = programs.block_on(async {
        let (mut client, _line) = connect(&rdma, &server.setup).await.unwrap();
        if what == "forged" {
            server.set("forged", bucket(client.layout().values, 64));
        }
        let to = Target { setup: server.setup.clone(), pid: server.hull.id() };
        rounds((what, &to, host + 2), &mut client, || ()).await
    });
    wait_for("second clients have gone", || server.counters()["clients"] <= 1);
    (ratio, server.counters(), outcome)
}

#[test]
fn right_keys_give_a_client_nothing() {
    let (ratio, counters, outcome) = beside("keys", 50);
    println!("right keys: {ratio:.2} of the rate beside an honest client; {counters:?}; {outcome}");
    // Each try costs it a connection.
    assert!(counters["failed"] >= ROUNDS as u64, "{counters:?}");
}

#[test]
fn a_forged_bucket_gives_a_client_nothing() {
    let (ratio, counters, outcome) = beside("forged", 60);
    println!("forged bucket: {ratio:.2} of the rate beside an honest client; {counters:?}; {outcome}");
    assert!(counters["failed"] >= ROUNDS as u64, "{counters:?}");
}

#[test]
fn a_value_longer_than_its_buffer_harms_the_client_alone() {
    let (ratio, counters, outcome) = beside("length", 70);
    println!("long value: {ratio:.2} of the rate beside an honest client; {counters:?}; {outcome}");
    assert!(counters["failed"] >= ROUNDS as u64, "{counters:?}");
}

#[test]
fn a_flood_of_messages_holds_up_nobody_else() {
    let (ratio, counters, outcome) = beside("flood", 80);
    println!("flood: {ratio:.2} of the rate beside an honest client; {counters:?}; {outcome}");
    assert!(counters["not_ready"] > 0, "{counters:?}");
}

#[test]
fn a_program_that_never_ends_leaves_others_their_rate() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // The part that has the NIC: it is not `serve`, which lets no client start a program.
    let hull = Second::start("hull", &Target { setup: "-".to_owned(), pid: 0 }, 90);
    let to = Target { setup: hull.outcome.clone(), pid: 0 };
    let (programs, rdma) = open(91);
    let blocks = std::cell::Cell::new(0u64);
    let (ratio, _) = programs.block_on(async {
        let (mut client, _line) = connect(&rdma, &to.setup).await.unwrap();
        let after = || blocks.set(blocks.get() + tell(&to.setup, "stop").parse::<u64>().unwrap());
        rounds(("endless", &to, 92), &mut client, after).await
    });
    println!("endless: {ratio:.2} of the rate beside an honest client; {} blocks executed", blocks.get());
    assert!(blocks.get() > 1000, "{}", blocks.get());
    hull.end("hull");
}

/// Index and values in one region, as the paper has them: a bucket inside a value is believed, and gives the
/// one who stored it another one's place in the index. In two regions it gives nothing.
#[test]
fn a_forged_bucket_is_believed_in_the_papers_layout_only() {
    for (host, words, hole) in [(100, &["--paper-layout"][..], true), (110, &[], false)] {
        let server = table(host, words);
        let (programs, rdma) = open(host + 1);
        programs.block_on(async {
            let (mut first, _line) = connect(&rdma, &server.setup).await.unwrap();
            assert!(is_value(&first.get(key(7).as_bytes()).await.unwrap(), &value(7)));
            // What nobody may have: the words that stand in the first client's bucket.
            let layout = *first.layout();
            let own = layout.sought(layout.hash(key(7).as_bytes()));
            let (programs, rdma) = open(host + 2);
            programs.block_on(async {
                let mut found = Vec::new();
                for at in own.buckets.map(|own| layout.bucket(own)) {
                    server.set("forged", bucket(at, 16));
                    // Where that was put: the log goes on, 64 bytes a record.
                    for record in 0..KEYS * 8 {
                        let (second, _line) = connect(&rdma, &server.setup).await.unwrap();
                        let inside = layout.values + record * 64 + FORGED_AT;
                        let sought = Sought { fingerprint: FORGED, buckets: [0, 0] };
                        // In the paper's layout each message has a reply, however busy the host is.
                        let wait = if hole { PATIENCE } else { MOMENT };
                        match ask(&rdma, &second, &message(&sought, [inside, inside]), wait).await {
                            Ok(reply) if reply.len() == 16 => {
                                found.push(reply);
                                break;
                            }
                            // A miss: no forged bucket stands there.
                            Ok(reply) => assert_eq!(reply.len(), 1),
                            // Not even a miss, wherever it stands.
                            Err(_) => break,
                        }
                    }
                }
                let its = tag(own.fingerprint).to_ne_bytes();
                assert_eq!(found.iter().any(|reply| reply[..8] == its), hole, "{found:x?}");
                assert_eq!(found.len(), if hole { 2 } else { 0 });
            });
            // Who did nothing wrong goes on.
            assert!(is_value(&first.get(key(7).as_bytes()).await.unwrap(), &value(7)));
        });
        assert_eq!(server.counters()["failed"] > 0, !hole);
    }
}

/// An audit sees each completion of each chain, names who misbehaves, and ends his connection.
#[test]
fn an_audit_names_who_misbehaves_and_ends_his_connection() {
    let server = table(120, &["--audit", "--early", "100"]);
    let (programs, rdma) = open(121);
    let to = Target { setup: server.setup.clone(), pid: server.hull.id() };
    programs.block_on(async {
        let (mut client, _line) = connect(&rdma, &server.setup).await.unwrap();
        server.set("forged", bucket(client.layout().values, 64));
        assert!(is_value(&client.get(key(1).as_bytes()).await.unwrap(), &value(1)));
        // Of 8 slots: 10 that replies count from, one that enables receives, two that wake the ring that
        // looks; its six WQEs up to the WAIT for the next message, nine of the first slot that acts, the
        // message and the reply.
        wait_for("all are seen", || server.counters()["client_1_audited"] == 10 + 1 + 2 + 6 + 9 + 1 + 1);
        for (what, why) in [
            ("keys", "the NIC has refused a request of its own"),
            ("forged", "queue look of its chain failed: the NIC has refused what it asked for"),
            ("length", "queue reply of its chain failed: RemoteAccess"),
            ("flood", "messages at once came before their turn"),
        ] {
            let before = server.counters()["clients_ended"];
            let what = if what == "flood" { what.to_owned() } else { format!("{what}-stay") };
            let second = Second::start(&what, &to, 122);
            let address = address(122);
            wait_for(&what, || {
                let said = std::fs::read_to_string(&server.said).unwrap();
                said.lines().any(|line| {
                    line.starts_with("client ")
                        && line.contains(&format!(" at {address}: "))
                        && line.contains(&format!("{why}; its connection is ended"))
                })
            });
            assert!(server.counters()["clients_ended"] > before);
            second.end(&what);
            for n in 0..KEYS {
                assert!(is_value(&client.get(key(n).as_bytes()).await.unwrap(), &value(n)));
            }
        }
        assert_eq!(server.counters()["client_1_failed"], 0);
    });
}

/// A client may have so much memory for its chain, and no more.
#[test]
fn a_chain_takes_no_more_memory_than_a_client_may_have() {
    let server = Server::start(130, &["--client-memory", "100KB", "--slots", "256"]);
    let (programs, rdma) = open(131);
    programs.block_on(async {
        server.set("key", "value");
        let with = |slots| Shape { slots, reply_len: 4096 };
        let (mut client, _line) = connect_to(By::Chain, &rdma, &server.setup, with(16)).await.unwrap();
        assert!(is_value(&client.get(b"key").await.unwrap(), "value"));
        let why = connect_to(By::Chain, &rdma, &server.setup, with(64)).await.err().unwrap();
        assert!(why.starts_with("memory: a chain of these slots takes "), "{why}");
        assert!(why.ends_with(" at most"), "{why}");
        assert_eq!(server.counters()["clients_refused"], 1);
    });
}
