//! Bids between two simulated hosts: what the NIC replies, and what it keeps.

use adverb_sim::program::{Setup, Start};
use adverb_sim::{CableKind, Config, Sim, Topology};
use own_chain::{Judged, bid, judge, program};
use std::cell::RefCell;
use std::rc::Rc;

/// The best bid afterwards, and what the client was told.
fn sale(best: u64, price: u64, offer: u64) -> (u64, Option<Judged>) {
    let seen: Rc<RefCell<(Option<u64>, Option<Judged>)>> = Rc::default();
    let (kept, told) = (seen.clone(), seen.clone());
    let server = Start::new("server", 0, move |rdma| {
        let kept = kept.clone();
        async move {
            let best = judge(&rdma, "bids", best, price).await.map_err(|error| error.to_string())?;
            kept.borrow_mut().0 = Some(best);
            Ok::<(), String>(())
        }
    });
    let client = Start::new("client", 1, move |rdma| {
        let told = told.clone();
        async move {
            let judged = bid(&rdma, "bids", offer).await.map_err(|error| error.to_string())?;
            told.borrow_mut().1 = judged;
            Ok::<(), String>(())
        }
    });
    let cable = CableKind { rate: 100_000_000_000, delay: adverb_rdma::Duration::from_ns(110) };
    let config = Config { payload: true, flow_bytes_max: 8, ..Config::new(Topology::two_hosts(cable)) };
    let mut sim = Sim::new(config).unwrap();
    sim.set_programs(Setup { programs: vec![server, client], exchange_ps: 1_000_000, ..Setup::default() });
    sim.run(u64::MAX, u64::MAX);
    assert_eq!(sim.program_failures(), Vec::<String>::new());
    let (best, judged) = *seen.borrow();
    (best.expect("the server ended"), judged)
}

#[test]
fn the_nic_keeps_the_best_bid() {
    assert_eq!(sale(100, 500, 101), (101, Some(Judged::Best)));
    assert_eq!(sale(100, 500, 100), (100, Some(Judged::Below(100))));
    assert_eq!(sale(100, 500, 99), (100, Some(Judged::Below(100))));
    assert_eq!(sale(100, 500, 500), (500, Some(Judged::Sold)));
    assert_eq!(sale(100, 500, 1 << 40), (1 << 40, Some(Judged::Sold)));
}

#[test]
fn the_program_is_small() {
    let compiled = program(0, 0).unwrap();
    println!("{}", compiled.counts);
    assert!(compiled.chain.queue_of(compiled.worker).wqes.len() < 50, "{}", compiled.counts);
}
