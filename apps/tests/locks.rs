//! Who has had a lock that others wanted stays away for a time that it draws, and nobody else does. In
//! virtual time, in which a program's own steps take none: what lies between a release and the next try is
//! that time, to the nanosecond.

use adverb_apps::locks::{Client, HomeConfig, serve};
use adverb_rdma::{Connect, Duration, Rdma};
use adverb_sim::program::{Doing, End, Mortal, Operation, Setup, Start};
use adverb_sim::{CableKind, Config, Sim, Topology};

const CLIENTS: u32 = 6;
/// Times that each client takes the lock that all want, and then one that it has for itself.
const SHARED: u32 = 400;
const OWN: u32 = 8;
const PS_PER_NS: u64 = 1000;

/// How far away the home is, and how long a lease lasts.
#[derive(Clone, Copy)]
struct Place {
    delay: Duration,
    lease: Duration,
}

/// A time with a lock, from the first try on.
struct Turn {
    /// When it began, and when the lock was given back.
    begun_ps: u64,
    ended_ps: u64,
    /// What the last try took that found the lock held by somebody else.
    refused_ns: Option<u64>,
}

/// What lies between a turn and the next one of a client, and what the first of the two has found.
struct Between {
    client: u32,
    away_ns: u64,
    refused_ns: Option<u64>,
}

fn home(lease: Duration) -> Start {
    let config = HomeConfig { locks: 1 + CLIENTS, value_max: 8, lease, ..HomeConfig::default() };
    let run = move |rdma: Rdma| async move { serve(&rdma, "locks", &config).await };
    Start::new("home", 0, run).serving().mortal(Mortal::Never)
}

fn client(number: u32) -> Start {
    let run = move |rdma: Rdma| async move {
        let failed = |error: adverb_apps::locks::LocksError| error.to_string();
        let opened = Client::open(&rdma, "locks", &Connect::default(), None).await;
        let client = opened.map_err(|error| error.to_string())?;
        for turn in 0..SHARED + OWN {
            let lock = if turn < SHARED { 0 } else { 1 + number };
            let held = client.acquire(lock, None).await.map_err(failed)?.expect("nobody asks it to end");
            assert!(held.release().await.map_err(failed)?);
        }
        Ok::<(), String>(())
    };
    Start::new(format!("client {number}"), 1, run).mortal(Mortal::Never)
}

/// A client's turns, in order.
fn turns(all: &[Operation], program: u32) -> Vec<Turn> {
    let (mut turns, mut open): (Vec<Turn>, Option<Turn>) = (Vec::new(), None);
    for operation in all.iter().filter(|operation| operation.program == program) {
        let Some((ended_ps, End::Results(results))) = &operation.ended else { panic!("{operation:?}") };
        let begun_ps = operation.begun_ps;
        let turn = open.get_or_insert(Turn { begun_ps, ended_ps: 0, refused_ns: None });
        match operation.name {
            "try" if results[0] != 0 && results[0] != operation.arguments[0] => {
                turn.refused_ns = Some((ended_ps - begun_ps) / PS_PER_NS);
            }
            "try" => {}
            "release" => {
                turn.ended_ps = *ended_ps;
                turns.extend(open.take());
            }
            other => panic!("{other}"),
        }
    }
    turns
}

fn run(seed: u64, place: Place) -> Vec<Between> {
    let cable = CableKind { rate: 100_000_000_000, delay: place.delay };
    let config = Config { payload: true, flow_bytes_max: 8, ..Config::new(Topology::two_hosts(cable)) };
    let programs = [home(place.lease)].into_iter().chain((0..CLIENTS).map(client)).collect();
    let mut sim = Sim::new(config).unwrap();
    sim.set_programs(Setup { programs, seed, ..Setup::default() });
    while !sim.programs_ended() && sim.run(u64::MAX, 100_000) {}
    for (name, doing, ..) in sim.programs().skip(1) {
        assert_eq!(doing, &Doing::Ended(Ok(())), "{name}");
    }
    let operations = sim.operations();
    let between = (0..CLIENTS).flat_map(|client| {
        let turns = turns(&operations, 1 + client);
        assert_eq!(turns.len() as u32, SHARED + OWN);
        let pairs = turns.windows(2).map(|pair| Between {
            client,
            away_ns: (pair[1].begun_ps - pair[0].ended_ps) / PS_PER_NS,
            refused_ns: pair[0].refused_ns,
        });
        pairs.collect::<Vec<_>>()
    });
    between.collect()
}

/// Where two tries are the bound of the time, and where an eighth of a lease is.
const PLACES: [Place; 2] = [
    Place { delay: Duration::from_us(1), lease: Duration::from_ms(1) },
    Place { delay: Duration::from_us(50), lease: Duration::from_us(800) },
];

#[test]
fn who_has_had_a_lock_that_others_wanted_stays_away_for_a_time_that_it_draws() {
    for (place, seed) in PLACES.into_iter().flat_map(|place| (1..=3).map(move |seed| (place, seed))) {
        let all = run(seed, place);
        let most = |refused_ns: u64| (2 * refused_ns).min(place.lease.as_ns() / 8);
        // By client: how many times were in each quarter of what there is to draw from.
        let mut quarters = [[0; 4]; CLIENTS as usize];
        for Between { client, away_ns, refused_ns } in &all {
            let Some(refused_ns) = refused_ns else { continue };
            let most = most(*refused_ns);
            assert!(*away_ns <= most, "away for {away_ns} of {most} ns, seed {seed}");
            quarters[*client as usize][(4 * away_ns / (most + 1)) as usize] += 1;
        }
        for (client, quarters) in quarters.into_iter().enumerate() {
            let drawn: u32 = quarters.into_iter().sum();
            assert!(drawn > SHARED / 5, "client {client} found the lock held in {drawn} turns, seed {seed}");
            // A quarter of them in each, give or take chance: never as few as a tenth.
            let fewest = quarters.into_iter().min().unwrap();
            assert!(10 * fewest >= drawn, "client {client}: {quarters:?}, seed {seed}");
        }
    }
}

#[test]
fn who_has_found_a_lock_free_does_not_wait_before_the_next_one() {
    for place in PLACES {
        let all = run(1, place);
        let free: Vec<u64> =
            all.iter().filter(|pair| pair.refused_ns.is_none()).map(|pair| pair.away_ns).collect();
        // Its own lock at least, which it finds free each time.
        assert!(free.len() as u32 >= CLIENTS * (OWN - 1));
        assert!(free.iter().all(|away_ns| *away_ns == 0), "{free:?}");
    }
}

#[test]
fn a_seed_draws_the_same_times_again_and_another_one_others() {
    let times = |seed| run(seed, PLACES[0]).iter().map(|pair| pair.away_ns).collect::<Vec<_>>();
    let first = times(1);
    assert_eq!(first, times(1));
    assert_ne!(first, times(2));
}
