//! A B-tree that chains walk while its writer inserts, removes and splits.

mod common;

use adverb_rdma::Duration;
use adverb_redn::btree::walk::{History, Plan, Tally, get_all, program, serve};
use common::{text, two_for_real, two_in_simulator};
use std::sync::{Arc, Mutex};

fn walked(plan: Plan, gets: u32, hardware: &str) -> (Tally, History) {
    let history: Arc<Mutex<History>> = Arc::default();
    let (for_server, for_client) = (history.clone(), history.clone());
    let tally = two_in_simulator(
        hardware,
        move |rdma, name| {
            let history = for_server.clone();
            async move { serve(rdma, name, plan, history).await.map_err(text) }
        },
        move |rdma, name| {
            let history = for_client.clone();
            async move { get_all(rdma, name, plan, (gets, history)).await.map_err(text) }
        },
    );
    let history = history.lock().unwrap().clone();
    (tally, history)
}

/// With nodes to spare each walk finds what the tree holds, or held while it walked.
#[test]
fn walks_beside_a_writer_find_the_right_value() {
    for (hardware, pace) in [("neutral", 20), ("connectx5 without processors", 500)] {
        let plan = Plan { keys: 96, spare: 200, pace: Duration::from_ns(pace), seed: 1, careless: false };
        let (tally, history) = walked(plan, 150, hardware);
        println!("{hardware}: {tally}; {} changes, {} splits", history.changes(), history.splits);
        assert_eq!(tally.wrong, Vec::<String>::new());
        assert_eq!(tally.called, 0, "{tally}");
        assert!(tally.found > 50 && tally.absent > 10, "{tally}");
        assert!(history.levels == 4 && history.splits > 30 && history.changes() > 500, "{history:?}");
    }
}

/// The same on real NICs, where the writer and the chains have processors of their own.
#[test]
fn walks_on_real_nics_find_the_right_value() {
    let plan = Plan { keys: 96, spare: 200, pace: Duration::from_ns(200), seed: 3, careless: false };
    let history: Arc<Mutex<History>> = Arc::default();
    let (for_server, for_client) = (history.clone(), history);
    let tally = two_for_real(
        20,
        move |rdma, name| {
            let history = for_server.clone();
            async move { serve(rdma, name, plan, history).await.map_err(text) }
        },
        move |rdma, name| {
            let history = for_client.clone();
            async move { get_all(rdma, name, plan, (60, history)).await.map_err(text) }
        },
    );
    assert_eq!(tally.wrong, Vec::<String>::new());
    assert!(tally.found > 20 && tally.absent > 3, "{tally}");
}

/// Nodes that are used again at once lead walks astray: they miss, and a call resolves it.
#[test]
fn a_walk_that_goes_astray_is_a_miss_that_a_call_resolves() {
    let plan = Plan { keys: 96, spare: 0, pace: Duration::from_ns(20), seed: 2, careless: false };
    let (tally, _) = walked(plan, 150, "connectx5 without processors");
    println!("no node to spare: {tally}");
    assert_eq!(tally.wrong, Vec::<String>::new());
    assert!(tally.called > 3 && tally.torn > 0 && tally.found > 40, "{tally}");
    // Who takes any record for its key's gets wrong values.
    let (tally, _) = walked(Plan { careless: true, ..plan }, 150, "connectx5 without processors");
    assert!(!tally.wrong.is_empty(), "{tally}");
}

#[test]
fn a_tree_of_four_levels_is_one_program() {
    let plan = Plan { keys: 96, spare: 0, pace: Duration::ZERO, seed: 0, careless: false };
    let compiled = program(plan.room(), plan.values()).unwrap();
    println!("{}; {} doorbell orders", compiled.counts, compiled.stages - 1);
    assert!(compiled.chain.queue_of(compiled.worker).wqes.len() < 250, "{}", compiled.counts);
}
