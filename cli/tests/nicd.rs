//! `adverb nicd` as its user sees it: ready, used by this process, and refusing what cannot be.
#![cfg(unix)]

use adverb_rma::{Grant, Op, RegionId, Rights, Rma, Settings};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

struct Daemon(Child, PathBuf);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        let _ = std::fs::remove_dir_all(&self.1);
    }
}

fn command(folder: &std::path::Path, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_adverb"));
    command.arg("nicd").args(words);
    command.arg("--state").arg(folder).arg("--socket").arg(folder.join("socket"));
    command
}

/// An address that no other run of this test uses.
fn address(host: u8) -> String {
    let [.., high, low] = std::process::id().to_be_bytes();
    format!("127.{}.{low}.{host}", 128 + high % 64)
}

#[test]
fn a_process_attaches_and_uses_it() {
    let folder = std::env::temp_dir().join(format!("adverb-nicd-{}", std::process::id()));
    let mut child = command(&folder, &["--address", &address(1), "--quota", "16"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    let _daemon = Daemon(child, folder.clone());
    assert!(ready.starts_with(&format!("1RMA NIC of {} ready at ", address(1))), "{ready}");
    let rma = Rma::open(Settings::attached(folder.join("socket"))).unwrap();
    let (far, near) = (rma.allocate(10_000).unwrap(), rma.allocate(10_000).unwrap());
    far.write(0, &[7; 10_000]);
    let region = far.register(0..10_000, Rights::READ).unwrap();
    let grant = region.grant(rma.address(), rma.pid(), Rights::READ).unwrap();
    rma.block_on(rma.read(&grant, 0, &near, 0..10_000)).unwrap();
    assert_eq!(near.to_vec(0..10_000), [7; 10_000]);

    // With a key for something else, and under a name that is nobody's.
    let wrong = |region: RegionId, op| {
        let key = grant.key(Op::Read).unwrap().clone();
        Grant::new(rma.address().into(), region, 64).with_key(op, key)
    };
    let guessed = RegionId::from_wire(0x0005_0077);
    rma.block_on(rma.write(&wrong(region.id(), Op::Write), 0, &near, 0..64)).unwrap_err();
    rma.block_on(rma.read(&wrong(guessed, Op::Read), 0, &near, 0..64)).unwrap_err();
    let shown = command(&folder, &["--show-counters"]).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    for line in ["requests 3", "reads_served 3", "requests_unauthentic 1", "requests_unknown_region 1"] {
        assert!(shown.lines().any(|shown| shown == line), "{line}: {shown}");
    }
    for name in ["drop_unauthentic", "parse_length", "driver_rx_datagrams", "nicd_misbehaved"] {
        assert!(shown.lines().any(|line| line == format!("{name} 0") || line.starts_with(name)), "{name}");
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let folder = std::env::temp_dir().join(format!("adverb-nicd-refused-{}", std::process::id()));
    let here = address(2);
    for (words, reason) in [
        (&["--address", &here, "--window", "4095"][..], "--window 4095: give 4096 to "),
        (
            &["--address", &here, "--quota", "2000"],
            "--quota 2000: give 1 to 1024; the NIC has as many slots (--slots)",
        ),
        (&["--address", &here, "--per-user-slots", "0"], "--per-user-slots 0: give 1 to 1024"),
        (&["--address", &here, "--user-quota", "1:2000:0"], "--user-quota 1:2000:0: give 1 to 1024"),
        (&["--address", &here, "--user-quota", "1:2:7"], "--user-quota 1:2:7: give 0 to 3; a priority"),
        (&["--address", &here, "--region-quota", "0"], "--region-quota 0: give 1 to 1024"),
        (&["--quota", "16"], "--address <ADDRESS>"),
        (&["--show-counters"], "start `adverb nicd`"),
        (&["--address", &here, "--user-quota", "1:2"], "want user, slots and priority"),
        (&["--address", &here, "--mode", "999"], "want three octal digits"),
        (&["--address", "192.0.2.1"], "cannot be bound"),
    ] {
        let output = command(&folder, words).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && text.contains(reason), "{words:?}: {text}");
    }
    std::fs::remove_file(folder.join("socket")).unwrap_or_default();
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("socket"), "a letter").unwrap();
    let output = command(&folder, &["--address", &here]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("no socket is there, and stays"), "{said}");
    assert_eq!(std::fs::read_to_string(folder.join("socket")).unwrap(), "a letter");
    let _ = std::fs::remove_dir_all(folder);
}
