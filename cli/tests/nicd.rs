//! `adverb nicd` as its user sees it: ready, used by this process, and refusing what cannot be.
#![cfg(unix)]

use adverb_rma::{Rights, Rma, Settings};
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
}

#[test]
fn what_cannot_be_is_refused() {
    let folder = std::env::temp_dir().join(format!("adverb-nicd-refused-{}", std::process::id()));
    let here = address(2);
    for (words, reason) in [
        (&["--address", &here, "--window", "4095"][..], "below the 4096 bytes of one operation"),
        (
            &["--address", &here, "--quota", "2000"],
            "slot quota of a process: none, or more than the table has",
        ),
        (&["--address", &here, "--user-quota", "1:2000:0"], "slot quota of a process"),
        (&["--address", &here, "--user-quota", "1:2"], "want user, slots and priority"),
        (&["--address", &here, "--mode", "999"], "want three octal digits"),
        (&["--address", "192.0.2.1"], "cannot be bound"),
    ] {
        let output = command(&folder, words).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && text.contains(reason), "{words:?}: {text}");
    }
    let _ = std::fs::remove_dir_all(folder);
}
