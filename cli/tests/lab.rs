//! `adverb lab` as its user sees it: the list, a run with its files, and that jobs do not change what comes
//! out.

#![allow(clippy::disallowed_methods, reason = "tests of real time")]

use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// One trial of the real cache at a time: they are about times.
static TURN: Mutex<()> = Mutex::new(());

fn lab(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_adverb")).arg("lab").args(words).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn folder(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("adverb-cli-lab-{name}-{}", std::process::id()));
    fs::create_dir_all(&path).unwrap();
    path
}

#[test]
fn the_list_names_every_experiment_under_its_paper() {
    let output = lab(&["list"]);
    assert!(output.status.success());
    let said = text(&output.stdout);
    assert!(said.starts_with("Mittal et al."), "{said}");
    for name in [
        "irn/fig1 ",
        "irn/fig9-cross ",
        "irn/fig12 ",
        "irn/modules ",
        "onerma/fig8 ",
        "kvs/fig8 ",
        "kvs/fig14 ",
    ] {
        assert_eq!(said.matches(name).count(), 1, "{name}: {said}");
    }
}

#[test]
fn an_unknown_experiment_is_refused_with_those_there_are() {
    for (words, expected) in [
        (["run", "irn/fig99"], "there is no experiment `irn/fig99`; there are irn/fig1, irn/fig2"),
        (["run", "tcp"], "there is no experiment `tcp`; there are irn/fig1"),
    ] {
        let output = lab(&words);
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output.stderr).contains(expected), "{}", text(&output.stderr));
    }
}

/// The smallest experiment: incasts. The paper's relation holds, the files are there, and two jobs write what
/// one does.
#[test]
fn a_run_prints_and_writes_the_same_whatever_the_jobs() {
    let folder = folder("jobs");
    let run = |jobs: &str| {
        let out = folder.join(jobs);
        let words =
            ["run", "irn/fig9", "--seeds", "1", "--jobs", jobs, "--out", out.to_str().unwrap(), "--quiet"];
        let output = lab(&words);
        let said = text(&output.stdout);
        assert!(output.status.success() && output.stderr.is_empty(), "{said}{}", text(&output.stderr));
        assert!(
            said.contains("IRN without PFC / RoCE with PFC: 0.9 to 1.3; the paper: about the same"),
            "{said}"
        );
        assert!(said.contains("1 seed, so no interval and no verdict; 900 flows, 0 unfinished"), "{said}");
        let files =
            ["runs.csv", "plot.svg"].map(|f| fs::read_to_string(out.join("irn/fig9").join(f)).unwrap());
        (said.lines().filter(|l| !l.contains("plot.svg")).collect::<Vec<_>>().join("\n"), files)
    };
    let (one, two) = (run("1"), run("2"));
    assert_eq!(one, two);
    let [csv, svg] = one.1;
    // 6 series, 5 places, and the heading.
    assert_eq!(csv.lines().count(), 31);
    assert!(
        csv.starts_with("series,x,seed,rct_ms,rct_ms_first,rct_ms_second,flows,unfinished,link_hops,trace\n"),
        "{csv}"
    );
    assert!(svg.starts_with("<svg") && svg.contains("RoCE with PFC") && svg.contains("senders M"));
    fs::remove_dir_all(folder).ok();
}

/// Runs that an earlier one has left are taken, the others are run, and what comes out is as if all had been.
#[test]
fn a_run_that_was_interrupted_goes_on() {
    let folder = folder("resume");
    let mine = folder.join("mine");
    let path = mine.to_str().unwrap();
    assert!(lab(&["new", path]).status.success());
    let small = ["--set", "workload.flows=100", "--quiet", "--jobs", "2"];
    let run = |more: &[&str]| {
        let output = lab(&[&["run", path], &small[..], more].concat());
        let said = text(&output.stdout);
        assert!(output.status.success(), "{said}{}", text(&output.stderr));
        said
    };
    let (out, whole) = (folder.join("out"), folder.join("whole"));
    let (out_text, whole_text) = (out.to_str().unwrap(), whole.to_str().unwrap());
    run(&["--seeds", "2", "--out", out_text]);
    // As a process that is killed while it writes leaves it.
    let file = out.join("mine/first/finished.runs");
    let lines = fs::read_to_string(&file).unwrap();
    // Two series, two loads, two seeds.
    assert_eq!(lines.lines().count(), 8);
    fs::write(&file, &lines[..lines.len() - 9]).unwrap();
    let said = run(&["--seeds", "3", "--out", out_text, "--resume"]);
    assert!(said.contains("resumed: 7 runs were there, 5 were run; 1 not taken"), "{said}");
    let said = run(&["--seeds", "3", "--out", out_text, "--resume"]);
    assert!(said.contains("resumed: 12 runs were there, 0 were run\n"), "{said}");
    run(&["--seeds", "3", "--out", whole_text]);
    for name in ["runs.csv", "plot.svg"] {
        let read = |out: &PathBuf| fs::read_to_string(out.join("mine/first").join(name)).unwrap();
        assert_eq!(read(&out), read(&whole), "{name}");
    }
    // Another scenario's runs are not taken for these.
    let other = ["run", path, "--set", "workload.flows=101", "--quiet", "--seeds", "2", "--out", out_text];
    let said = text(&lab(&[&other[..], &["--resume"]].concat()).stdout);
    assert!(said.contains("resumed: 0 runs were there, 8 were run\n"), "{said}");
    let alone = lab(&["run", path, "--resume"]);
    assert_eq!(alone.status.code(), Some(2), "{}", text(&alone.stderr));
    assert!(text(&alone.stderr).contains("--out"), "{}", text(&alone.stderr));
    fs::remove_dir_all(folder).ok();
}

/// What is wrong on purpose is caught, and an experiment of one's own whose gates cannot fail is told so.
#[test]
fn mutations_are_caught_and_gates_that_cannot_fail_are_found() {
    let folder = folder("mutate");
    let output = lab(&["mutate", "onerma/fig11b", "--quiet"]);
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}{}", text(&output.stderr));
    let verdicts = "onerma/fig11b: 3 hold (0 faithful, 3 direction, 0 fitted), 0 report, 0 differ, 0 fail";
    assert!(said.contains(verdicts), "{said}");
    assert!(said.contains("the points are in reverse order") && !said.contains("SURVIVED"), "{said}");
    assert_eq!(said.matches("caught by ").count(), 3, "{said}");

    // The same, with a gate that 16 slots meet as well as one.
    let lab_folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../lab/onerma");
    let definition = fs::read_to_string(format!("{lab_folder}/fig11b/experiment.toml")).unwrap();
    let first_bound = definition.find("[[bound]]").unwrap();
    let blind = "[[bound]]\nratio = \"reads\"\nmin = 5\n";
    fs::create_dir_all(folder.join("blind")).unwrap();
    fs::copy(format!("{lab_folder}/paper.toml"), folder.join("paper.toml")).unwrap();
    let own = folder.join("blind/experiment.toml");
    fs::write(&own, format!("{}{blind}", &definition[..first_bound])).unwrap();
    let output = lab(&["mutate", own.to_str().unwrap(), "--quiet"]);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("SURVIVED (all are as at 1)"), "{said}");
    assert!(text(&output.stderr).contains("although something is wrong on purpose"));
    fs::remove_dir_all(folder).ok();
}

/// An experiment to begin with runs with other seeds and with something set otherwise; then nothing is
/// claimed.
#[test]
fn an_experiment_of_ones_own_is_made_run_and_varied() {
    let folder = folder("own");
    let mine = folder.join("mine");
    let path = mine.to_str().unwrap();
    let made = lab(&["new", path]);
    assert!(made.status.success() && text(&made.stdout).contains("first/experiment.toml"), "{made:?}");
    let again = lab(&["new", path]);
    assert_eq!(again.status.code(), Some(1));
    assert!(text(&again.stderr).contains("File exists"), "{}", text(&again.stderr));

    let out = folder.join("out");
    let small = ["--set", "workload.flows=300", "--set", "topology.delay=1us,2us"];
    let seeds = ["--seeds", "2", "--first-seed", "41", "--quiet", "--out", out.to_str().unwrap()];
    let run = lab(&[&["run", path][..], &small, &seeds].concat());
    let said = text(&run.stdout);
    assert!(run.status.success(), "{said}{}", text(&run.stderr));
    assert!(
        said.contains("0 hold (0 faithful, 0 direction, 0 fitted), 0 report") && said.contains("0 fail"),
        "its one bound is of a point: {said}"
    );
    let csv = fs::read_to_string(out.join("mine/first/runs.csv")).unwrap();
    // Two series, two delays, two seeds, and the heading.
    assert_eq!(csv.lines().count(), 9);
    let rows: Vec<Vec<&str>> = csv.lines().skip(1).map(|line| line.split(',').collect()).collect();
    let column = |at: usize| rows.iter().map(|row| row[at]).collect::<Vec<_>>();
    assert_eq!(column(2), ["41", "42", "41", "42", "41", "42", "41", "42"]);
    assert_eq!(column(1), ["1", "1", "2", "2", "1", "1", "2", "2"]);

    for (words, expected) in [
        (&["mutate", path, "--set", "workload.flows=300"][..], "--set takes the gates away"),
        (&["run", path, "--set", "workload.flow=300"], "unknown field `flow`"),
        (&["run", path, "--set", "flows"], "write KEY=VALUE"),
        (&["run", folder.to_str().unwrap(), "--quiet"], "there is no experiment.toml in it"),
    ] {
        let output = lab(words);
        assert!(!output.status.success(), "{words:?}");
        assert!(text(&output.stderr).contains(expected), "{words:?}: {}", text(&output.stderr));
    }
    fs::remove_dir_all(folder).ok();
}

/// Of a CSV file: the value of a column in a row.
fn cell(csv: &str, row: usize, column: &str) -> f64 {
    let mut lines = csv.lines();
    let at = lines.next().unwrap().split(',').position(|name| name == column);
    let at = at.unwrap_or_else(|| panic!("no column {column} in {csv}"));
    lines.nth(row).unwrap().split(',').nth(at).unwrap().parse().unwrap()
}

/// The figures of the real cache, small: processes, packets, a kill, rotations; and the files say what
/// happened.
#[test]
fn the_real_cache_meets_its_bounds_under_load_a_kill_and_rotations() {
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let folder = folder("kvs");
    let output = lab(&["run", "kvs", "--seeds", "1", "--out", folder.to_str().unwrap(), "--quiet"]);
    let said = text(&output.stdout);
    assert!(output.status.success() && output.stderr.is_empty(), "{said}{}", text(&output.stderr));
    let file = |name: &str| fs::read_to_string(folder.join("kvs").join(name)).unwrap();

    assert_eq!(said.matches(": 0 hold (").count(), 4, "one run claims nothing, nor do all together: {said}");

    let loads = file("fig8/runs.csv");
    for runs in [&loads, &file("fig9/runs.csv"), &file("fig14/runs.csv")] {
        for row in 0..runs.lines().count() - 1 {
            assert_eq!((cell(runs, row, "lookups_failed"), cell(runs, row, "wrong")), (0.0, 0.0), "{runs}");
        }
    }
    assert_eq!(loads.lines().count(), 14, "the heading, and each load");
    let (low, high) = (cell(&loads, 1, "asked_kps"), cell(&loads, 11, "asked_kps"));
    assert!(high > 10.0 * low && low > 0.0, "a tenth of the saturation, and twice it: {loads}");
    let latency = |row| cell(&loads, row, "lookup_p50_us");
    assert!(latency(12) > 1000.0, "four times the saturation is not answered in time: {loads}");
    assert!((0..13).all(|row| latency(row) > 5.0), "two round trips through the kernel: {loads}");
    assert!(file("fig8/plot.svg").contains("saturation"));

    let killed = file("fig9/timeline.csv");
    let rows: Vec<&str> = killed.lines().skip(1).collect();
    let event = rows.iter().position(|row| row.ends_with(" ms")).unwrap();
    let hits = |row: &str| -> Vec<u64> {
        row.split(',').nth(6).unwrap().split(' ').map(|hits| hits.parse().unwrap()).collect()
    };
    assert!(rows[event].contains("R2 Kill"), "{}", rows[event]);
    assert!(rows[..event].iter().any(|row| hits(row)[1] > 0), "R2 served: {killed}");
    let after: Vec<Vec<u64>> = rows[event + 20..].iter().map(|row| hits(row)).collect();
    assert!(after.iter().all(|hits| hits[1] == 0) && after.iter().any(|hits| hits[0] > 0), "{killed}");
    assert!(file("fig9/plot.svg").contains("R2 killed"));

    let rotated = file("fig14/runs.csv");
    assert_eq!(file("fig14/timeline.csv").matches("RotateData").count(), 4);
    assert_eq!((cell(&rotated, 0, "refused_elsewhere"), cell(&rotated, 0, "other_failures")), (0.0, 0.0));
    fs::remove_dir_all(folder).ok();
}

/// However the lab ends, the replicas that it started do too.
#[test]
fn replicas_of_a_lab_that_was_killed_are_gone() {
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let mut command = Command::new(env!("CARGO_BIN_EXE_adverb"));
    command.args(["lab", "run", "kvs/fig9", "--quiet", "--scale", "paper"]).stdout(Stdio::null());
    let mut lab = command.spawn().unwrap();
    let [.., high, low] = lab.id().to_be_bytes();
    let replicas = [1, 2].map(|host| (Ipv4Addr::new(127, 128 | (high & 0x7f), low, host), 7450));
    let answers = |wanted: bool| {
        let begin = Instant::now();
        while replicas.iter().any(|to| TcpStream::connect(to).is_ok() != wanted) {
            assert!(begin.elapsed() < Duration::from_secs(60), "replicas that answer: {wanted} is wanted");
            std::thread::park_timeout(Duration::from_millis(20));
        }
    };
    answers(true);
    // SIGKILL: nothing of it can clean up.
    lab.kill().unwrap();
    lab.wait().unwrap();
    answers(false);
    // Killed while it started, it may have left its folder.
    fs::remove_dir_all(std::env::temp_dir().join(format!("adverb-lab-{}", lab.id()))).ok();
}
