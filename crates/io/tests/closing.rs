//! A NIC that closes while the kernel has no room for what is staged: it waits for room, for a time, and says
//! what is lost. A socket of a switch's that is not read stands for a network that is slow.

mod common;

use adverb_io::Settings;
use adverb_nic::{QpType, SendData, SendFlags, SendOp, SendWr, UdAddress};
use adverb_os::sys::{ThreadState, thread_id, thread_state, wait_readable};
use adverb_os::unix::{Channel, Listener};
use adverb_os::via::{MESSAGE_MAX, Message};
use adverb_wire::{Gid, QpNumber};
use common::{Endpoint, Helper, folder, listen, role, say};
use std::fs::File;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What a queue pair may have open.
const OPEN_MAX: u64 = 256;
const LEN: usize = 4096;
/// More than any buffer of the kernel's takes.
const POSTED_MAX: u64 = (64 << 20) / LEN as u64;
const PATIENCE: Duration = Duration::from_secs(60);

/// The helper process: fills its way into the network, and closes its NIC when it is told to. Does nothing
/// when run as a test of its own.
#[test]
#[expect(clippy::disallowed_methods, reason = "how long the end takes")]
fn helper() {
    let Some(role) = role() else { return };
    let said = File::create(&role[1]).unwrap();
    // SAFETY: plain values, of descriptors that are open.
    assert_eq!(unsafe { libc::dup2(said.as_raw_fd(), 2) }, 2);
    let endpoint = Endpoint::with(Settings::parse(&role[0]).unwrap(), QpType::Ud);
    endpoint.start_ud();
    let (posted, mut done) = fill(&endpoint);
    say(&format!("{} {posted}", thread_id()));
    listen();
    say("closing");
    let begun = Instant::now();
    endpoint.host.close();
    let took = begun.elapsed();
    while endpoint.host.poll(endpoint.cq, 64, |_| done += 1).unwrap() > 0 {}
    say(&format!("{done} {}", took.as_millis()));
    listen();
}

fn post(endpoint: &Endpoint) {
    let dgid = Gid::from(IpAddr::from([10, 9, 0, 2]));
    let qpn = QpNumber::new(0x11_0011);
    let path = endpoint.host.resolve(dgid, qpn);
    let ud = UdAddress { dgid, qpn, qkey: 0x1234, traffic_class: 0, hop_limit: 64, path };
    let sges = [endpoint.sge(0, LEN.min(endpoint.host.device().active_mtu.bytes() as usize))];
    let flags = SendFlags { signaled: true, ..SendFlags::default() };
    let wr =
        SendWr { wr_id: 0, op: SendOp::Send, flags, data: SendData::Sges(&sges), ud: Some(ud), xrc_srqn: 0 };
    endpoint.host.post(|nic, now| nic.post_send(now, endpoint.qp, &wr)).unwrap();
}

/// Posts datagrams until none leaves any more; how many, and how many were done, as all are that are staged.
fn fill(endpoint: &Endpoint) -> (u64, u64) {
    let (mut posted, mut done) = (0, 0);
    while posted - done < OPEN_MAX {
        assert!(posted < POSTED_MAX, "the way is full at some time");
        post(endpoint);
        posted += 1;
        endpoint.host.poll(endpoint.cq, 64, |_| done += 1).unwrap();
    }
    (posted, done)
}

/// A program whose way is full, and the other end of that.
struct Full {
    folder: PathBuf,
    helper: Helper,
    channel: Channel,
    thread: u32,
    posted: u64,
}

impl Full {
    fn new(name: &str) -> Full {
        let folder = folder(&format!("closing-{name}"));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("sw.switch");
        let listener = Listener::bind(&path).unwrap();
        let settings = format!(
            "address=10.9.0.1,directory={0},via={1},counters={0}/counters,trace",
            folder.display(),
            path.display()
        );
        let mut helper = Helper::start(&[&settings, folder.join("said").to_str().unwrap()]);
        assert!(wait_readable(listener.fd(), PATIENCE), "it connects");
        let channel = listener.accept().unwrap();
        let mut buffer = vec![0; MESSAGE_MAX];
        assert!(wait_readable(channel.fd(), PATIENCE), "it says who it is");
        let (len, _) = channel.receive(&mut buffer).unwrap().unwrap();
        assert!(matches!(Message::parse(&buffer[..len]), Some(Message::Hello(_))));
        channel.send(&Message::Welcome { port: 0, decides: false }.emit(), &[]).unwrap();
        let [thread, posted] = numbers(&helper.hear());
        Full { folder, helper, channel, thread: thread as u32, posted }
    }

    fn close(&mut self) {
        self.helper.tell("close");
        assert_eq!(self.helper.hear(), "closing");
    }

    /// Reads to the end; how many frames that were.
    fn read_all(&self) -> u64 {
        let (mut frames, mut buffer) = (0, vec![0; MESSAGE_MAX]);
        loop {
            assert!(wait_readable(self.channel.fd(), PATIENCE), "it ends");
            let Ok(Some((len, _))) = self.channel.receive(&mut buffer) else { return frames };
            let Some(Message::Frames(of_it)) = Message::parse(&buffer[..len]) else { panic!("no frames") };
            frames += of_it.count() as u64;
        }
    }

    /// What it has counted, and what it has said.
    fn ended(self) -> (u64, String) {
        self.helper.end();
        let read = |name| std::fs::read_to_string(self.folder.join(name)).unwrap();
        let (counters, said) = (read("counters"), read("said"));
        std::fs::remove_dir_all(&self.folder).unwrap();
        let lost = counters.lines().find_map(|line| line.strip_prefix("drop_unsent ")).unwrap();
        (lost.parse().unwrap(), said)
    }
}

fn numbers(line: &str) -> [u64; 2] {
    let mut words = line.split(' ').map(|word| word.parse().unwrap());
    [(); 2].map(|()| words.next().unwrap())
}

/// Datagrams that were done have left before the NIC was closed, and those that waited behind them as well.
#[test]
#[expect(clippy::disallowed_methods, reason = "a test that hangs must end")]
fn a_nic_that_closes_waits_for_room() {
    let mut full = Full::new("room");
    full.close();
    let (pid, begun) = (full.helper.child.id(), Instant::now());
    // Until it waits, be it for room or, if it does not wait for that, for its end.
    while thread_state(pid, full.thread) != ThreadState::Sleeping {
        assert!(begun.elapsed() < PATIENCE, "it does not sleep");
        std::thread::yield_now();
    }
    let came = full.read_all();
    let [done, _] = numbers(&full.helper.hear());
    assert_eq!((came, done), (full.posted, full.posted), "came, done");
    let (lost, said) = full.ended();
    assert!(lost == 0 && !said.contains("lost"), "{lost} lost: {said}");
}

/// Where there is no room, the NIC closes all the same, counts what is lost, and says so.
#[test]
fn a_nic_that_closes_counts_what_there_was_no_room_for() {
    let mut full = Full::new("none");
    full.close();
    let [done, took_ms] = numbers(&full.helper.hear());
    assert!((500..20_000).contains(&took_ms), "{took_ms} ms");
    assert!(done < full.posted, "some were not even staged");
    let came = full.read_all();
    let (lost, said) = full.ended();
    assert!(lost > 0 && came + lost == done, "{came} came, {lost} lost, {done} done");
    let words =
        format!("adverb: {lost} frames are lost: the network had no room for them while the NIC closed");
    assert!(said.contains(&words), "{said}");
}
