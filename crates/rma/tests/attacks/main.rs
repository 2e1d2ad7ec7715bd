//! The paper's attacks (section 4.2) on real NICs and sockets: a process that guesses a RegionId or has a key
//! for something else, and a man in the middle who has seen every message, holds the next one, and sends what
//! he likes to either side: old messages, changed ones, invented ones. None reads or changes a byte, and each
//! is counted by name.
#![expect(clippy::disallowed_methods, reason = "tests of real time")]

#[path = "../common/mod.rs"]
mod common;
mod middle;
mod scene;
mod wire;

use adverb_nic::one_rma::derive;
use adverb_rma::nicd::NicdCounters;
use adverb_rma::{
    DerivedKey, DriverCounters, End, Grant, Memory, OneRmaCounters, Op, Outcome, RegionId, RegionKey, Rights,
    Rma, TransferError,
};
use adverb_wire::one_rma::{Body, Header, Piece, Request, Status, UDP_PORT};
use middle::*;
use scene::*;
use std::net::{IpAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use wire::*;

const OK: End = End::Outcome(Outcome::Ok);
const FAILED: End = End::Outcome(Outcome::RemoteAuthenticationFailure);
const OPS: [Op; 3] = [Op::Read, Op::Write, Op::Rekey];

fn place(op: Op) -> u64 {
    if op == Op::Write { WRITE_AT } else { 0 }
}

/// Every kind of message but the NACK: three operations that end well, one under a wrong key, one outside the
/// region. All have the same slot, and the same places as in every other session, but other bytes.
fn session(middle: &mut Middle, scene: &mut Scene, salt: u8, attack: Attack<'_>) {
    scene.refresh(salt);
    let grant = scene.grant.clone();
    for op in OPS {
        assert_eq!(middle.run(scene, op, &grant, place(op), attack), OK, "{op:?}");
    }
    let wrong = Grant::new(grant.target().into(), grant.region(), LEN as u64)
        .with_key(Op::Read, DerivedKey::new([1; 16]));
    assert_eq!(middle.run(scene, Op::Read, &wrong, 0, attack), FAILED);
    assert_eq!(middle.run(scene, Op::Read, &grant, 1 << 20, attack), FAILED);
}

/// Nothing is done to a message.
fn nothing(_: &mut Middle, _: &Scene, _: &Hold, _: (Side, &[u8])) {}

#[test]
fn a_flipped_bit_anywhere_in_any_message_does_nothing() {
    let mut scene = Scene::new("flips", 50);
    let Some(mut middle) = Middle::new(&scene) else { return };
    let mut flipped = 0;
    let mut flip = |middle: &mut Middle, scene: &Scene, hold: &Hold, (to, bytes): (Side, &[u8])| {
        let flips = (0..bytes.len() * 8).map(|bit| {
            let mut bytes = bytes.to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            (to, bytes)
        });
        // And cut anywhere, or longer.
        let cuts = (1..bytes.len()).map(|len| (to, bytes[..len].to_vec()));
        let longer = (to, [bytes, &[0]].concat());
        let flips: Vec<Aimed> = flips.chain(cuts).chain([longer]).collect();
        middle.attack(scene, hold, &flips);
        flipped += flips.len();
    };
    session(&mut middle, &mut scene, 1, &mut flip);
    // And when nobody waits for them any more.
    for (to, bytes) in middle.library.clone() {
        flip(&mut middle, &scene, &IDLE, (to, &bytes));
    }
    assert!(flipped > 10_000, "{flipped}");
}

/// Messages of everybody to everybody, shuffled.
fn shuffled(library: &[Aimed], rng: &mut fastrand::Rng) -> Vec<Aimed> {
    let mut order = library.to_vec();
    rng.shuffle(&mut order);
    order
}

#[test]
fn replays_in_any_order_at_once_and_after_a_restart_do_nothing() {
    // A target whose table is full answers with a NACK; an old write has filled it.
    let mut scene = Scene::with("replays", 51, &|nic| nic.inbound_ops = 1);
    let Some(mut middle) = Middle::new(&scene) else { return };
    session(&mut middle, &mut scene, 1, &mut nothing);
    let is_write = |bytes: &[u8]| {
        matches!(Header::parse(bytes), Ok(Header { body: Body::Request(Request { op: Op::Write, .. }), .. }))
    };
    let write = middle.library.iter().find(|(_, bytes)| is_write(bytes)).unwrap().clone();
    middle.attack(&scene, &IDLE, &[write]);
    let grant = scene.grant.clone();
    let nacked = middle.run(&mut scene, Op::Read, &grant, 0, &mut nothing);
    assert_eq!(nacked, End::Outcome(Outcome::Nack));

    let mut rng = fastrand::Rng::with_seed(1);
    let lives: [&[Side]; 4] =
        [&[Side::Owner], &[Side::User], &[Side::Owner, Side::User], &[Side::Owner, Side::User]];
    let mut salt = 2;
    for who in lives {
        scene.restart(who, &|_| {});
        middle.begin(&scene);
        // The same operations as in the life before, from the first message on. Before each message the
        // attacker puts all answers and data that there ever were, in their order and shuffled; then also the
        // requests, which draw more answers.
        for with_requests in [false, true] {
            let mut replay = |middle: &mut Middle, scene: &Scene, hold: &Hold, _: (Side, &[u8])| {
                let mut old = middle.library.clone();
                old.retain(|(_, bytes)| {
                    let request = matches!(Header::parse(bytes).unwrap().body, Body::Request(_));
                    with_requests || !request
                });
                middle.attack(scene, hold, &old);
                middle.attack(scene, hold, &shuffled(&old, &mut rng));
            };
            session(&mut middle, &mut scene, salt, &mut replay);
            salt += 1;
            middle.elicit(&scene);
        }
        // When nobody waits for anything.
        for _ in 0..5 {
            let old = shuffled(&middle.library, &mut rng);
            middle.attack(&scene, &IDLE, &old);
        }
    }
    // Each old write and rekey was solicited, as a NIC that keeps nothing of its peers must, and nothing came
    // of it.
    let solicited = middle.opened;
    assert!(solicited > 100, "{solicited}");
    eventually("solicitations end", || scene.count(Side::Owner, "solicitations_expired") == solicited);
    assert_eq!(scene.count(Side::Owner, "writes_landed"), 2, "those of the last life's two sessions");
    assert_eq!(scene.count(Side::Owner, "rekeys"), 2);
    scene.check("at the end");
}

/// A message with this header and a payload and a tag that are noise.
fn forged(body: Body, counter: u64, rng: &mut fastrand::Rng) -> Vec<u8> {
    let header = Header { counter, body };
    let mut bytes: Vec<u8> = (0..header.message_len()).map(|_| rng.u8(..)).collect();
    header.emit(&mut bytes);
    bytes
}

/// One of every kind, with names that are in use.
fn forgeries(scene: &Scene, (slot, ticket): (u32, u32), counter: u64, rng: &mut fastrand::Rng) -> Vec<Aimed> {
    let region = scene.grant.region().wire();
    let whole = |len: usize| Piece { offset: 0, len: len as u16 };
    let request = |op| {
        let len = match op {
            Op::Read => READ,
            Op::Write => WRITE,
            Op::Rekey => 16,
        } as u16;
        Body::Request(Request { op, class: 0, slot, pid: std::process::id(), region, offset: 0, len })
    };
    let bodies = [
        (Side::Owner, request(Op::Read)),
        (Side::Owner, request(Op::Write)),
        (Side::Owner, request(Op::Rekey)),
        (Side::Owner, Body::WriteData { ticket, piece: whole(WRITE) }),
        (Side::Owner, Body::WriteData { ticket, piece: whole(16) }),
        (Side::User, Body::ReadResponse { slot, piece: whole(READ) }),
        (Side::User, Body::Solicitation { slot, ticket, open_ns: 1_000_000 }),
        (Side::User, Body::Completion { slot, status: Status::Ok }),
        (Side::User, Body::Completion { slot, status: Status::Refused }),
        (Side::User, Body::Nack { slot }),
        (Side::User, Body::AuthenticationFailure { slot }),
    ];
    bodies.into_iter().map(|(to, body)| (to, forged(body, counter, rng))).collect()
}

#[test]
fn invented_messages_of_every_kind_do_nothing_at_any_moment() {
    let mut scene = Scene::new("invented", 52);
    let Some(mut middle) = Middle::new(&scene) else { return };
    let mut rng = fastrand::Rng::with_seed(2);
    let mut invent = |middle: &mut Middle, scene: &Scene, hold: &Hold, (_, next): (Side, &[u8])| {
        let counter = Header::parse(next).unwrap().counter;
        for near in 0..4 {
            let names = (0, hold.ticket.unwrap_or(1 << 16));
            middle.attack(scene, hold, &forgeries(scene, names, counter + near, &mut rng));
        }
    };
    session(&mut middle, &mut scene, 1, &mut invent);
}

/// Ends the other thread's loop, even when this one fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Reads and writes without a pause, right next to one another, until it is over. How many.
fn load(scene: &Scene, over: &AtomicBool) -> u64 {
    let (owner, user) = (scene.owner(), scene.user());
    let mut rounds = 0;
    while !over.load(Ordering::Acquire) {
        rounds += 1;
        let mark = rounds as u8;
        owner.far.write(0, &[mark; READ]);
        user.rma.block_on(user.rma.read(&scene.grant, 0, &user.near, SINK..SINK + READ)).unwrap();
        assert_eq!(user.near.to_vec(SINK..SINK + READ), [mark; READ]);
        user.near.write(SOURCE, &[!mark; WRITE]);
        let write = user.rma.write(&scene.grant, WRITE_AT, &user.near, SOURCE..SOURCE + WRITE);
        user.rma.block_on(write).unwrap();
        let at = WRITE_AT as usize;
        assert_eq!(owner.far.to_vec(at..at + WRITE), [!mark; WRITE]);
    }
    rounds
}

/// Nothing is held here: the messages fall where they fall. Each kind's sum is exact, for nothing else is
/// dropped or refused.
#[test]
fn invented_messages_under_load_do_nothing() {
    // What a socket of a starved process has no room for is counted by nobody.
    assert!((0..3).any(|_| are_refused_under_load()), "not all were counted, three times");
}

/// False if the network has lost some of them.
fn are_refused_under_load() -> bool {
    let mut scene = Scene::new("load", 53);
    scene.refresh(1);
    let (to_owner, to_user) = [2, 1].map(|from| UdpSocket::bind((scene.address(from), 0)).unwrap()).into();
    let hosts = [scene.address(1), scene.address(2)];
    let over = AtomicBool::new(false);
    let sum = |side, names: &[&str]| names.iter().map(|name| scene.count(side, name)).sum::<u64>();
    let drops = ["drop_unexpected", "drop_unauthentic", "drop_late_refusal"];
    let refused = |side| sum(side, &["requests_unauthentic"]) + sum(side, &drops);
    let (mut requests, mut data, mut answers) = (0, 0, 0);
    let mut rng = fastrand::Rng::with_seed(3);
    let all_came = std::thread::scope(|scope| {
        let load = scope.spawn(|| load(&scene, &over));
        let ending = Over(&over);
        // Until every refusal by name has been seen that takes an operation under way.
        let start = std::time::Instant::now();
        while start.elapsed() < std::time::Duration::from_secs(20)
            && (requests < 3000 || drops.iter().any(|name| sum(Side::User, &[name]) == 0))
        {
            assert!(!load.is_finished(), "the load goes on");
            let before = [Side::Owner, Side::User].map(refused);
            let mut sent = [0; 2];
            for (to, bytes) in forgeries(&scene, (0, rng.u32(1..9) << 16), rng.u64(..), &mut rng) {
                let socket: &UdpSocket = if to == Side::Owner { &to_owner } else { &to_user };
                socket.send_to(&bytes, (hosts[to as usize], UDP_PORT)).unwrap();
                sent[to as usize] += 1;
            }
            (requests, data, answers) = (requests + 3, data + sent[0] - 3, answers + sent[1]);
            // A request that is refused draws a notice, which the user refuses.
            let are_counted = || {
                refused(Side::Owner) == before[0] + sent[0] && refused(Side::User) == before[1] + sent[1] + 3
            };
            if !comes_about(are_counted) {
                drop(ending);
                let _ = load.join();
                return false;
            }
        }
        drop(ending);
        let rounds = load.join().unwrap();
        assert_eq!(sum(Side::User, &["ops_ok"]), 2 * rounds);
        assert_eq!(sum(Side::Owner, &["writes_landed", "reads_served"]), 2 * rounds);
        true
    });
    if !all_came {
        return false;
    }
    assert_eq!(sum(Side::Owner, &["requests_unauthentic"]), requests);
    assert_eq!(sum(Side::Owner, &["drop_unexpected", "drop_unauthentic"]), data);
    assert_eq!(sum(Side::User, &drops), answers + requests);
    let each = drops.map(|name| sum(Side::User, &[name]));
    assert!(each.iter().all(|n| *n > 0), "{each:?}");
    let (owner, user) = (scene.owner(), scene.user());
    let changed = WRITE_AT as usize + WRITE;
    assert_eq!(owner.far.to_vec(changed..LEN), scene.far[changed..]);
    assert_eq!(user.near.to_vec(SINK + READ..SOURCE), scene.near[SINK + READ..SOURCE]);
    true
}

/// Runs an operation of a user, or of a thief, as it stands in the grant.
fn try_it(rma: &Rma, near: &Memory, op: Op, grant: &Grant) -> End {
    let result = rma.block_on(match op {
        Op::Read => rma.read(grant, 0, near, SINK..SINK + READ),
        Op::Write => rma.write(grant, WRITE_AT, near, SOURCE..SOURCE + WRITE),
        Op::Rekey => rma.rekey(grant, &RegionKey::new([9; 16])),
    });
    match result {
        Ok(report) => report.end,
        Err(TransferError::Ended(report)) => report.end,
        Err(error) => panic!("{error}"),
    }
}

/// A grant with one key, which may be for something else.
fn grant_with(target: IpAddr, region: RegionId, op: Op, key: &DerivedKey) -> Grant {
    Grant::new(target.into(), region, u64::MAX).with_key(op, key.clone())
}

#[test]
fn guessed_regions_and_keys_for_something_else_open_nothing() {
    let mut scene = Scene::new("keys", 54);
    scene.refresh(1);
    let (folder, pid) = (common::Folder::new("thief"), std::process::id());
    let open = |host| Rma::open(common::patient(common::settings(&folder, 54, host))).unwrap();
    let (thief, second) = (open(3), open(4));
    let loot = thief.allocate(LEN).unwrap();
    let (owner, user) = (scene.owner(), scene.user());
    let (right, name) = (&scene.grant, scene.grant.region());
    // Another region of the same owner and a replica elsewhere, both under the same K_r.
    let beside = owner.far.register_with_key(0..LEN, Rights::all(), RegionKey::new(KEY)).unwrap();
    let memory = second.allocate(LEN).unwrap();
    let replica = memory.register_with_key(0..LEN, Rights::all(), RegionKey::new(KEY)).unwrap();
    assert_eq!(replica.id(), name);
    let mut refused = 0;
    for op in OPS {
        let others = [
            ("another process's", &owner.region, user.rma.address(), pid + 1),
            ("another host's", &owner.region, scene.address(3), pid),
            ("another region's", &beside, user.rma.address(), pid),
            ("another target's", &replica, user.rma.address(), pid),
        ];
        let mut keys: Vec<_> = others
            .map(|(whose, region, peer, pid)| (whose, region.grant(peer, pid, Rights::all()).unwrap(), op))
            .into();
        let wrong = OPS.into_iter().filter(|wrong| *wrong != op);
        keys.extend(wrong.map(|wrong| ("another operation's", right.clone(), wrong)));
        for (whose, of, made_for) in keys {
            let grant = grant_with(right.target(), name, op, of.key(made_for).unwrap());
            assert_eq!(try_it(&user.rma, &user.near, op, &grant), FAILED, "{op:?} with {whose} key");
            refused += 1;
            assert_eq!(scene.count(Side::Owner, "requests_unauthentic"), refused, "{op:?}, {whose}");
        }
        // The thief, at another address, with the user's own grant.
        assert_eq!(try_it(&thief, &loot, op, right), FAILED);
        refused += 1;
        assert_eq!(scene.count(Side::Owner, "requests_unauthentic"), refused, "{op:?} of a thief");
    }
    let mut unknown = 0;
    for guess in (0..40u32).chain([0xffff]).flat_map(|index| (0..3u32).map(move |round| round << 16 | index))
    {
        if guess == name.wire() {
            continue;
        }
        let key = right.key(Op::Read).unwrap();
        let guessed = grant_with(right.target(), RegionId::from_wire(guess), Op::Read, key);
        assert_eq!(try_it(&user.rma, &user.near, Op::Read, &guessed), FAILED, "region {guess:#x}");
        let known = guess >> 16 == name.wire() >> 16 && guess <= beside.id().wire();
        *if known { &mut refused } else { &mut unknown } += 1;
    }
    assert_eq!(scene.count(Side::Owner, "requests_unknown_region"), unknown);
    assert_eq!(scene.count(Side::Owner, "requests_unauthentic"), refused);
    assert_eq!(scene.count(Side::Owner, "requests"), 0, "none was taken for one");
    scene.check("after all");
    assert_eq!(loot.to_vec(0..LEN), [0; LEN], "the thief has read nothing");
    // The right one opens, for all three.
    for op in OPS {
        let read = try_it(&user.rma, &user.near, op, right);
        assert_eq!(read, OK, "{op:?}");
    }
}

/// Even somebody who has the region's own key gets no further than the region: here the middle of a memory,
/// for reading.
#[test]
fn a_right_key_reaches_no_further_than_its_region() {
    let mut scene = Scene::new("reach", 55);
    scene.refresh(1);
    let (owner, user) = (scene.owner(), scene.user());
    let region = owner.far.register_with_key(1024..2048, Rights::READ, RegionKey::new(KEY)).unwrap();
    let target = owner.rma.address();
    let grant = |op| {
        let (pid, initiator) = (user.rma.pid(), user.rma.address().into());
        let key = derive(&RegionKey::new(KEY), target.into(), region.id().wire(), initiator, pid, op);
        grant_with(target, region.id(), op, &key)
    };
    for op in [Op::Write, Op::Rekey] {
        assert_eq!(try_it(&user.rma, &user.near, op, &grant(op)), FAILED, "{op:?}");
    }
    assert_eq!(scene.count(Side::Owner, "requests_without_right"), 2);
    let (read, inside) = (grant(Op::Read), 1024 - READ as u64);
    let outside = [inside + 1, 1023, 1024, 2048, 3072, 1 << 32, u64::MAX / 2];
    for at in outside {
        let read = user.rma.read(&read, at, &user.near, SINK..SINK + READ);
        let Err(TransferError::Ended(report)) = user.rma.block_on(read) else { panic!("read at {at}") };
        assert_eq!(report.end, FAILED, "read at {at}");
    }
    assert_eq!(scene.count(Side::Owner, "requests_out_of_bounds"), outside.len() as u64);
    assert_eq!(scene.count(Side::Owner, "requests"), 2 + outside.len() as u64, "each had the right key");
    scene.check("after all");
    user.rma.block_on(user.rma.read(&read, inside, &user.near, SINK..SINK + READ)).unwrap();
    assert_eq!(user.near.to_vec(SINK..SINK + READ), scene.far[2048 - READ..2048]);
}

/// Text of all tests in a folder.
fn sources(folder: &Path) -> String {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let text = |path: PathBuf| match path.is_dir() {
        true => sources(&path),
        // Tests beside the code are indented.
        false => std::fs::read_to_string(path).unwrap().replace("\n    ", "\n"),
    };
    entries.map(text).collect()
}

#[test]
fn the_table_of_attacks_names_counters_and_tests_that_there_are() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let table = std::fs::read_to_string(root.join("docs/1rma-attacks.md")).unwrap();
    let places =
        ["crates/rma/tests", "crates/rma/src", "crates/nic/tests", "crates/grants/tests", "crates/tls/src"];
    let tests: String = places.iter().map(|place| sources(&root.join(place))).collect();
    let (nic, driver, daemon) =
        (OneRmaCounters::default(), DriverCounters::default(), NicdCounters::default());
    let counters: Vec<&str> =
        nic.iter().chain(driver.iter()).chain(daemon.iter()).map(|(name, _)| name).collect();
    let quoted =
        |cell: &str| -> Vec<String> { cell.split('`').skip(1).step_by(2).map(str::to_owned).collect() };
    let (mut named, mut rows) = (Vec::new(), 0);
    for row in table.lines().filter(|line| line.starts_with("| ")).skip(1) {
        let cells: Vec<&str> = row.split(" | ").collect();
        let [_, _, counted, shown_by] = cells[..] else { panic!("{row}") };
        for test in quoted(shown_by) {
            assert!(tests.contains(&format!("#[test]\nfn {test}()")), "no test {test}");
        }
        named.extend(quoted(counted));
        rows += 1;
    }
    assert!(rows > 15, "{rows}");
    for name in &named {
        assert!(counters.contains(&name.as_str()), "no counter {name}");
    }
    // And every refusal of a message stands in it.
    let told = |name: &&&str| ["parse_", "drop_", "requests_"].iter().any(|start| name.starts_with(start));
    // These are not about what came: memory or counters of the NIC's own that are gone, answers left unsaid.
    let own = ["drop_local_region", "drop_answer", "drop_counter"];
    for name in counters.iter().filter(told).filter(|name| !own.contains(name)) {
        assert!(named.iter().any(|known| known == name), "{name} is missing");
    }
}
