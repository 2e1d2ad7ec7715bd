//! Two processes over the real loop: one endpoint each, and the lines by which they find each other.
#![allow(clippy::print_stdout, reason = "a test")]
#![allow(dead_code, reason = "each test file uses its part")]

use adverb_io::{Host, Settings};
use adverb_nic::{
    Access, AddressVector, Completion, CqId, MrInfo, MrInit, Mtu, PathId, QpAttr, QpAttrMask as M, QpCaps,
    QpId, QpInit, QpState, QpType, RecvWr, SendData, SendFlags, SendOp, SendWr, Sge, Status,
};
use adverb_os::sys::{ThreadState, thread_state};
use adverb_wire::{Gid, Psn, QpNumber};
use std::io::{BufRead, BufReader, Write};
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Bytes of an endpoint's registered memory.
pub const MEMORY: usize = 4 << 20;

/// What a peer must know.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Remote {
    pub gid: Gid,
    pub qpn: QpNumber,
    pub rkey: u32,
    pub addr: u64,
}

impl Remote {
    pub fn line(&self) -> String {
        format!("{} {} {} {}", self.gid.ip(), self.qpn.get(), self.rkey, self.addr)
    }

    pub fn parse(line: &str) -> Remote {
        let mut words = line.split_whitespace();
        let mut next = || words.next().expect("a word");
        Remote {
            gid: Gid::from(next().parse::<IpAddr>().unwrap()),
            qpn: QpNumber::new(next().parse().unwrap()),
            rkey: next().parse().unwrap(),
            addr: next().parse().unwrap(),
        }
    }
}

pub struct Endpoint {
    pub host: Arc<Host>,
    pub cq: CqId,
    pub qp: QpId,
    pub mr: MrInfo,
    pub memory: &'static [AtomicU64],
    pub events: Arc<AtomicU64>,
    /// Encoded acknowledgement timeout.
    timeout: u8,
}

/// Acknowledgement timeout where frames get lost, 34 ms, and where none does, 1 s: a peer may wait long for a
/// processor.
const TIMEOUTS: [u8; 2] = [13, 18];

impl Endpoint {
    pub fn open(settings: &str) -> Endpoint {
        Endpoint::with(Settings::parse(settings).unwrap(), QpType::Rc)
    }

    pub fn with(settings: Settings, qp_type: QpType) -> Endpoint {
        let timeout = TIMEOUTS[usize::from(settings.faults.loss == 0.0)];
        let events = Arc::new(AtomicU64::new(0));
        let seen = events.clone();
        let count = Box::new(move |_| {
            seen.fetch_add(1, Ordering::Relaxed);
        });
        let host = Host::open(&settings, count).unwrap_or_else(|e| panic!("{e}"));
        let memory: &'static [AtomicU64] =
            (0..MEMORY / 8).map(|_| AtomicU64::new(0)).collect::<Vec<_>>().leak();
        let addr = memory.as_ptr() as u64;
        let caps =
            QpCaps { max_send_wr: 256, max_recv_wr: 256, max_send_sge: 2, max_recv_sge: 2, max_inline: 64 };
        let (cq, qp, mr) = host.control(|nic, _| {
            let pd = nic.memory().alloc_pd().unwrap();
            let access =
                Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
            let init = MrInit { pd, addr, len: MEMORY as u64, iova: addr, access };
            // SAFETY: the memory is leaked, made of atomics, and so valid and shared for ever.
            let mr = unsafe { nic.memory().reg_mr(&init) }.unwrap();
            let cq = nic.create_cq(1024).unwrap();
            let init = QpInit {
                qp_type,
                pd: Some(pd),
                send_cq: Some(cq),
                recv_cq: Some(cq),
                srq: None,
                xrcd: None,
                sq_sig_all: true,
                caps,
            };
            (cq, nic.create_qp(&init).unwrap(), mr)
        });
        let endpoint = Endpoint { host, cq, qp, mr, memory, events, timeout };
        endpoint.init(matches!(qp_type, QpType::Ud | QpType::Gsi));
        endpoint
    }

    fn init(&self, has_qkey: bool) {
        let mask = M::STATE | M::PKEY_INDEX | M::PORT | if has_qkey { M::QKEY } else { M::ACCESS_FLAGS };
        self.modify(&self.attr(QpState::Init), mask);
    }

    /// A connection's queue pair ends its life, and begins another one with the same peer.
    pub fn connect_anew(&self, peer: &Remote) {
        self.modify(&self.attr(QpState::Reset), M::STATE);
        self.init(false);
        self.connect(peer);
    }

    pub fn remote(&self) -> Remote {
        let qpn = self.host.control(|nic, _| nic.qp_number(self.qp)).unwrap();
        let addr = self.memory.as_ptr() as u64;
        Remote { gid: self.host.device().gids[0], qpn, rkey: self.mr.rkey.0, addr }
    }

    fn attr(&self, state: QpState) -> QpAttr {
        QpAttr {
            state,
            cur_state: QpState::Reset,
            access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
            pkey_index: 0,
            port: 1,
            qkey: 0x1234,
            av: AddressVector::default(),
            path: PathId::DEFAULT,
            path_mtu: self.host.device().active_mtu.min(Mtu::M4096),
            timeout: 12,
            retry_cnt: 7,
            rnr_retry: 7,
            rq_psn: Psn::new(77),
            sq_psn: Psn::new(77),
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            min_rnr_timer: 1,
            dest_qpn: QpNumber::new(0),
            sqd_notify: false,
            sq_draining: false,
            caps: QpCaps::default(),
        }
    }

    fn modify(&self, attr: &QpAttr, mask: M) {
        self.host.control(|nic, now| nic.modify_qp(now, self.qp, attr, mask)).unwrap();
    }

    /// INIT to RTS of a reliable connection.
    pub fn connect(&self, peer: &Remote) {
        self.connect_with(peer, self.timeout, 7);
    }

    pub fn connect_with(&self, peer: &Remote, timeout: u8, retry_cnt: u8) {
        let path = self.host.resolve(peer.gid, peer.qpn);
        let av = AddressVector { dgid: peer.gid, hop_limit: 64, ..AddressVector::default() };
        let rtr = QpAttr { av, path, dest_qpn: peer.qpn, ..self.attr(QpState::Rtr) };
        let mask = M::STATE
            | M::AV
            | M::PATH_MTU
            | M::DEST_QPN
            | M::RQ_PSN
            | M::MAX_DEST_RD_ATOMIC
            | M::MIN_RNR_TIMER;
        self.modify(&rtr, mask);
        let rts = QpAttr { timeout, retry_cnt, ..self.attr(QpState::Rts) };
        let mask = M::STATE | M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::SQ_PSN | M::MAX_QP_RD_ATOMIC;
        self.modify(&rts, mask);
    }

    /// INIT to RTS of an unreliable connection.
    pub fn connect_unacknowledged(&self, peer: &Remote) {
        let path = self.host.resolve(peer.gid, peer.qpn);
        let av = AddressVector { dgid: peer.gid, hop_limit: 64, ..AddressVector::default() };
        let rtr = QpAttr { av, path, dest_qpn: peer.qpn, ..self.attr(QpState::Rtr) };
        self.modify(&rtr, M::STATE | M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN);
        self.modify(&self.attr(QpState::Rts), M::STATE | M::SQ_PSN);
    }

    /// INIT to RTS of a datagram queue pair.
    pub fn start_ud(&self) {
        self.modify(&self.attr(QpState::Rtr), M::STATE);
        self.modify(&self.attr(QpState::Rts), M::STATE | M::SQ_PSN);
    }

    pub fn sge(&self, offset: usize, len: usize) -> Sge {
        Sge { addr: self.memory.as_ptr() as u64 + offset as u64, len: len as u32, lkey: self.mr.lkey }
    }

    pub fn post(&self, wr_id: u64, op: SendOp, offset: usize, len: usize) {
        let flags = SendFlags { signaled: true, ..SendFlags::default() };
        let sges = [self.sge(offset, len)];
        let wr = SendWr { wr_id, op, flags, data: SendData::Sges(&sges), ud: None, xrc_srqn: 0 };
        self.host.post(|nic, now| nic.post_send(now, self.qp, &wr)).unwrap();
    }

    pub fn recv(&self, wr_id: u64, offset: usize, len: usize) {
        let sges = [self.sge(offset, len)];
        self.host.post(|nic, now| nic.post_recv(now, self.qp, &RecvWr { wr_id, sges: &sges })).unwrap();
    }

    /// Polls until `count` completions have come.
    #[expect(clippy::disallowed_methods, reason = "a test that hangs must end")]
    pub fn wait(&self, count: usize) -> Vec<Completion> {
        let start = Instant::now();
        let mut found = Vec::new();
        while found.len() < count {
            self.host.poll(self.cq, count - found.len(), |c| found.push(c)).unwrap();
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "{} of {count} completions\n{}",
                found.len(),
                self.host.counters_text()
            );
        }
        found
    }

    pub fn wait_ok(&self, count: usize) -> Vec<Completion> {
        let found = self.wait(count);
        for c in &found {
            assert_eq!(c.status, Status::Success, "{c:?}\n{}", self.host.counters_text());
        }
        found
    }

    pub fn run(&self, op: SendOp, offset: usize, len: usize) {
        self.post(1, op, offset, len);
        self.wait_ok(1);
    }

    pub fn fill(&self, offset: usize, len: usize, seed: u64) {
        for (i, byte) in self.bytes(offset, len).iter().enumerate() {
            byte.store(pattern(seed, i), Ordering::Relaxed);
        }
    }

    pub fn check(&self, offset: usize, len: usize, seed: u64) {
        for (i, byte) in self.bytes(offset, len).iter().enumerate() {
            assert_eq!(byte.load(Ordering::Relaxed), pattern(seed, i), "byte {i} of {len}");
        }
    }

    fn bytes(&self, offset: usize, len: usize) -> &'static [AtomicU8] {
        assert!(offset + len <= MEMORY);
        // SAFETY: inside the leaked memory; atomics of one byte share it with atomics of eight.
        unsafe { std::slice::from_raw_parts((self.memory.as_ptr() as *const AtomicU8).add(offset), len) }
    }

    pub fn counter(&self, name: &str) -> u64 {
        let text = self.host.counters_text();
        let line = text.lines().find(|line| line.split(' ').next() == Some(name));
        line.and_then(|line| line.split(' ').nth(1)).expect(name).parse().unwrap()
    }
}

fn pattern(seed: u64, index: usize) -> u8 {
    ((seed.wrapping_mul(31) + index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// A helper process: this test binary again, running only its test `helper` in a role.
pub struct Helper {
    pub child: Child,
    /// Closed to end it.
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

/// A test that fails leaves no process that works for ever.
impl Drop for Helper {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// The role that a helper process was given.
pub fn role() -> Option<Vec<String>> {
    std::env::var("ADVERB_IO_TEST_ROLE").ok().map(|r| r.split('|').map(str::to_owned).collect())
}

impl Helper {
    pub fn start(role: &[&str]) -> Helper {
        Helper::start_via(&std::env::var("ADVERB_IO_TEST_VIA").unwrap_or_default(), role)
    }

    /// Starts it by way of another command: `ip netns exec NAME` for another network namespace.
    pub fn start_via(via: &str, role: &[&str]) -> Helper {
        let own = std::env::current_exe().unwrap();
        let mut words = via.split_whitespace().map(std::ffi::OsStr::new).chain([own.as_os_str()]);
        let mut child = Command::new(words.next().expect("at least our own name"))
            .args(words)
            .args(["--exact", "helper", "--nocapture", "--test-threads=1"])
            .env("ADVERB_IO_TEST_ROLE", role.join("|"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Helper { child, stdin, stdout }
    }

    pub fn tell(&mut self, line: &str) {
        writeln!(self.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    /// The next line that the helper says with [`say`].
    pub fn hear(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.stdout.read_line(&mut line).unwrap() > 0, "the helper has ended");
            if let Some((_, said)) = line.split_once("@@ ") {
                return said.trim().to_owned();
            }
        }
    }

    /// Ends it; its last line.
    pub fn last_words(mut self) -> String {
        self.stdin = None;
        let said = self.hear();
        assert!(self.child.wait().unwrap().success());
        said
    }

    pub fn end(mut self) {
        self.stdin = None;
        assert!(self.child.wait().unwrap().success());
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: i32) {
        // SAFETY: plain values; the process is a child that has not been waited for.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }

    /// Stops it, and waits until none of its threads runs.
    #[expect(clippy::disallowed_methods, reason = "a test that hangs must end")]
    pub fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let (start, pid) = (Instant::now(), self.child.id());
        let is_stopped = |task: std::io::Result<std::fs::DirEntry>| {
            let tid = task.unwrap().file_name().to_str().unwrap().parse().unwrap();
            thread_state(pid, tid) == ThreadState::Stopped
        };
        while !std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().all(is_stopped) {
            assert!(start.elapsed() < Duration::from_secs(60), "it does not stop");
            std::thread::yield_now();
        }
    }

    /// Kills it, as its end does.
    pub fn kill(self) {}
}

/// A helper's line to its parent.
pub fn say(line: &str) {
    println!("@@ {line}");
}

/// A parent's line to its helper; sleeps until it comes. `None` when the parent has closed.
pub fn listen() -> Option<String> {
    let mut line = String::new();
    let n = std::io::stdin().lock().read_line(&mut line).unwrap();
    (n > 0).then(|| line.trim().to_owned())
}

/// An address of this host that no other run of the tests uses at the same time: without a directory in
/// common, two runs would take each other's frames.
pub fn local(test: u8, host: u8) -> String {
    format!("127.{}.{test}.{host}", 64 + std::process::id() % 191)
}

/// An empty folder for a test's directory of processes.
pub fn folder(name: &str) -> PathBuf {
    let path = PathBuf::from(format!("/dev/shm/adverb-io-test-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    path
}
