//! The command as its user sees it: what it passes on, what it refuses and how. The programs are shells, so
//! no RDMA library is loaded; the client suites under tests/clients run real ones.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Output};

/// A directory with a file of the library's name: enough for programs that do not load it.
struct Library(PathBuf);

impl Library {
    fn new(name: &str) -> Library {
        let directory = std::env::temp_dir().join(format!("adverb-cli-{name}-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("libibverbs.so.1"), "").unwrap();
        Library(directory.canonicalize().unwrap())
    }

    fn adverb(&self, words: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_adverb"))
            .args(words)
            .env("ADVERB_LIB", &self.0)
            .env_remove("ADVERB")
            .env("LD_LIBRARY_PATH", "/usr/lib")
            .output()
            .unwrap()
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_status_and_the_output_are_the_commands_own() {
    let library = Library::new("status");
    for status in [0, 1, 42, 255] {
        let script = format!("echo out; echo err >&2; exit {status}");
        let output = library.adverb(&["run", "--address", "127.0.0.1", "--", "sh", "-c", &script]);
        assert_eq!(output.status.code(), Some(status));
        assert_eq!(text(&output.stdout), "out\n");
        assert!(text(&output.stderr).ends_with("err\n"));
    }
}

#[test]
fn death_by_a_signal_is_passed_on() {
    let library = Library::new("signal");
    let output = library.adverb(&["run", "--address", "127.0.0.1", "--", "sh", "-c", "kill -KILL $$"]);
    assert_eq!(output.status.signal(), Some(9));
}

#[test]
fn a_program_without_rdma_fails_where_rdma_is_expected() {
    let library = Library::new("expected");
    for (script, status, said) in [
        ("exit 0", 120, "no RDMA happened: no process opened the device"),
        ("exit 3", 3, "no RDMA happened: no process opened the device"),
    ] {
        let words =
            ["run", "--address", "127.0.0.1", "--facade", "off", "--expect-rdma", "--", "sh", "-c", script];
        let output = library.adverb(&words);
        assert_eq!(output.status.code(), Some(status), "{script}");
        assert!(text(&output.stderr).contains(said), "{}", text(&output.stderr));
    }
    for option in ["--expect-bytes=0", "--expect-bytes=many", "--metrics=localhost:1", "--metrics=70000"] {
        let output = library.adverb(&["run", option, "--", "sh", "-c", "echo ran"]);
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(2), String::new()), "{option}");
    }
}

#[test]
fn a_parent_passes_the_end_of_its_program_on() {
    let library = Library::new("parent");
    let run = |script: &str| {
        let words =
            ["run", "--address", "127.0.0.1", "--facade", "off", "--summary", "--", "sh", "-c", script];
        library.adverb(&words)
    };
    for status in [0, 1, 42, 255] {
        let output = run(&format!("echo out; exit {status}"));
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(status), "out\n".to_owned()));
        assert!(text(&output.stderr).contains("\ntotal "), "{}", text(&output.stderr));
    }
    for signal in [9, 15, 2, 11] {
        // Whoever runs this test in the background may have had SIGINT ignored for all that it starts.
        let script = format!("exec env --default-signal sh -c 'kill -{signal} $$'");
        assert_eq!(run(&script).status.signal(), Some(signal));
    }
    let output = library.adverb(&["run", "--address", "127.0.0.1", "--summary", "--", "no-such-program"]);
    assert_eq!(output.status.code(), Some(127));
}

#[test]
fn one_line_names_the_device_and_its_faults() {
    let library = Library::new("line");
    let words = ["run", "--address", "127.0.0.1", "--loss", "0.01", "--seed", "7", "--", "true"];
    let said = text(&library.adverb(&words).stderr);
    // A second line says how the device shows in sysfs and /dev, which depends on what the host allows.
    let (device, facade) = said.split_once('\n').expect("a line");
    assert_eq!(
        device,
        "adverb: adverb0 at 127.0.0.1 (lo, MTU 4096), RoCEv2, GID 0 ::ffff:127.0.0.1; loss 0.01, seed 7"
    );
    assert!(
        facade.starts_with("adverb: adverb0 shows in sysfs and /dev by ") && facade.lines().count() == 1,
        "{facade}"
    );
    let words = ["run", "--address", "127.0.0.1", "--facade", "off", "--", "true"];
    let said = text(&library.adverb(&words).stderr);
    assert_eq!(said, "adverb: adverb0 at 127.0.0.1 (lo, MTU 4096), RoCEv2, GID 0 ::ffff:127.0.0.1\n");
}

#[test]
fn the_program_sees_the_library_first_and_the_settings() {
    let library = Library::new("environment");
    let script = "echo $LD_LIBRARY_PATH; echo $ADVERB; echo $0";
    let words = ["run", "--address", "127.0.0.2", "--corrupt", "0.25", "--", "sh", "-c", script];
    let output = library.adverb(&words);
    let said = text(&output.stdout);
    let mut lines = said.lines();
    assert_eq!(lines.next(), Some(format!("{}:/usr/lib", library.0.display()).as_str()));
    let settings = lines.next().unwrap();
    assert!(settings.contains("127.0.0.2") && settings.contains("0.25"), "{settings}");
    assert_eq!(lines.next(), Some("sh"));
}

#[test]
fn refusals_are_one_line_with_a_status_of_their_own() {
    let library = Library::new("refusals");
    for (words, status, part) in [
        (vec!["run", "--address", "127.0.0.1", "--", "no-such-program"], 127, "no-such-program"),
        (vec!["run", "--address", "127.0.0.1", "--", "no-such-program"], 127, "no such command in PATH"),
        (
            vec!["run", "--address", "127.0.0.1", "--", "./missing"],
            127,
            "./missing: no such file; check the path",
        ),
        (vec!["run", "--address", "127.0.0.1", "--", "/etc/passwd/x"], 126, "Not a directory"),
        (vec!["run", "--address", "127.0.0.1", "--", "/etc/passwd"], 126, "/etc/passwd"),
        // TEST-NET-1 (RFC 5737): nobody's.
        (vec!["run", "--address", "192.0.2.1", "--", "true"], 1, "192.0.2.1"),
    ] {
        let output = library.adverb(&words);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{words:?}: {said}");
        assert!(said.starts_with("adverb: ") && said.contains(part) && said.lines().count() == 1, "{said}");
        assert_eq!(text(&output.stdout), "");
    }
    fs::remove_file(library.0.join("libibverbs.so.1")).unwrap();
    let output = library.adverb(&["run", "--address", "127.0.0.1", "--", "true"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("ADVERB_LIB="), "{}", text(&output.stderr));
}

#[test]
fn a_bad_option_is_refused_before_anything_runs() {
    let library = Library::new("options");
    let output = library.adverb(&["run", "--loss", "2", "--", "sh", "-c", "echo ran"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(text(&output.stdout), "");
    let said = text(&output.stderr);
    assert!(said.contains("--loss") && said.contains('2') && said.contains("from 0 to 1"), "{said}");
}

#[test]
fn devices_are_listed_for_people_and_for_programs() {
    let library = Library::new("devices");
    let output = library.adverb(&["devices", "--address", "127.0.0.1"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    for part in ["adverb0", "active", "lo", "4096", "::ffff:127.0.0.1"] {
        assert!(table.contains(part), "{part} is not in\n{table}");
    }
    let output = library.adverb(&["devices", "--address", "::1", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json[0]["name"], "adverb0");
    assert_eq!(json[0]["gids"][0], "::1");
}

#[test]
fn help_shows_every_option_and_an_example() {
    let library = Library::new("help");
    let said = text(&library.adverb(&["run", "--help"]).stdout);
    for part in [
        "--address",
        "--loss",
        "--duplicate",
        "--reorder",
        "--corrupt",
        "--delay",
        "--direction",
        "--seed",
        "--pcap",
        "--counters",
        "--trace",
        "--path",
        "Examples:",
        "ADVERB",
    ] {
        assert!(said.contains(part), "{part} is not in\n{said}");
    }
    assert!(text(&library.adverb(&["--help"]).stdout).contains("adverb run"));
}
