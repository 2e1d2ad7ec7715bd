//! `adverb redn tree`: chains that walk a B-tree, beside the program that changes it.

use super::{on_two_nics, two_hosts};
use crate::error::Error;
use crate::output::print;
use adverb_rdma::Duration;
use adverb_redn::btree::walk::{History, Plan, Tally, get_all, locked, program, serve};
use adverb_sim::program::{Doing, Setup, Start};
use clap::Args;
use std::cell::RefCell;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

/// How a tree is walked.
#[derive(Args, Debug)]
pub struct Tree {
    /// How many keys are got, one after the other
    #[arg(long, value_name = "N", default_value_t = 300,
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub gets: u32,
    /// Keys are 1 to this; about two thirds of them are in the tree at a time
    #[arg(long, value_name = "N", default_value_t = 96,
          value_parser = clap::value_parser!(u32).range(1..=160))]
    pub keys: u32,
    /// Nodes of each level, entries and records that stand by before one is used again
    #[arg(long, value_name = "N", default_value_t = 64,
          value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub spare: u32,
    /// Between two of the writer's stores while a chain walks, in ns
    #[arg(long, value_name = "NS", default_value_t = 200,
          value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub pace: u64,
    /// Which keys are changed, and which are got
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// On two real NICs of this host, not in the simulator
    #[arg(long)]
    pub real: bool,
    /// What the simulated NICs cost: a profile of docs/scenarios.md, or neutral
    #[arg(long, value_name = "PROFILE", default_value = "connectx5", conflicts_with = "real")]
    pub hardware: String,
}

pub fn tree(options: &Tree) -> Result<ExitCode, Error> {
    let pace = Duration::from_ns(options.pace);
    let plan = Plan { keys: options.keys, spare: options.spare, pace, seed: options.seed, careless: false };
    let compiled = program(plan.room(), plan.values()).map_err(|error| Error::Options(error.to_string()))?;
    let history: Arc<Mutex<History>> = Arc::default();
    let tally = match options.real {
        true => really(options, plan, &history)?,
        false => simulated(options, plan, &history)?,
    };
    let history = locked(&history);
    let levels = history.levels;
    let mut out = format!(
        "one program for up to 4 levels: {}, {} doorbell orders; the tree had {levels}, of 4 keys a node\n\
         writer: {} changes, {} splits, {} keys without room\n{tally}\nmedian {:.1} us\n",
        compiled.counts,
        compiled.stages.saturating_sub(1),
        history.changes(),
        history.splits,
        history.refused,
        tally.median().as_ps() as f64 / 1e6,
    );
    tally.wrong.iter().for_each(|line| out.push_str(&format!("wrong: {line}\n")));
    print(&out)?;
    Ok(if tally.wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn simulated(options: &Tree, plan: Plan, history: &Arc<Mutex<History>>) -> Result<Tally, Error> {
    let tally: Rc<RefCell<Option<Tally>>> = Rc::default();
    let mut sim = two_hosts(&options.hardware, false)?;
    let for_server = history.clone();
    let server = Start::new("server", 0, move |rdma| {
        let history = for_server.clone();
        async move { serve(rdma, "tree".to_owned(), plan, history).await.map_err(|error| error.to_string()) }
    });
    let (for_client, kept, gets) = (history.clone(), tally.clone(), options.gets);
    let client = Start::new("client", 1, move |rdma| {
        let (history, kept) = (for_client.clone(), kept.clone());
        async move {
            let got = get_all(rdma, "tree".to_owned(), plan, (gets, history)).await;
            *kept.borrow_mut() = Some(got.map_err(|error| error.to_string())?);
            Ok::<(), String>(())
        }
    });
    sim.set_programs(Setup { programs: vec![server, client], exchange_ps: 1_000_000, ..Setup::default() });
    sim.run(u64::MAX, u64::MAX);
    let wrong = sim.programs().find_map(|(name, doing, ..)| match doing {
        Doing::Ended(Err(why)) => Some(format!("{name}: {why}")),
        _ => None,
    });
    tally.take().filter(|_| wrong.is_none()).ok_or_else(|| {
        let why = wrong.unwrap_or_else(|| sim.program_failures().join("; "));
        Error::Options(format!("the walks ended: {why}"))
    })
}

fn really(options: &Tree, plan: Plan, history: &Arc<Mutex<History>>) -> Result<Tally, Error> {
    let (for_server, for_client, gets) = (history.clone(), history.clone(), options.gets);
    let text = |error: adverb_redn::run::Failure| error.to_string();
    let ((), tally) = on_two_nics(
        async move |rdma, name| serve(rdma, name, plan, for_server).await.map_err(text),
        async move |rdma, name| get_all(rdma, name, plan, (gets, for_client)).await.map_err(text),
        |why| Error::Remote(format!("the walks ended: {why}")),
    )?;
    Ok(tally)
}
