//! Programs of the language: what they are made into, what they do, and what is refused.

mod common;

use adverb_rdma::Duration;
use adverb_redn::language::interpret::Outcome;
use adverb_redn::language::lower::{Bug, Options};
use adverb_redn::language::{Compiled, File, compile, parse, random};
use adverb_redn::run::connect;
use adverb_redn::trial::{Asked, Served, ask_once, differences, interpreted, serve_once};
use common::{Said, text, two_for_real, two_for_real_with, two_in_simulator};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

/// What came of a run.
struct Ran {
    served: Served,
    asked: Asked,
    said: Outcome,
}

impl Ran {
    /// Replies as the interpreter says them, with which those that came agree.
    fn replies(&self) -> Vec<(Vec<u8>, u32)> {
        self.said.replies.iter().map(|(bytes, imm)| (bytes.clone(), imm.unwrap_or(0))).collect()
    }
}

fn ms(ms: u64) -> Duration {
    Duration::from_ms(ms)
}

fn made(file: &File, bug: Option<Bug>) -> Said<Compiled> {
    compile(file, Options { finish: true, bug }).map_err(text)
}

/// Runs a program, made wrong in this way, between two simulated hosts.
fn simulated(program: &str, hardware: &str, bug: Option<Bug>) -> Said<Ran> {
    let file = parse(program).unwrap_or_else(|error| panic!("{error}"));
    let (for_server, for_client) = (file.clone(), file.clone());
    let kept: Rc<RefCell<Option<Served>>> = Rc::default();
    let seen = kept.clone();
    // One that was made wrong may go round for ever.
    let patience = if bug.is_some() { ms(10) } else { ms(1000) };
    let asked = two_in_simulator(
        hardware,
        move |rdma, name| {
            let (file, kept) = (for_server.clone(), kept.clone());
            async move {
                let keep = move |served| *kept.borrow_mut() = Some(served);
                // Of one that does not end, nothing is kept.
                let _ = serve_once(&rdma, &name, made(&file, bug)?, patience, keep).await;
                Ok(())
            }
        },
        move |rdma, name| {
            let file = for_client.clone();
            async move { ask_once(&rdma, &name, (&file, &made(&file, None)?), None, ms(50)).await }
        },
    );
    let served = seen.take().ok_or("the program did not end")?;
    let said = interpreted(&file, &served, &asked);
    Ok(Ran { served, asked, said })
}

/// The same over two real NICs, which has one reply: these bytes, with immediate 1.
fn real(test: u8, program: &str, bytes: &[u8]) {
    let file = parse(program).unwrap();
    let for_server = file.clone();
    let asked = two_for_real(
        test,
        move |rdma, name| {
            let file = for_server.clone();
            async move { serve_once(&rdma, &name, made(&file, None)?, ms(20_000), drop).await }
        },
        move |rdma, name| {
            let file = file.clone();
            async move { ask_once(&rdma, &name, (&file, &made(&file, None)?), None, ms(300)).await }
        },
    );
    assert_eq!((asked.replies, &asked.buffer[..bytes.len()]), (vec![1], bytes));
    assert!(asked.buffer[bytes.len()..].iter().all(|byte| *byte == 0), "the reply is longer");
}

/// A run in the NIC, compared with the interpreter's.
fn compared(program: &str) -> Ran {
    compared_on(program, "neutral")
}

/// The same on such hardware.
fn compared_on(program: &str, hardware: &str) -> Ran {
    let ran = simulated(program, hardware, None).unwrap_or_else(|error| panic!("{error}\n{program}"));
    let wrong = differences(&ran.said, &ran.served, &ran.asked);
    assert_eq!(wrong, Vec::<String>::new(), "{program}");
    ran
}

const GET: &str = include_str!("../examples/programs/get.redn");
const PARALLEL: &str = include_str!("../examples/programs/parallel.redn");
const WALK: &str = include_str!("../examples/programs/walk.redn");
const BREAK: &str = include_str!("../examples/programs/break.redn");
const MOV: &str = include_str!("../examples/programs/mov.redn");
const SEQUENTIAL: &str = include_str!("../examples/programs/sequential.redn");
const HOPSCOTCH: &str = include_str!("../examples/programs/hopscotch.redn");
const CUCKOO: &str = include_str!("../examples/programs/cuckoo.redn");
const LOOKUP: &str = include_str!("../examples/programs/lookup.redn");
const STORE: &str = include_str!("../examples/programs/store.redn");
const BTREE: &str = include_str!("../examples/programs/btree.redn");
const COUNT: &str = include_str!("../examples/programs/count.redn");

#[test]
fn a_lookup_is_six_wqes_and_a_reply() {
    let file = parse(GET).unwrap();
    let compiled = compile(&file, Options::default()).unwrap();
    assert_eq!(compiled.counts.to_string(), "2C 1A 4E");
    let worker = compiled.chain.queue_of(compiled.worker);
    assert_eq!((worker.wqes.len(), compiled.chain.queue_of(compiled.client).wqes.len()), (6, 1));
    assert_eq!(compiled.message.iter().map(|part| part.bytes).sum::<u8>(), 14);
    let receive = &compiled.chain.queue_of(compiled.client).receives[0];
    assert_eq!(receive.len(), 3, "two of the key, one of the address: {receive:?}");
    let ran = compared(GET);
    assert_eq!(ran.replies(), [(b"the value 42".to_vec(), 1)]);
    // Another key: no reply.
    let ran = compared(&GET.replace("run key = 0x2a", "run key = 0x2c"));
    assert_eq!(ran.replies(), []);
    let ran =
        compared(&GET.replace("run key = 0x2a, bucket = &table+64", "run key = 0x2b, bucket = &table+82"));
    assert_eq!(ran.replies(), [(b"hello".to_vec(), 1)]);
    real(50, GET, b"the value 42");
}

#[test]
fn examples_do_what_the_interpreter_says() {
    assert_eq!(compared(PARALLEL).replies(), [(b"second place".to_vec(), 2)]);
    assert_eq!(compared(WALK).replies(), [(b"thirty-3".to_vec(), 1)]);
    assert_eq!(compared(BREAK).replies(), [(b"22......".to_vec(), 1)]);
    assert_eq!(compared(&BREAK.replace("key = 22", "key = 23")).replies(), []);
    let moved = compared(MOV);
    assert_eq!(moved.replies(), [(106u64.to_ne_bytes().to_vec(), 3)]);
    for (program, key, expected) in [
        (SEQUENTIAL, "", Some(("second place", 2))),
        (SEQUENTIAL, "key = 0x17", Some(("first", 1))),
        (SEQUENTIAL, "key = 0x18", Some(("", 0))),
        (HOPSCOTCH, "", Some(("two away", 1))),
        (HOPSCOTCH, "key = 9", None),
        (CUCKOO, "", Some(("in the other", 1))),
        (CUCKOO, "key = 5", Some(("in the one", 1))),
        (CUCKOO, "key = 6", Some(("", 0))),
        (LOOKUP, "", Some(("medium", 2))),
        (LOOKUP, "size = 5", Some(("small", 2))),
        (LOOKUP, "size = 10", Some(("medium", 2))),
        (LOOKUP, "size = 99999", Some(("huge", 2))),
        (BTREE, "", Some(("seventy-three", 1))),
        (BTREE, "key = 74", Some(("", 0))),
        (BTREE, "key = 0", Some(("", 0))),
    ] {
        let file = parse(program).unwrap();
        let (name, value) = key.split_once(" = ").unwrap_or_default();
        let other = program.lines().map(|line| match line.strip_prefix("run ") {
            Some(_) if !key.is_empty() => {
                let kept =
                    file.run.iter().filter(|(other, _)| other != name).map(|(name, value)| match value {
                        adverb_redn::language::Atom::Address(region, at) => {
                            format!(", {name} = &{region}+{at}")
                        }
                        other => panic!("{other:?}"),
                    });
                format!("run {name} = {value}{}", kept.collect::<String>())
            }
            _ => line.to_owned(),
        });
        let program: String = other.collect::<Vec<_>>().join("\n");
        let expected: Vec<(Vec<u8>, u32)> =
            expected.into_iter().map(|(text, imm)| (text.as_bytes().to_vec(), imm)).collect();
        assert_eq!(compared(&program).replies(), expected, "{program}");
    }
    assert_eq!(compared(STORE).replies(), [(b"\x07\0\0\0\0\0\0\0\x08\0\0\0\0\0\0\0".to_vec(), 4)]);
    assert_eq!(compared(COUNT).replies(), [(5050u64.to_ne_bytes().to_vec(), 1)]);
}

/// Parts that need nothing of each other have queues of their own, at most eight; replies come in the
/// program's order, whichever part is done first.
#[test]
fn statements_that_do_not_need_each_other_stand_beside_each_other() {
    let beside = |program: &str| {
        compile(&parse(program).unwrap(), Options::default()).unwrap_or_else(|e| panic!("{e}")).beside.len()
    };
    assert_eq!(beside(PARALLEL), 1);
    let both = PARALLEL.replace("u48 0x17", "u48 0x2a");
    assert_eq!(compared(&both).replies(), [(b"wrong".to_vec(), 1), (b"second place".to_vec(), 2)]);
    assert_eq!((beside(GET), beside(SEQUENTIAL), beside(WALK)), (0, 0, 0));
    let ifs = |count: usize, value: &dyn Fn(usize) -> String| {
        let one = |n: usize| format!("if x == {n} {{ r{n} = {} }} else {{ r{n} = 9 }}\n", value(n));
        format!("program p(x: u48) {{\n{}}}\nrun x = 3", (0..count).map(one).collect::<String>())
    };
    for (count, expected) in [(1, 0), (2, 1), (8, 7), (20, 7)] {
        let program = ifs(count, &|n| n.to_string());
        assert_eq!(beside(&program), expected, "{count} parts");
        compared_on(&program, "connectx5");
    }
    // Each needs the one before.
    assert_eq!(beside(&ifs(8, &|n| if n == 0 { "1".into() } else { format!("r{}", n - 1) })), 0);
    // What comes before has to be done first, which two parts are not worth.
    let behind =
        |count| ifs(count, &|n| n.to_string()).replace("{\nif", "{\nq = 1\nq = x\nr0 = q\nr1 = q\nif");
    assert_eq!((beside(&behind(2)), beside(&behind(3).replace("r0 = q\nr1 = q\n", ""))), (0, 2));
    // A loop that is left, and memory that one part writes and the other reads.
    let words = "region words: memory\nmov p, &words\nmov q, &words+8";
    let data = "data words 64 { 0: word 4, word 5, word 6 }";
    for (body, expected) in [
        ("if x == 1 { break }\nif x == 3 { r1 = 2 }", 0),
        ("mov r1, [p]\nmov r2, [q]\nmov r3, [p + 8]", 2),
        ("mov r1, [p]\nmov [q], 7\nmov r3, [p + 8]", 0),
    ] {
        let program =
            format!("program p(x: u48) {{\n{words}\nloop unroll 1 {{\n{body}\n}}\n}}\n{data}\nrun x = 3");
        assert_eq!(beside(&program), expected, "{body}");
        compared_on(&program, "connectx5");
    }
}

#[test]
fn examples_run_on_real_nics() {
    real(60, BREAK, b"22......");
    real(62, COUNT, &5050u64.to_ne_bytes());
}

/// In each lap indices, the counter and the body change WQEs and memory that the next lap fetches and reads.
const LAPS: &str = "program laps(n: u48) {
    region words: memory
    var i: u48
    var middle: u48
    while i != n recycle {
        i += 1
        sum += i
        mov x, [&words + 8]
        x += sum
        mov [&words + 8], x
        if i == 30 { middle = sum }
    }
    reply sum imm 1
}
data words 64 { 8: word 7 }
run n = LAPS";

/// Frames of a loop to its own NIC stay in it, or go through sockets that may lose and reorder them; 1 to 64
/// WQEs are fetched at once.
#[test]
fn recycled_loops_go_round_on_real_nics_however_much_is_fetched_ahead() {
    let ways = [("", 300), ("path=udp", 300), ("path=udp,loss=1%,reorder=2%,duplicate=1%,seed=7", 40)];
    let cases = [1, 2, 3, 4, 8, 16, 32, 64].into_iter().flat_map(|depth| ways.map(|way| (depth, way)));
    for (n, (depth, (way, laps))) in (0u8..).zip(cases) {
        let file = parse(&LAPS.replace("LAPS", &laps.to_string())).unwrap();
        let (for_server, kept) = (file.clone(), Arc::new(Mutex::new(None)));
        let seen = kept.clone();
        let buffer = two_for_real_with(
            (100 + 2 * n, &format!("prefetch={depth},{way}")),
            move |rdma, name| {
                let (file, kept) = (for_server.clone(), kept.clone());
                let keep = move |served| *kept.lock().unwrap() = Some(served);
                async move { serve_once(&rdma, &name, made(&file, None)?, ms(60_000), keep).await }
            },
            move |rdma, name| {
                let file = file.clone();
                async move {
                    let client = connect(&rdma, &name, ms(10_000)).await.map_err(text)?;
                    let arguments = client.arguments(&file, &[])?;
                    client.ask(&made(&file, None)?.message(&arguments)).await.map_err(text)?;
                    let reply = client.reply(&rdma, ms(60_000)).await.map_err(text)?.ok_or("no reply")?;
                    assert_eq!((reply.imm, reply.len), (1, 8));
                    client.buffer.load(0).await.map_err(text)
                }
            },
        );
        let sum = |n: u64| n * (n + 1) / 2;
        let case = format!("{depth} WQEs at once, {way}");
        assert_eq!(buffer, sum(laps), "{case}");
        let served: Served = seen.lock().unwrap().take().unwrap_or_else(|| panic!("{case}: no end"));
        let (variables, words) = (&served.variables, &served.after["words"].bytes);
        assert_eq!((variables["i"], variables["middle"]), (laps, sum(30)), "{case}");
        let all = 7 + (1..=laps).map(sum).sum::<u64>();
        assert_eq!(words[8..16], all.to_ne_bytes(), "{case}");
    }
}

/// The same loop runs any machine: which one is data.
#[test]
fn a_loop_of_wqes_is_a_turing_machine() {
    let beaver = compared(include_str!("../examples/programs/busy_beaver.redn"));
    assert_eq!(beaver.replies(), [(107u64.to_ne_bytes().to_vec(), 1)]);
    let tape = beaver.served.after["words"].bytes[2048..6144].as_chunks::<8>().0;
    assert_eq!(tape.iter().filter(|word| u64::from_ne_bytes(**word) == 32).count(), 13);
    let endless = compared(include_str!("../examples/programs/endless.redn"));
    assert_eq!(endless.replies(), [(1000u64.to_ne_bytes().to_vec(), 1)]);
}

/// Of a loop's conditional that is restored each lap, the operand stays what the lap's READ has brought.
#[test]
fn a_field_is_compared_in_every_lap() {
    for (ty, key) in [("u16", 2), ("u32", 2), ("u48", 2), ("addr", 2), ("u48", 0xffff_ffff_ffffu64)] {
        let program = format!(
            "program laps() {{\nregion table: read\nvar n: u48\nvar hits: u48\nvar key: u48\nkey = {key}\n\
             while n != 3 recycle {{\nlet t = read table[&table] {{ k: {ty} }}\n\
             if t.k == key {{ hits += 1 }}\nn += 1 }}\nreply hits imm 1 }}\ndata table 64 {{ 0: {ty} {key} }}"
        );
        assert_eq!(compared(&program).replies(), [(3u64.to_ne_bytes().to_vec(), 1)], "{ty}");
    }
}

/// Random programs: the NIC's memory afterwards is what the interpreter, which knows no RDMA, says.
#[test]
fn random_programs_do_what_the_interpreter_says() {
    for seed in 0..400 {
        let program = random::program(seed);
        println!("seed {seed}");
        compared_on(&program, if seed % 2 == 0 { "neutral" } else { "connectx5" });
    }
}

/// Each mistake of the compiler is found within some programs.
#[test]
fn a_compiler_that_errs_is_found_out() {
    for (name, bug, _) in Bug::ALL {
        let differs = |seed: &u64| {
            // A program that does not end is found out as well.
            let Ok(ran) = simulated(&random::program(*seed), "connectx5", Some(bug)) else { return true };
            !differences(&ran.said, &ran.served, &ran.asked).is_empty()
        };
        let found = (0..100).find(differs);
        assert!(found.is_some(), "{name} is not found in 100 programs");
        println!("{name}: seed {found:?}");
    }
}

/// Table 2 of the paper: what a conditional costs.
#[test]
fn a_conditional_is_one_copy_one_atomic_and_three_orders() {
    let program = "program t(x: u48) {\n region v: source\n\n if x == 5 { reply v[&v; 8] imm 1 }\n}
        data v 8 { 0: \"12345678\" }";
    let compiled = compile(&parse(program).unwrap(), Options::default()).unwrap();
    // The message changes no WQE that the worker has not fetched yet: one ENABLE more, for the program.
    let of = |line: u32| compiled.lines.iter().find(|(other, _)| *other == line).map(|(_, c)| c.to_string());
    assert_eq!(of(4).as_deref(), Some("1C 1A 3E"), "{:?}", compiled.lines);
}

/// All six comparisons, of 48 bits and of 64, of values that are next to each other, far apart, and equal in
/// their lower 48 bits.
#[test]
fn order_is_compared_by_max_and_min() {
    let values =
        [0u64, 1, 5, 6, 255, 256, 0xffff_ffff, 1 << 47, (1 << 48) - 1, 1 << 48, 5 | 1 << 63, u64::MAX];
    let mut rng = fastrand::Rng::with_seed(9);
    for (at, left) in values.into_iter().enumerate() {
        let others = [values[at], values[(at + 1) % values.len()], values[rng.usize(..values.len())]];
        for right in others {
            let mut body = String::new();
            for (n, compare) in ["<", "<=", ">", ">=", "==", "!="].into_iter().enumerate() {
                body += &format!("if wide a {compare} b {{ r{n} = 1 }} else {{ r{n} = 2 }}\n");
                body += &format!("if c {compare} d {{ s{n} = 1 }} else {{ s{n} = 2 }}\n");
                body += &format!(
                    "if wide t.v {compare} x {{ u{n} += 1 }}\nif {compare_left} {compare} c {{ v{n} = 7 }}\n",
                    compare_left = right & 0xffff_ffff_ffff
                );
            }
            let program = format!(
                "program p(x: u64) {{\nregion table: read\nvar c: u48\nvar d: u48\nmov a, {left}\n\
                 mov b, {right}\n\
                 mov c, {left}\nmov d, {right}\nlet t = read table[&table] {{ v: u64 }}\n{body}}}\n\
                 data table 8 {{ 0: u64 {left} }}\nrun x = {right}"
            );
            let ran = compared(&program);
            let expected = if left < right { 1 } else { 2 };
            assert_eq!(ran.served.variables["r0"], expected, "{left:#x} < {right:#x}");
        }
    }
}

/// What a reply carries is gathered when it is executed: what is written before has arrived by then.
#[test]
fn a_reply_carries_what_was_written_before() {
    let program = "program p() {
        region words: memory
        mov p, &words
        mov [p + 8], 5
        reply words[&words + 8; 8] imm 1
        mov [p + 8], 6
        r += 3
        reply r imm 2
    }
    data words 16 { }";
    let ran = compared(&program.replace("&words + 8;", "&words+8;"));
    assert_eq!(ran.replies(), [(5u64.to_ne_bytes().to_vec(), 1), (3u64.to_ne_bytes().to_vec(), 2)]);
}

/// The loop's own share of a lap: two READs and an ADD that bring its indices up, two pairs of WAIT and
/// ENABLE, the test and its conditional. A WRITE more restores the conditional, which the last lap may have
/// turned on.
#[test]
fn a_lap_of_a_recycled_loop_is_three_copies_two_atomics_and_four_orders() {
    let program = "program t() {\n loop recycle {\n  if 5 == 5 { mov y, 1 }\n }\n}";
    let compiled = compile(&parse(program).unwrap(), Options::default()).unwrap();
    let bug = Some(Bug::NoRestore);
    let bare = compile(&parse(program).unwrap(), Options { bug, ..Options::default() }).unwrap();
    let lap = |compiled: &adverb_redn::language::Compiled| {
        let mut counts = adverb_redn::language::lower::Counts::default();
        for queue in compiled.chain.queues.iter().filter(|queue| queue.recycled) {
            queue.wqes.iter().for_each(|wqe| counts.add(&wqe.op));
        }
        counts.to_string()
    };
    assert_eq!((lap(&compiled).as_str(), lap(&bare).as_str()), ("4C 2A 4E", "3C 2A 4E"));
}

#[test]
fn mistakes_are_named_by_line_and_rule() {
    let cases = [
        ("program p() {\n  if r == 1 { }\n}", "line 2: there is no variable or argument r"),
        (
            "program p(a: u64) {\n  if a == 1 { reply imm 1 }\n}",
            "line 2: compares 64 bits: at most 48 in one test; write `wide`, or declare it `var NAME: u48`",
        ),
        ("program p(a: addr) {\n\n  let b = read t[a] { k: u48 }\n}", "line 3: there is no region t"),
        ("program p() {\n  break\n}", "line 2: `break` stands in no loop"),
        ("program p() {\n  mov r, [r2]\n}", "line 2: `[..]` needs a region that is declared as `memory`"),
        (
            "program p() {\n  loop recycle {\n    loop recycle { r += 1 }\n  }\n}",
            "line 3: a recycled loop inside another one: unroll the inner one",
        ),
        (
            "program p() {\n  loop recycle {\n    reply imm 1\n  }\n}",
            "line 3: `reply` in a recycled loop: leave it by `break`, and reply behind it",
        ),
        (
            "program p() {\n  loop unroll 4 {\n    break\n    r += 1\n  }\n}",
            "line 4: a statement behind `break` is never reached",
        ),
        ("program p() {\n  region t: read\n}", "line 2: region t has no `data` in the file"),
        ("program p() {\n  r == 1\n}", "line 2: `=` is expected, not `==`"),
        ("program p() {\n  loop unroll 5000 { r += 1 }\n}", "line 2: a loop is unrolled 1 to 4096 times"),
        (
            "program p() {\n  loop unroll 4096 {\n    loop unroll 4096 { r += 1 }\n  }\n}",
            "line 3: the program is too long: more than 20000 WQEs",
        ),
        (
            "program p(a: addr) {\n region t: read\n let b = read t[a] { a: u64, b: u64, c: u64, d: u64 }\n\
             loop unroll 2 { x += b.a; x += b.b; x += b.c; x += b.d }\n}\ndata t 64 { }",
            "line 3: the fields take 32 scatter entries: at most 30 in one read",
        ),
        ("program p() {\n  $\n}", "line 2: `$` is no sign of the language"),
        ("data t 8 {\n  4: word 5\n}", "line 2: 8 bytes at 4 of a region of 8"),
        ("data t 8 { }", "line 1: there is no `program` in the file"),
        ("program p(a: u48, a: u48) { }", "line 1: a is declared twice"),
        (
            "program p() {\n  if r < 1 { }",
            "line 2: the name of a variable, or a statement, is expected, not the end",
        ),
    ];
    for (program, expected) in cases {
        let refused = parse(program).and_then(|file| compile(&file, Options::default()).map(drop));
        assert_eq!(refused.map_err(text), Err(expected.to_owned()), "{program}");
    }
    // No text makes the parser fail otherwise.
    let mut rng = fastrand::Rng::with_seed(1);
    let words: Vec<&str> = GET.split_inclusive(' ').chain(COUNT.split_inclusive(' ')).collect();
    for _ in 0..2_000 {
        let text: String = (0..rng.usize(1..60)).map(|_| words[rng.usize(..words.len())]).collect();
        let _ = parse(&text).and_then(|file| compile(&file, Options::default()));
    }
    assert!(parse(&"program p() { loop unroll 2 { ".repeat(100)).is_err());
    assert!(
        parse(&format!("program p() {{ {}", "loop unroll 2 { ".repeat(10_000))).is_err(),
        "no stack is long enough"
    );
}
