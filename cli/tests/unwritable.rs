//! Standard error and standard output that cannot be written, a full device and a pipe without a reader: no
//! command ends by that, and none says that all is well when its answer is lost.

use adverb_os::unix::Channel;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

fn full() -> Stdio {
    OpenOptions::new().write(true).open("/dev/full").unwrap().into()
}

fn closed() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

/// A folder that goes when the test ends.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("adverb-unwritable-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_program_runs_and_ends_as_ever() {
    let library = Folder::new("run");
    std::fs::write(library.0.join("libibverbs.so.1"), "").unwrap();
    for stderr in [full, closed] {
        for (program, status) in [("sh", 42), ("no-such-program", 127)] {
            let ended = Command::new(env!("CARGO_BIN_EXE_adverb"))
                .args(["run", "--address", "127.0.0.1", "--", program, "-c", "exit 42"])
                .env("ADVERB_LIB", &library.0)
                .stderr(stderr())
                .status()
                .unwrap();
            assert_eq!(ended.code(), Some(status), "{ended:?}");
        }
    }
}

#[test]
fn an_answer_that_is_lost_is_a_failure() {
    for stdout in [full, closed] {
        let ended = Command::new(env!("CARGO_BIN_EXE_adverb"))
            .args(["devices", "--address", "127.0.0.1"])
            .stdout(stdout())
            .stderr(full())
            .status()
            .unwrap();
        assert_eq!(ended.code(), Some(1), "{ended:?}");
    }
}

struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn nicd(folder: &Path, host: u8) -> Command {
    let [.., high, low] = std::process::id().to_be_bytes();
    let mut command = Command::new(env!("CARGO_BIN_EXE_adverb"));
    command.args(["nicd", "--address", &format!("127.{}.{low}.{host}", 192 + high % 32)]);
    command.arg("--state").arg(folder).arg("--socket").arg(folder.join("socket"));
    command
}

/// Until the daemon listens.
#[expect(clippy::disallowed_methods, reason = "a test that hangs must end")]
fn connected(socket: &Path) -> Channel {
    let begun = std::time::Instant::now();
    loop {
        match Channel::connect(socket, 10) {
            Ok(channel) => return channel,
            Err(error) => assert!(begun.elapsed() < Duration::from_secs(60), "{error}"),
        }
        std::thread::yield_now();
    }
}

/// Says what is no word of the protocol, and waits until the daemon has let go.
fn misbehave(socket: &Path) {
    let channel = connected(socket);
    channel.send(&[0xee; 100], &[]).unwrap();
    let mut answer = [0; 4096];
    while let Ok(Some(_)) = channel.receive(&mut answer) {}
}

#[test]
fn the_daemon_serves_on() {
    for (host, output) in [(1, full as fn() -> Stdio), (2, closed)] {
        let folder = Folder::new(&format!("nicd{host}"));
        let socket = folder.0.join("socket");
        let child = nicd(&folder.0, host).stdout(output()).stderr(output()).spawn().unwrap();
        let mut daemon = Daemon(child);
        misbehave(&socket);
        misbehave(&socket);
        let counters = adverb_rma::nicd::counters(&socket).unwrap();
        assert!(counters.contains(&("nicd_misbehaved", 2)), "{counters:?}");
        assert_eq!(daemon.0.try_wait().unwrap(), None, "it runs");
    }
}

/// Who breaks the protocol as often as it can fills no disk.
#[test]
fn complaints_are_few() {
    let folder = Folder::new("complaints");
    let socket = folder.0.join("socket");
    let mut child = nicd(&folder.0, 3).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let stderr = child.stderr.take().unwrap();
    let daemon = Daemon(child);
    let (said, lines) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        BufReader::new(stderr).lines().map_while(Result::ok).for_each(|line| said.send(line).unwrap());
    });
    (0..100).for_each(|_| misbehave(&socket));
    let counters = adverb_rma::nicd::counters(&socket).unwrap();
    assert!(counters.contains(&("nicd_misbehaved", 100)), "{counters:?}");
    drop(daemon);
    reader.join().unwrap();
    let lines: Vec<String> = lines.into_iter().collect();
    assert!(lines.iter().all(|line| line.contains("broke the protocol")), "{lines:?}");
    // Ten in a minute, and a busy machine may need two of these.
    assert!((10..=20).contains(&lines.len()), "{lines:?}");
}
