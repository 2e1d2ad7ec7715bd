//! Every fuzz target with a fixed number of inputs, made from its corpus by a seed: the part of fuzzing that
//! each run of the tests can afford. Prints what was accepted, by opcode, and fails where an opcode never
//! was: then the inputs no longer get past the first check, and finding nothing means nothing.
#![allow(clippy::print_stdout, reason = "a test")]

use adverb_fuzz::{Mutator, Seen, TARGETS, Target, target};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

const SEED: u64 = 0xadbe;

fn folder(target: &Target) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target.name)
}

/// The corpus as it lies in the tree, in the order of its names.
fn corpus(target: &Target) -> Vec<Vec<u8>> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder(target))
        .unwrap_or_else(|error| panic!("{}: {error}", folder(target).display()))
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

/// Takes the whole corpus as it is, then inputs made from it. A panic says which input it was.
fn run(target: &Target, seed: u64, inputs: u32) -> Seen {
    let corpus = corpus(target);
    let mut seen = Seen::default();
    let mut mutator = Mutator::new(seed, corpus.clone());
    let made = std::iter::repeat_with(|| mutator.next_input()).take(inputs as usize);
    for (number, input) in corpus.into_iter().chain(made).enumerate() {
        let done = catch_unwind(AssertUnwindSafe(|| (target.run)(&input, &mut seen)));
        if done.is_err() {
            let bytes: String = input.iter().map(|byte| format!("{byte:02x}")).collect();
            panic!("{}: input {number} of seed {seed:#x} panics: {bytes}", target.name);
        }
    }
    seen
}

fn all_is_accepted(name: &str) {
    let target = target(name);
    let seen = run(target, SEED, target.bounded);
    println!("{name}: {} inputs, accepted:", target.bounded);
    seen.0.iter().for_each(|(what, count)| println!("{count:9} {what}"));
    let missing: Vec<_> = (target.expected)().into_iter().filter(|what| !seen.0.contains_key(what)).collect();
    assert!(missing.is_empty(), "{name} never accepted {missing:?}");
}

macro_rules! bounded {
    ($($name:ident)*) => { $(
        #[test]
        fn $name() {
            all_is_accepted(stringify!($name));
        }
    )* };
}

bounded! {
    wire rewrite one_rma_wire pcap scenario nic_rc nic_uc_ud nic_irn nic_star nic_chains nic_one_rma grants
    nicd switch
}

/// The corpus in the tree is the one that the targets describe. `ADVERB_WRITE_CORPUS=1` writes it.
#[test]
fn the_corpus_is_up_to_date() {
    for target in &TARGETS {
        let seeds = (target.seeds)();
        if std::env::var_os("ADVERB_WRITE_CORPUS").is_some() {
            let _ = std::fs::remove_dir_all(folder(target));
            std::fs::create_dir_all(folder(target)).unwrap();
            for (name, bytes) in &seeds {
                std::fs::write(folder(target).join(name.replace(' ', "-")), bytes).unwrap();
            }
        }
        let mut wanted: Vec<Vec<u8>> = seeds.into_iter().map(|(_, bytes)| bytes).collect();
        let mut there = corpus(target);
        wanted.sort();
        there.sort();
        assert!(wanted == there, "{}: the corpus is old; ADVERB_WRITE_CORPUS=1 writes it", target.name);
    }
}

/// A planted bug: a parser that takes a length on trust.
#[test]
fn a_planted_panic_is_found() {
    let planted = Target {
        run: |input, seen| {
            (target("wire").run)(input, seen);
            if let Ok(parsed) = adverb_wire::Packet::parse_ip(input)
                && parsed.packet.bth.opcode.operation() == adverb_wire::Operation::ReadRequest
            {
                let table = [0u8; 256];
                assert_eq!(table[parsed.packet.reth.len as usize], 0);
            }
        },
        ..*target("wire")
    };
    let found = catch_unwind(AssertUnwindSafe(|| run(&planted, SEED, planted.bounded)));
    let text = *found.expect_err("the planted panic was not found").downcast::<String>().unwrap();
    assert!(text.starts_with("wire: input "), "{text}");
    println!("{text}");
}
