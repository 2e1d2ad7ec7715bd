//! Replicas and clients on real sockets, on threads of this process. Processes that are killed:
//! `cli/tests/kv.rs`.
#![allow(clippy::disallowed_methods, reason = "tests of real time")]

#[path = "../../crates/grants/tests/trial/mod.rs"]
mod trial;

use adverb_apps::kv::{
    Bench, Client, ClientConfig, GetError, ReplicaInit, Server, ServerConfig, StoreConfig,
};
use adverb_grants::{Holder, Policy, write_trial_certificates};
use adverb_rma::{Rma, Settings};
use adverb_wire::Duration as Time;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use trial::{Folder, POLICY_OF_APP, address, identity};

struct House(Folder, u8);

impl House {
    fn new(number: u8) -> House {
        let folder = Folder::new(&format!("kv-{number}"));
        let addresses = [1, 2].map(|host| address(number, host)).to_vec();
        let holder = |name: &str| Holder { name: name.to_owned(), addresses: addresses.clone() };
        write_trial_certificates(&folder.0, &["kv", "app", "other"].map(holder)).unwrap();
        House(folder, number)
    }

    fn nic(&self, host: u8) -> Rma {
        Rma::open(Settings { state: Some(self.0.0.clone()), ..Settings::new(address(self.1, host)) }).unwrap()
    }

    fn replica(&self, host: u8, port: u16, store: StoreConfig) -> (Rma, Server) {
        let rma = self.nic(host);
        let listen = (rma.address(), port).into();
        let policy = Policy::parse(POLICY_OF_APP).unwrap();
        let config = ServerConfig { store, listen, identity: identity(&self.0.0, "kv"), policy };
        let server = Server::start(&rma, &config).unwrap();
        (rma, server)
    }

    fn client(&self, host: u8, who: &str, replicas: &[String]) -> Client {
        self.client_on(self.nic(host), who, replicas)
    }

    fn client_on(&self, nic: Rma, who: &str, replicas: &[String]) -> Client {
        let replica = |to: &String| ReplicaInit { to: to.clone(), name: None, ttl: Duration::from_secs(60) };
        let replicas = replicas.iter().map(replica).collect();
        let config = ClientConfig { replicas, identity: identity(&self.0.0, who), lookups: 32 };
        Client::open(Arc::new(nic), config).unwrap()
    }
}

/// Ends the other thread's loop, even when this one fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

fn get(client: &Client, key: &[u8]) -> Option<Vec<u8>> {
    client.rma().block_on(client.get(key)).unwrap()
}

#[test]
fn what_is_set_is_got_from_each_replica() {
    let house = House::new(1);
    let (one, two) =
        (house.replica(1, 0, StoreConfig::default()), house.replica(2, 0, StoreConfig::default()));
    let places = [one.1.address().to_string(), two.1.address().to_string()];
    let client = house.client(3, "app", &places);
    assert_eq!(get(&client, b"nothing"), None);
    for turn in 0..100u32 {
        let (key, value) = (format!("key {turn}"), vec![turn as u8; turn as usize * 600]);
        let stored = client.set(key.as_bytes(), &value).unwrap();
        assert_eq!((stored.replicas, stored.missing.len()), (2, 0));
        assert_eq!(get(&client, key.as_bytes()).unwrap(), value);
    }
    let seen: Vec<_> =
        client.replicas().map(|(_, up, counters)| (up, counters.hits > 20, counters.timeouts)).collect();
    assert_eq!(seen, [(true, true, 0), (true, true, 0)], "both serve");
    // The last of several sets counts, at both.
    for value in [&b"first"[..], b"second", b""] {
        client.set(b"again", value).unwrap();
    }
    for place in &places {
        let alone = house.client(if place == &places[0] { 4 } else { 5 }, "app", std::slice::from_ref(place));
        assert_eq!(get(&alone, b"again").unwrap(), b"");
        assert_eq!(get(&alone, b"key 7").unwrap(), vec![7; 4200]);
    }
    let long = client.set(&[0; 300], b"x").unwrap_err().to_string();
    assert!(long.contains("a key of 300 bytes: give 1 to 256"), "{long}");
    let large = client.set(b"k", &vec![0; 70_000]).unwrap_err().to_string();
    assert!(large.contains("a value of 70000 bytes: this cache takes at most 65536"), "{large}");
    assert!(matches!(client.rma().block_on(client.get(b"")), Err(GetError::Key(0))));
}

#[test]
fn who_may_not_learns_it_and_reads_nothing() {
    let house = House::new(2);
    let one = house.replica(1, 0, StoreConfig::default());
    let other = house.client(3, "other", &[one.1.address().to_string()]);
    let denied = other.set(b"k", b"v").unwrap_err().to_string();
    assert!(denied.contains("client `other` may not call the application"), "{denied}");
    let denied = other.rma().block_on(other.get(b"k")).unwrap_err().to_string();
    assert!(denied.contains("no replica answered") && denied.contains("may not"), "{denied}");
}

/// A log of a few records, set as fast as can be: lookups meet records that are being overwritten, and never
/// take one for a value.
#[test]
fn torn_reads_are_noticed_while_values_change() {
    let house = House::new(3);
    let store = StoreConfig { memory: 100_000, keys: 64, value_max: 40_000 };
    let one = house.replica(1, 0, store);
    let place = [one.1.address().to_string()];
    let (client, writer) = (house.client(3, "app", &place), house.client(4, "app", &place));
    let over = AtomicBool::new(false);
    let value = |turn: u64| {
        let mut random = fastrand::Rng::with_seed(turn);
        let mut bytes = vec![0; 8 + random.usize(..30_000)];
        random.fill(&mut bytes[8..]);
        bytes[..8].copy_from_slice(&turn.to_le_bytes());
        bytes
    };
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| {
            let mut sets = 0;
            while !over.load(Ordering::Acquire) {
                sets += 1;
                writer.set(&[sets as u8 % 3], &value(sets)).unwrap();
            }
            sets
        });
        let ending = Over(&over);
        let (start, mut seen) = (Instant::now(), 0);
        let torn = || client.replicas().next().unwrap().2.torn;
        while (torn() < 20 || seen < 200) && start.elapsed() < Duration::from_secs(30) {
            // Torn too often in a row is an honest answer, and takes the replica away from nobody.
            if let Ok(Some(bytes)) = client.rma().block_on(client.get(&[seen as u8 % 3])) {
                let turn = u64::from_le_bytes(bytes[..8].try_into().unwrap());
                assert_eq!(bytes, value(turn), "bytes of several values");
                seen += 1;
            }
        }
        drop(ending);
        let sets = writing.join().unwrap();
        assert!(torn() >= 20 && seen >= 200, "{} torn, {seen} seen, {sets} sets", torn());
    });
}

#[test]
fn two_clients_that_set_the_same_keys_leave_the_replicas_alike() {
    let house = House::new(4);
    let (one, two) =
        (house.replica(1, 0, StoreConfig::default()), house.replica(2, 0, StoreConfig::default()));
    let (one, two) = (one.1.address().to_string(), two.1.address().to_string());
    // In different orders, so that each replica assigns versions.
    let (a, b) = (
        house.client(3, "app", &[one.clone(), two.clone()]),
        house.client(4, "app", &[two.clone(), one.clone()]),
    );
    std::thread::scope(|scope| {
        for (client, name) in [(&a, "a"), (&b, "b")] {
            scope.spawn(move || {
                for turn in 0..300u32 {
                    client.set(&[turn as u8 % 5], format!("{name} {turn}").as_bytes()).unwrap();
                }
            });
        }
    });
    let (first, second) = (house.client(5, "app", &[one]), house.client(6, "app", &[two]));
    for key in 0..5 {
        assert_eq!(get(&first, &[key]), get(&second, &[key]), "key {key}");
        assert!(get(&first, &[key]).is_some());
    }
}

#[test]
fn a_replica_that_goes_is_left_and_one_that_comes_back_is_used() {
    let house = House::new(5);
    let (one, two) =
        (house.replica(1, 0, StoreConfig::default()), house.replica(2, 0, StoreConfig::default()));
    let places = [one.1.address().to_string(), two.1.address().to_string()];
    let client = house.client(3, "app", &places);
    let keys = 40u8;
    (0..keys).for_each(|key| drop(client.set(&[key], &[key; 100]).unwrap()));
    let port = two.1.address().port();
    drop(two);
    for key in 0..keys {
        assert_eq!(get(&client, &[key]).unwrap(), [key; 100], "the other replica has it");
    }
    let partly = client.set(b"new", b"value").unwrap();
    assert_eq!((partly.replicas, partly.missing.len(), &partly.missing[0].0), (1, 1, &places[1]));
    let two = house.replica(2, port, StoreConfig::default());
    let start = Instant::now();
    while client.replicas().any(|(_, up, _)| !up) {
        assert!(start.elapsed() < Duration::from_secs(20), "it is not taken back");
        assert_eq!(get(&client, b"new").unwrap(), b"value");
    }
    // It is empty; what it misses the other one has.
    for key in 0..keys {
        assert_eq!(get(&client, &[key]).unwrap(), [key; 100]);
    }
    assert!(client.replicas().all(|(_, _, counters)| counters.hits + counters.misses > 0));
    drop((one, two));
    let start = Instant::now();
    let gone = loop {
        match client.rma().block_on(client.get(b"new")) {
            Ok(found) => assert!(found.is_some() && start.elapsed() < Duration::from_secs(20)),
            Err(error) => break error.to_string(),
        }
    };
    assert!(
        gone.contains("no replica answered") && places.iter().all(|place| gone.contains(place)),
        "{gone}"
    );
    assert!(client.set(b"new", b"x").is_err());
}

#[test]
fn keys_that_rotate_under_load_cost_one_try_each() {
    let house = House::new(6);
    let one = house.replica(1, 0, StoreConfig::default());
    // A NIC that is patient with peers that wait for a processor.
    let mut settings = Settings { state: Some(house.0.0.clone()), ..Settings::new(address(6, 3)) };
    (settings.nic.timeout, settings.nic.dispatch_timeout) = (Time::from_ms(3000), Time::from_ms(1000));
    let nic = Rma::open(settings).unwrap();
    let client = house.client_on(nic, "app", &[one.1.address().to_string()]);
    let bench = Bench {
        time: Duration::from_millis(1500),
        depth: 8,
        rate: None,
        keys: 100,
        value_len: 1000,
        sets: 200,
        window: Duration::from_millis(100),
        seed: 1,
    };
    let over = AtomicBool::new(false);
    let mut windows = 0;
    let report = std::thread::scope(|scope| {
        let rotating = scope.spawn(|| {
            let mut rotations = 0u64;
            while !over.load(Ordering::Acquire) {
                let both = one.1.rotate().unwrap();
                assert!(both.iter().all(|rotation| (rotation.told, rotation.untold) == (1, 0)), "{both:?}");
                rotations += 2;
                std::thread::park_timeout(Duration::from_millis(50));
            }
            rotations
        });
        let ending = Over(&over);
        let report = bench.run(&client, || (), &mut |_| windows += 1).unwrap();
        drop(ending);
        let rotations = rotating.join().unwrap();
        let refused = report.all.replicas[0].refused;
        // At most what was under way.
        assert!(
            rotations >= 10 && refused <= rotations * bench.depth as u64,
            "{refused} refused, {rotations} rotations"
        );
        report
    });
    let Bench { depth, .. } = bench;
    assert_eq!(
        (report.all.wrong, report.all.misses, report.all.unavailable),
        (0, 0, 0),
        "{depth} at once: {:?}",
        report.all
    );
    let counters = report.all.replicas[0];
    assert_eq!((counters.timeouts, counters.nacks, counters.others, counters.suspected), (0, 0, 0, 0));
    assert!(windows >= 15 && report.sets > 50 && report.sets_failed == 0);
    assert_eq!(report.all.latency.total(), counters.hits);
}
