//! `adverb`: runs unmodified RDMA programs on a NIC made of software, and simulates networks of it.
//!
//! For a program the command only prepares: it finds the library, writes the settings into the environment
//! and becomes the program. The NIC lives in the library, in the program's own process. A simulation runs in
//! this process.
#![forbid(unsafe_code)]

mod args;
mod bench;
mod cast;
mod chain;
mod command;
mod copies;
mod devices;
mod elf;
mod enact;
mod error;
mod facade;
mod holes;
mod kv;
mod lab;
mod library;
mod lock;
mod locks;
mod metrics;
mod nicd;
mod output;
mod pages;
mod program;
mod progress;
mod queue;
mod redn;
mod redn_swarm;
mod region;
mod remote;
mod run;
mod settings;
mod simulate;
mod star;
mod star_registry;
mod stay;
mod swarm;
mod switch;
mod switch_lab;
mod switch_live;
mod switch_swarm;
mod systems;
mod tallied;
mod top;
mod traced;
mod tree;
mod tree_swarm;
mod words;

use adverb_os::say;
use args::{Action, Cli};
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let outcome = match Cli::parse().action {
        Action::Kv(action) => kv::kv(&action),
        Action::Lock(action) => lock::lock(&action),
        Action::Locks(action) => locks::locks(&action),
        Action::Chain(action) => chain::chain(&action),
        Action::Queue(action) => queue::queue(&action),
        Action::Redn(action) => redn::redn(&action),
        Action::Region(action) => region::region(&action).map(|()| ExitCode::SUCCESS),
        Action::Certs(arguments) => region::certs(&arguments).map(|()| ExitCode::SUCCESS),
        Action::Run(arguments) => run::run(&arguments),
        Action::Nicd(arguments) => nicd::nicd(&arguments).map(|()| ExitCode::SUCCESS),
        Action::Facade(arguments) => facade::write(&arguments).map(|()| ExitCode::SUCCESS),
        Action::Devices(arguments) => devices::list(&arguments).map(|()| ExitCode::SUCCESS),
        Action::Sim(arguments) => {
            pages::ask();
            simulate::simulate(&arguments).map(|()| ExitCode::SUCCESS)
        }
        Action::Star(action) => star::star(&action),
        Action::Switch(action) => switch::switch(&action),
        Action::Top(arguments) => top::top(&arguments).map(|()| ExitCode::SUCCESS),
        Action::Tree(action) => tree::tree(&action),
        Action::Swarm(arguments) => swarm::swarm(&arguments),
        Action::Replay(arguments) => swarm::replay(&arguments),
        Action::Completions { shell } => words::completions(shell).map(|()| ExitCode::SUCCESS),
        Action::Man { directory } => words::manual(&directory).map(|()| ExitCode::SUCCESS),
        Action::Lab(action) => {
            pages::ask();
            lab::lab(&action).map(|()| ExitCode::SUCCESS)
        }
    };
    match outcome {
        Ok(code) => code,
        Err(e) => {
            say!("adverb: {e}");
            ExitCode::from(e.status())
        }
    }
}
