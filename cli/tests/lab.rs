//! `adverb lab` as its user sees it: the list, a run with its files, and that jobs do not change what comes out.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

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
    for name in ["irn/fig1 ", "irn/fig9-cross ", "irn/fig12 ", "irn/modules "] {
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

/// The smallest experiment: incasts. The paper's relation holds, the files are there, and two jobs write what one does.
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
            said.contains("IRN without PFC / RoCE with PFC: 0.9 to 1.1; the paper: about the same"),
            "{said}"
        );
        assert!(said.contains("1 seed, so no 95% confidence; 900 flows, 0 unfinished"), "{said}");
        let files =
            ["runs.csv", "plot.svg"].map(|f| fs::read_to_string(out.join("irn/fig9").join(f)).unwrap());
        (said.lines().filter(|l| !l.contains("plot.svg")).collect::<Vec<_>>().join("\n"), files)
    };
    let (one, two) = (run("1"), run("2"));
    assert_eq!(one, two);
    let [csv, svg] = one.1;
    // 6 series, 5 places, and the heading.
    assert_eq!(csv.lines().count(), 31);
    assert!(csv.starts_with("series,x,seed,rct_ms,flows,unfinished,link_hops,trace\n"), "{csv}");
    assert!(svg.starts_with("<svg") && svg.contains("RoCE with PFC") && svg.contains("senders M"));
    fs::remove_dir_all(folder).ok();
}
