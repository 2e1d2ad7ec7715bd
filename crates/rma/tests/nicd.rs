//! The NIC as a process of its own, and applications that use it: all real processes. A child is this program again, told by its environment which part to play.
#![expect(clippy::disallowed_methods, reason = "tests of real time")]

mod common;

use adverb_rma::nicd::{Nicd, NicdQuota, NicdSettings};
use adverb_rma::{
    End, Error, Grant, Memory, Op, OpenError, Outcome, Retry, Rights, Rma, Settings, TransferError,
};
use common::*;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

const LEN: usize = 1 << 20;
const PART: &str = "ADVERB_TEST_PART";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap()).collect()
}

/// A child's part: a daemon, or an application with a line of output for each line of input.
#[test]
fn part() {
    let Some(part) = std::env::var_os(PART) else { return };
    let part = part.into_string().unwrap();
    let words: Vec<&str> = part.split(' ').collect();
    match words[..] {
        ["daemon", address, folder, slots] => daemon(address, folder, slots.parse().unwrap()),
        ["application", socket] => application(Path::new(socket)),
        ["vandal", socket, how] => vandal(Path::new(socket), how),
        _ => panic!("{part}"),
    }
}

fn daemon(address: &str, folder: &str, slots: u32) {
    let folder = PathBuf::from(folder);
    let nic = Settings { state: Some(folder.clone()), ..Settings::new(address.parse().unwrap()) };
    let nic = patient(nic);
    let quota = NicdQuota { slots, priority: 0, regions: 32 };
    let socket = folder.join(format!("{address}.socket"));
    let settings = NicdSettings { nic, socket, mode: 0o600, quota, quota_by_user: Vec::new() };
    let mut nicd = Nicd::open(settings).unwrap();
    println!("\nready");
    nicd.serve();
}

/// Owns a region, and reads others' on demand.
fn application(socket: &Path) {
    let rma = Rma::open(Settings::attached(socket)).unwrap();
    let memory = rma.allocate(LEN).unwrap();
    memory.write(0, &pattern(LEN));
    let region = memory.register(0..LEN, Rights::READ | Rights::WRITE).unwrap();
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let answer = match words[..] {
            ["name"] => format!("{} {}", rma.address(), rma.pid()),
            ["grant", address, pid] => {
                let (peer, pid) = (address.parse().unwrap(), pid.parse().unwrap());
                hex(&region.grant(peer, pid, Rights::READ | Rights::WRITE).unwrap().to_bytes())
            }
            // A child that lives on with everything that this process has open.
            ["fork"] => {
                // SAFETY: the child only sleeps until it is killed.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    loop {
                        // SAFETY: takes nothing.
                        unsafe { libc::pause() };
                    }
                }
                child.to_string()
            }
            ["bytes"] => hex(&memory.to_vec(0..16)),
            // Reads for ever, and says nothing.
            ["load", grant] => {
                let grant = Grant::from_bytes(&unhex(grant)).unwrap();
                println!("\n= under load");
                loop {
                    let reads = (0..8).map(|_| rma.read(&grant, 0, &memory, 0..LEN));
                    rma.block_on(all(reads));
                }
            }
            ["read", grant] => {
                let grant = Grant::from_bytes(&unhex(grant)).unwrap();
                let near = rma.allocate(64).unwrap();
                match rma.block_on(rma.read(&grant, 0, &near, 0..64)) {
                    Ok(_) => hex(&near.to_vec(0..16)),
                    Err(error) => error.to_string(),
                }
            }
            _ => panic!("{line}"),
        };
        println!("\n= {answer}");
    }
}

/// What a program can do to its own connection and memory without the library.
fn vandal(socket: &Path, how: &str) {
    let raw = raw::Raw::attach(socket);
    match how {
        "commands" => raw.post_garbage(),
        "overrun" => raw.overrun(),
        "slot" => raw.post_foreign_slot(),
        "packet" => raw.send_garbage(),
        "silent" => {}
        _ => panic!("{how}"),
    }
    println!("\n= done");
    // Until it is killed, or let go.
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    println!("\n= {}", raw.is_let_go());
    std::io::stdin().read_line(&mut line).unwrap();
}

/// The daemon's protocol, spoken by hand; `nicd/protocol.rs` describes it.
mod raw {
    use std::fs::File;
    use std::io::{Read, Seek, SeekFrom, Write};
    use std::mem::{size_of, zeroed};
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;

    pub struct Raw {
        channel: OwnedFd,
        board: File,
        doorbell: File,
        slots: Vec<u32>,
    }

    impl Raw {
        pub fn attach(socket: &Path) -> Raw {
            // SAFETY: all zeroes is a valid address; every pointer below is to something that outlives its call.
            unsafe {
                let fd = libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0);
                let channel = OwnedFd::from_raw_fd(fd);
                let mut name: libc::sockaddr_un = zeroed();
                name.sun_family = libc::AF_UNIX as u16;
                for (to, from) in name.sun_path.iter_mut().zip(socket.as_os_str().as_bytes()) {
                    *to = *from as libc::c_char;
                }
                let len = size_of::<libc::sockaddr_un>() as u32;
                assert_eq!(libc::connect(fd, (&raw const name).cast(), len), 0);
                let hello = [&[1u8][..], &1u32.to_le_bytes(), &4u32.to_le_bytes()].concat();
                assert_eq!(libc::send(fd, hello.as_ptr().cast(), hello.len(), 0), hello.len() as isize);
                let mut packet = [0u8; 4096];
                let mut control = [0u64; 8];
                let mut piece = libc::iovec { iov_base: packet.as_mut_ptr().cast(), iov_len: packet.len() };
                let mut header: libc::msghdr = zeroed();
                (header.msg_iov, header.msg_iovlen) = (&raw mut piece, 1);
                (header.msg_control, header.msg_controllen) = (control.as_mut_ptr().cast(), 64);
                let len = libc::recvmsg(fd, &mut header, 0);
                assert!(
                    len > 29 && packet[0] == 0,
                    "let in: {}",
                    String::from_utf8_lossy(&packet[..len as usize])
                );
                let data = libc::CMSG_DATA(libc::CMSG_FIRSTHDR(&header)).cast::<i32>();
                let [board, doorbell, _bell] =
                    [0, 1, 2].map(|i| File::from_raw_fd(data.add(i).read_unaligned()));
                let word = |at: usize| u32::from_le_bytes(packet[at..at + 4].try_into().unwrap());
                let slots = (0..word(21) as usize).map(|i| word(29 + 4 * i)).collect();
                Raw { channel, board, doorbell, slots }
            }
        }

        fn write(&self, at: u64, bytes: &[u8]) {
            let mut file = &self.board;
            file.seek(SeekFrom::Start(at)).unwrap();
            file.write_all(bytes).unwrap();
        }

        fn post(&self, slots: &[u32], posted: u64) {
            for (i, slot) in slots.iter().enumerate() {
                self.write(256 + 8 * i as u64, &(*slot as u64).to_le_bytes());
            }
            self.write(128, &posted.to_le_bytes());
            (&self.doorbell).write_all(&1u64.to_ne_bytes()).unwrap();
        }

        /// Four slots: two rings of four words, then the commands. Waits until each was refused.
        pub fn post_garbage(&self) {
            for i in 0..4u64 {
                let garbage: Vec<u8> = (0..64).map(|k| (k * 37 + i * 11 + 3) as u8).collect();
                self.write(320 + 64 * i, &garbage);
            }
            self.post(&self.slots, 4);
            let mut refused = [0; 8];
            while u64::from_le_bytes(refused) < 4 {
                let mut file = &self.board;
                file.seek(SeekFrom::Start(192)).unwrap();
                file.read_exact(&mut refused).unwrap();
            }
            // It cannot take the memory away from under the daemon either.
            assert!(self.board.set_len(0).is_err());
        }

        pub fn overrun(&self) {
            self.post(&self.slots, u64::MAX / 2);
        }

        pub fn post_foreign_slot(&self) {
            let foreign = (0..).find(|slot| !self.slots.contains(slot)).unwrap();
            self.post(&[foreign], 1);
        }

        pub fn send_garbage(&self) {
            // SAFETY: bytes of that length.
            unsafe { libc::send(self.channel.as_raw_fd(), [99u8; 40].as_ptr().cast(), 40, 0) };
        }

        /// Whether the daemon has closed the connection.
        pub fn is_let_go(&self) -> bool {
            let mut byte = 0u8;
            let patience = libc::timeval { tv_sec: 2, tv_usec: 0 };
            // SAFETY: a timeval, and room for one byte, that live here.
            unsafe {
                let (fd, size) = (self.channel.as_raw_fd(), size_of::<libc::timeval>() as u32);
                let value = (&raw const patience).cast();
                libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, value, size);
                libc::recv(fd, (&raw mut byte).cast(), 1, 0) == 0
            }
        }
    }
}

struct Part {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Part {
    fn start(part: String) -> Part {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "part", "--nocapture"])
            .env(PART, part)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Part { child, input, output: BufReader::new(output) }
    }

    fn daemon(folder: &Folder, test: u8, host: u8, slots: u32) -> Part {
        let address = address(test, host);
        let mut part = Part::start(format!("daemon {address} {} {slots}", folder.0.display()));
        part.answer("ready");
        part
    }

    fn application(socket: &Path) -> Part {
        Part::start(format!("application {}", socket.display()))
    }

    fn vandal(socket: &Path, how: &str) -> Part {
        let mut part = Part::start(format!("vandal {} {how}", socket.display()));
        part.answer("= ");
        part
    }

    fn answer(&mut self, prefix: &str) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the child ended");
            if let Some(rest) = line.trim_end_matches('\n').strip_prefix(prefix) {
                return rest.to_owned();
            }
        }
    }

    fn ask(&mut self, line: &str) -> String {
        writeln!(self.input, "{line}").unwrap();
        self.answer("= ")
    }

    fn grant_for(&mut self, user: &Rma) -> Grant {
        Grant::from_bytes(&unhex(&self.ask(&format!("grant {} {}", user.address(), user.pid())))).unwrap()
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn socket(folder: &Folder, test: u8, host: u8) -> PathBuf {
    folder.0.join(format!("{}.socket", address(test, host)))
}

fn outcome(result: Result<adverb_rma::Report, TransferError>) -> End {
    match result {
        Ok(report) => report.end,
        Err(error) => error.report().unwrap_or_else(|| panic!("{error}")).end,
    }
}

fn read_all(rma: &Rma, grant: &Grant, near: &Memory) -> Result<adverb_rma::Report, TransferError> {
    rma.block_on(rma.read(grant, 0, near, 0..LEN).retry(Retry::times(3)))
}

/// Whether a region is refused, at once or after the turn that the daemon may need to hear of a death.
fn is_gone(user: &Rma, grant: &Grant, near: &Memory) -> bool {
    let start = Instant::now();
    loop {
        let end = outcome(user.block_on(user.read(grant, 0, near, 0..64)));
        let refused = end == End::Outcome(Outcome::RemoteAuthenticationFailure);
        if refused || start.elapsed() > Duration::from_secs(2) {
            return refused;
        }
    }
}

#[test]
fn applications_share_a_nic_and_reach_others() {
    let folder = Folder::new("share");
    let _daemons = [1, 2].map(|host| Part::daemon(&folder, 30, host, 64));
    let user = Rma::open(Settings::attached(socket(&folder, 30, 1))).unwrap();
    assert_eq!((user.address(), user.pid()), (address(30, 1), std::process::id()));
    let near = user.allocate(LEN).unwrap();
    // One at the other daemon, and one at the same.
    for host in [2, 1] {
        let mut owner = Part::application(&socket(&folder, 30, host));
        let name = owner.ask("name");
        assert_eq!(name, format!("{} {}", address(30, host), owner.child.id()));
        let grant = owner.grant_for(&user);
        near.write(0, &[0; LEN]);
        read_all(&user, &grant, &near).unwrap();
        assert_eq!(near.to_vec(0..LEN), pattern(LEN));
        near.write(0, b"from another one");
        block_on(user.write(&grant, 0, &near, 0..16).retry(Retry::times(3))).unwrap();
        assert_eq!(unhex(&owner.ask("bytes")), b"from another one");
        // The grant is this process's: in another process's hands, on the same NIC, it opens nothing.
        let mut thief = Part::application(&socket(&folder, 30, 1));
        let stolen = format!("read {}", hex(&grant.to_bytes()));
        assert_eq!(thief.ask(&stolen), "REMOTE_AUTHENTICATION_FAILURE");
    }
    let (nic, _) = user.counters();
    assert!(nic.ops_ok > 250 && nic.reads_served > 250, "the daemon's counters: {nic:?}");

    // Own mistakes are told, and nothing else is disturbed.
    let far = user.allocate(4096).unwrap();
    assert!(matches!(far.register(0..4097, Rights::READ), Err(Error::Range)));
    let mut regions = Vec::new();
    let refused = loop {
        match far.register(0..4096, Rights::READ) {
            Ok(region) => regions.push(region),
            Err(error) => break error,
        }
    };
    assert!(refused.to_string().contains("quota of 32 regions"), "{refused}");
    assert_eq!(regions.len(), 30, "two memories are there too");
    drop(regions);
    assert!(far.register(0..4096, Rights::READ).is_ok());
    let again = Rma::open(Settings::attached(socket(&folder, 30, 1))).map(drop).unwrap_err();
    assert!(again.to_string().contains("attached already"), "{again}");
    drop(user);
    assert!(
        Rma::open(Settings::attached(socket(&folder, 30, 1))).is_ok(),
        "once it has left it may come again"
    );
}

#[test]
fn a_killed_application_leaves_nothing_behind() {
    let folder = Folder::new("leaves");
    // Slots for two at a time: a third finds room only if a dead one's are free.
    let _daemon = Part::daemon(&folder, 31, 1, 512);
    let path = socket(&folder, 31, 1);
    let user = Rma::open(Settings { slots: 512, ..Settings::attached(&path) }).unwrap();
    let near = user.allocate(LEN).unwrap();
    for _ in 0..3 {
        let mut owner = Part::application(&path);
        let grant = owner.grant_for(&user);
        read_all(&user, &grant, &near).unwrap();
        // Killed in the middle of its own transfers and of this process's.
        let mine = near.register(0..LEN, Rights::READ).unwrap();
        let theirs = mine.grant(user.address(), owner.child.id(), Rights::READ).unwrap();
        owner.ask(&format!("load {}", hex(&theirs.to_bytes())));
        let start = Instant::now();
        let end = user.block_on(async {
            let mut read = Box::pin(user.read(&grant, 0, &near, 0..LEN));
            std::future::poll_fn(|context| {
                assert!(read.as_mut().poll(context).is_pending());
                std::task::Poll::Ready(())
            })
            .await;
            owner.kill();
            outcome(read.await)
        });
        // Its region is gone at once: an answer, not a silence; unless the read was quicker than the kill.
        let gone = End::Outcome(Outcome::RemoteAuthenticationFailure);
        assert!(end == gone || end.is_ok(), "{end}");
        assert!(start.elapsed() < Duration::from_secs(2));
        assert!(is_gone(&user, &grant, &near));
    }
}

#[test]
fn a_dead_application_is_gone_even_if_its_child_lives() {
    let folder = Folder::new("child");
    let _daemon = Part::daemon(&folder, 35, 1, 16);
    let path = socket(&folder, 35, 1);
    let user = Rma::open(Settings::attached(&path)).unwrap();
    let near = user.allocate(LEN).unwrap();
    let mut owner = Part::application(&path);
    let grant = owner.grant_for(&user);
    let child: i32 = owner.ask("fork").parse().unwrap();
    user.block_on(user.read(&grant, 0, &near, 0..64)).unwrap();
    owner.kill();
    let gone = is_gone(&user, &grant, &near);
    // SAFETY: the process that the owner forked for this test.
    unsafe { libc::kill(child, libc::SIGKILL) };
    assert!(gone);
}

#[test]
fn vandals_hurt_only_themselves() {
    let folder = Folder::new("vandals");
    let _daemon = Part::daemon(&folder, 32, 1, 16);
    let path = socket(&folder, 32, 1);
    let user = Rma::open(Settings::attached(&path)).unwrap();
    let near = user.allocate(LEN).unwrap();
    let mut owner = Part::application(&path);
    let grant = owner.grant_for(&user);
    for (how, let_go) in
        [("commands", false), ("overrun", true), ("slot", true), ("packet", true), ("silent", false)]
    {
        let mut vandal = Part::vandal(&path, how);
        near.write(0, &[0; LEN]);
        read_all(&user, &grant, &near).unwrap();
        assert_eq!(near.to_vec(0..LEN), pattern(LEN), "{how}");
        assert_eq!(vandal.ask(""), let_go.to_string(), "{how}");
        vandal.kill();
        read_all(&user, &grant, &near).unwrap();
    }
}

#[test]
fn a_dead_daemon_ends_everything_and_its_successor_serves() {
    let folder = Folder::new("daemon");
    let path = socket(&folder, 33, 1);
    assert!(matches!(Rma::open(Settings::attached(&path)).map(drop), Err(OpenError::Daemon(..))));
    let mut daemon = Part::daemon(&folder, 33, 1, 16);
    let user = Rma::open(Settings::attached(&path)).unwrap();
    let near = user.allocate(LEN).unwrap();
    let region = near.register(0..LEN, Rights::READ).unwrap();
    let grant = region.grant(user.address(), user.pid(), Rights::READ).unwrap();
    // To itself, through the NIC and its socket.
    let far = user.allocate(64).unwrap();
    near.write(0, b"self");
    user.block_on(user.read(&grant, 0, &far, 0..64)).unwrap();
    assert_eq!(far.to_vec(0..4), b"self");
    // To somebody who does not answer, so that it is under way when the daemon dies.
    let key = grant.key(Op::Read).unwrap().clone();
    let silent = Grant::new(address(33, 19).into(), grant.region(), 64).with_key(Op::Read, key);
    let mut read = Box::pin(user.read(&silent, 0, &far, 0..64));
    block_on(std::future::poll_fn(|context| {
        assert!(read.as_mut().poll(context).is_pending());
        std::task::Poll::Ready(())
    }));
    daemon.kill();
    assert_eq!(outcome(block_on(read)), End::Abandoned);
    assert!(matches!(user.allocate(1), Err(Error::Closed)));
    assert!(matches!(region.rotate_random(), Err(Error::Closed)));
    // A socket that nobody listens at is replaced.
    let _daemon = Part::daemon(&folder, 33, 1, 16);
    let user = Rma::open(Settings::attached(&path)).unwrap();
    assert!(user.allocate(1).is_ok());
}

/// `cargo test -p adverb-rma --release --features benchmark-only-cleartext --test nicd without_encryption`
#[test]
#[cfg(all(feature = "benchmark-only-cleartext", not(debug_assertions)))]
fn a_release_build_without_encryption_serves_nobody() {
    let folder = Folder::new("cleartext");
    let (nic, socket) = (settings(&folder, 36, 1), folder.0.join("socket"));
    let quota = NicdQuota { slots: 16, priority: 0, regions: 16 };
    let settings = NicdSettings { nic, socket, mode: 0o600, quota, quota_by_user: Vec::new() };
    let refused = Nicd::open(settings).map(drop).unwrap_err().to_string();
    assert!(refused.contains("benchmark-only-cleartext"), "{refused}");
}

#[test]
fn quotas_that_cannot_be_are_refused() {
    let folder = Folder::new("quotas");
    let open = |quota: NicdQuota| {
        let nic = settings(&folder, 34, 1);
        let socket = folder.0.join("socket");
        Nicd::open(NicdSettings { nic, socket, mode: 0o600, quota, quota_by_user: Vec::new() })
            .map(drop)
            .unwrap_err()
            .to_string()
    };
    let good = NicdQuota { slots: 16, priority: 0, regions: 16 };
    assert!(open(NicdQuota { slots: 5000, ..good }).contains("slot quota of a process"));
    assert!(open(NicdQuota { slots: 0, ..good }).contains("slot quota of a process"));
    assert!(open(NicdQuota { priority: 4, ..good }).contains("priority of a process: 0 to 3"));
    assert!(open(NicdQuota { regions: 5000, ..good }).contains("region quota of a process"));
}
