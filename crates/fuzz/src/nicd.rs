//! The daemon that owns a host's 1RMA NIC: what an application may send it on its socket, with and without
//! memory, and what it may write into the board that they share. The daemon runs on a thread of its own, as
//! itself.

use crate::frames::{Step, input, steps};
use crate::{Seen, Target};
use adverb_rma::Settings;
use adverb_rma::nicd::{Nicd, NicdQuota, NicdSettings, NicdShare};
use std::fs::File;
use std::io::Write;
use std::mem::{size_of, zeroed};
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The daemon answers within this, or something holds it up.
const PATIENCE_S: i64 = 20;
const SLOTS: u32 = 4;
const MEMORY: u64 = 1 << 16;
const PACKET_MAX: usize = 1 << 15;
/// Kinds of requests; the protocol's own numbers.
const NAMES: [(u8, &str); 9] = [
    (1, "hello"),
    (2, "allocate"),
    (3, "free"),
    (4, "register"),
    (5, "deregister"),
    (6, "derive"),
    (7, "rotate"),
    (8, "counters"),
    // Not a request: commands on the board.
    (0, "commands"),
];

struct Daemon {
    socket: PathBuf,
    /// Of its protocol, as it says itself.
    version: u32,
}

/// Starts the daemon once.
fn daemon() -> &'static Daemon {
    static DAEMON: OnceLock<Daemon> = OnceLock::new();
    DAEMON.get_or_init(|| {
        // As every Rust program has it from its start; libFuzzer's own `main` leaves it as the system does.
        // SAFETY: plain values.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
        let folder = std::env::temp_dir().join(format!("adverb-fuzz-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder in the temporary directory");
        let [.., high, low] = std::process::id().to_be_bytes();
        let address = IpAddr::from([127, 128 + high % 64, low, 1]);
        let socket = folder.join("socket");
        let nic = Settings { state: Some(folder), ..Settings::new(address) };
        let quota = NicdQuota { slots: SLOTS, priority: 0, regions: 32 };
        let at = socket.clone();
        let share = NicdShare::of(&nic.nic, 0o600);
        let settings = NicdSettings { nic, socket: at, mode: 0o600, quota, quota_by_user: Vec::new(), share };
        let (ready, opened) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut nicd = Nicd::open(settings).expect("an address of this process's own");
            ready.send(()).expect("somebody waits for it");
            nicd.serve()
        });
        opened.recv().expect("the daemon opens");
        let version = version(&socket);
        Daemon { socket, version }
    })
}

/// The daemon refuses a version that does not exist, and says which it speaks.
fn version(socket: &Path) -> u32 {
    let channel = Channel::connect(socket);
    channel.say(&[&[1][..], &u32::MAX.to_le_bytes(), &SLOTS.to_le_bytes()].concat(), None);
    let (answer, _) = channel.hear();
    let text = String::from_utf8_lossy(&answer).into_owned();
    let number = text.split("version ").nth(1).and_then(|rest| rest.split(' ').next());
    channel.leave();
    number.and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("no version in: {text}"))
}

/// An application's end of the socket.
struct Channel(OwnedFd);

impl Channel {
    fn connect(socket: &Path) -> Channel {
        let patience = libc::timeval { tv_sec: PATIENCE_S, tv_usec: 0 };
        // SAFETY: all zeroes is a valid address; address and time outlive the calls; the descriptor is ours.
        unsafe {
            let fd = libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0);
            assert!(fd >= 0, "a socket");
            let fd = OwnedFd::from_raw_fd(fd);
            for option in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
                let (value, len) = ((&raw const patience).cast(), size_of::<libc::timeval>() as u32);
                libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, option, value, len);
            }
            let mut name: libc::sockaddr_un = zeroed();
            name.sun_family = libc::AF_UNIX as u16;
            for (to, from) in name.sun_path.iter_mut().zip(socket.as_os_str().as_bytes()) {
                *to = *from as libc::c_char;
            }
            let len = size_of::<libc::sockaddr_un>() as u32;
            let done = libc::connect(fd.as_raw_fd(), (&raw const name).cast(), len);
            assert_eq!(done, 0, "the daemon is there: {}", std::io::Error::last_os_error());
            Channel(fd)
        }
    }

    /// Sends a packet, and a memory with it. False when the daemon has closed the connection.
    fn say(&self, packet: &[u8], memory: Option<&File>) -> bool {
        // SAFETY: all zeroes is a valid header; what it points to outlives the call, and the control message
        // has room for one descriptor.
        unsafe {
            let mut control = [0u64; 4];
            let mut piece =
                libc::iovec { iov_base: packet.as_ptr().cast_mut().cast(), iov_len: packet.len() };
            let mut header: libc::msghdr = zeroed();
            (header.msg_iov, header.msg_iovlen) = (&raw mut piece, 1);
            if let Some(memory) = memory {
                header.msg_control = control.as_mut_ptr().cast();
                header.msg_controllen = libc::CMSG_SPACE(4) as _;
                let at = libc::CMSG_FIRSTHDR(&header);
                (*at).cmsg_level = libc::SOL_SOCKET;
                (*at).cmsg_type = libc::SCM_RIGHTS;
                (*at).cmsg_len = libc::CMSG_LEN(4) as _;
                libc::CMSG_DATA(at).cast::<i32>().write_unaligned(memory.as_raw_fd());
            }
            libc::sendmsg(self.0.as_raw_fd(), &header, libc::MSG_NOSIGNAL) == packet.len() as isize
        }
    }

    /// The next packet, and the descriptors that came with it. Empty when the connection is closed.
    fn hear(&self) -> (Vec<u8>, Vec<File>) {
        let mut packet = vec![0u8; PACKET_MAX];
        // SAFETY: all zeroes is a valid header, the buffers outlive the call, and descriptors received are
        // ours.
        unsafe {
            let mut control = [0u64; 8];
            let mut piece = libc::iovec { iov_base: packet.as_mut_ptr().cast(), iov_len: packet.len() };
            let mut header: libc::msghdr = zeroed();
            (header.msg_iov, header.msg_iovlen) = (&raw mut piece, 1);
            (header.msg_control, header.msg_controllen) = (control.as_mut_ptr().cast(), 64);
            let len = libc::recvmsg(self.0.as_raw_fd(), &mut header, 0);
            if len < 0 {
                let error = std::io::Error::last_os_error();
                assert!(error.kind() != std::io::ErrorKind::WouldBlock, "no answer in {PATIENCE_S} s");
            }
            packet.truncate(len.max(0) as usize);
            let at = libc::CMSG_FIRSTHDR(&header);
            let count = if len <= 0 || at.is_null() { 0 } else { ((*at).cmsg_len as usize - 16) / 4 };
            let fd = |i| File::from_raw_fd(libc::CMSG_DATA(at).cast::<i32>().add(i).read_unaligned());
            (packet, (0..count).map(fd).collect())
        }
    }

    /// Hangs up, and waits until the daemon has done the same: whoever comes next finds no trace.
    fn leave(self) {
        // SAFETY: plain values.
        unsafe { libc::shutdown(self.0.as_raw_fd(), libc::SHUT_WR) };
        while !self.hear().0.is_empty() {}
    }
}

/// A memory as an application must bring it: sealed, so that no page of it can go away.
fn sealed_memory() -> File {
    // SAFETY: a static name; plain values; the descriptor is ours.
    unsafe {
        let fd = libc::memfd_create(c"adverb-fuzz".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        assert!(fd >= 0, "a memory");
        let file = File::from_raw_fd(fd);
        file.set_len(MEMORY).expect("its length");
        libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL);
        file
    }
}

fn run(input: &[u8], seen: &mut Seen) {
    let daemon = daemon();
    let channel = Channel::connect(&daemon.socket);
    let mut board: Option<(File, File)> = None;
    let mut region = [0; 4];
    for step in steps(input) {
        let (packet, memory) = match step {
            Step::Frame(packet) => (packet, None),
            Step::Post(packet) => (packet, Some(sealed_memory())),
            Step::Wait(bytes) => {
                write_on(board.as_mut(), bytes, seen);
                continue;
            }
        };
        let mut packet = packet.to_vec();
        // The daemon's version, and the region that it gave last, stand as zeros.
        let stands_for = match packet.first() {
            Some(1) => Some(daemon.version.to_le_bytes()),
            Some(5..=7) => Some(region),
            _ => None,
        };
        if let Some(value) = stands_for
            && packet.get(1..5) == Some(&[0; 4])
        {
            packet[1..5].copy_from_slice(&value);
        }
        if packet.is_empty() || !channel.say(&packet, memory.as_ref()) {
            break;
        }
        let (answer, files) = channel.hear();
        if answer.is_empty() {
            break;
        }
        if answer[0] == 0
            && let Some((_, name)) = NAMES.iter().find(|(kind, _)| *kind == packet[0])
        {
            seen.accept(*name);
        }
        if let ([4, ..], [0, number @ ..]) = (&packet[..], &answer[..])
            && let Some(number) = number.first_chunk()
        {
            region = *number;
        }
        if let Ok([first, second]) = <[File; 2]>::try_from(files) {
            board = Some((first, second));
        }
    }
    channel.leave();
}

/// Writes into the board at the place that the first two bytes name, and rings.
fn write_on(board: Option<&mut (File, File)>, bytes: &[u8], seen: &mut Seen) {
    let (Some((board, bell)), Some((at, rest))) = (board, bytes.split_first_chunk::<2>()) else { return };
    let size = board.metadata().map_or(0, |about| about.len());
    let at = u64::from(u16::from_be_bytes(*at));
    let room = size.saturating_sub(at).min(rest.len() as u64) as usize;
    if room > 0 && board.write_all_at(&rest[..room], at).is_ok() && bell.write_all(&[1]).is_ok() {
        seen.accept("commands");
    }
}

fn seeds() -> Vec<(String, Vec<u8>)> {
    let bytes = |parts: &[&[u8]]| parts.concat();
    let hello = bytes(&[&[1], &[0; 4], &SLOTS.to_le_bytes()]);
    let allocate = bytes(&[&[2], &MEMORY.to_le_bytes()]);
    let (number, span) = (0u32.to_le_bytes(), bytes(&[&0u64.to_le_bytes(), &4096u64.to_le_bytes()]));
    let register = bytes(&[&[4], &number, &span, &[7], &[7; 16]]);
    let (hello_step, allocate_step, register_step) =
        (Step::Frame(&hello), Step::Post(&allocate), Step::Frame(&register));
    let mut seeds = vec![
        ("counters".to_owned(), input(&[Step::Frame(&[8])])),
        ("hello".to_owned(), input(&[hello_step, Step::Frame(&[8])])),
        ("allocate-free".to_owned(), {
            let free = bytes(&[&[3], &number]);
            input(&[hello_step, allocate_step, Step::Frame(&free)])
        }),
    ];
    let region = [0; 4];
    let derive = bytes(&[&[6], &region, &[0; 10], &[0xff, 0xff, 127, 0, 0, 9], &[100, 0, 0, 0], &[1]]);
    let rotate = bytes(&[&[7], &region, &[9; 16]]);
    let leave = bytes(&[&[5], &region]);
    let life = [
        hello_step,
        allocate_step,
        register_step,
        Step::Frame(&derive),
        Step::Frame(&rotate),
        Step::Frame(&leave),
    ];
    seeds.push(("region".to_owned(), input(&life)));
    // A slot's number, then how many were posted: a command of zeros, which the NIC refuses.
    let slot = bytes(&[&256u16.to_be_bytes(), &(1u64 << 16).to_le_bytes()]);
    let posted = bytes(&[&128u16.to_be_bytes(), &1u64.to_le_bytes()]);
    seeds.push(("commands".to_owned(), input(&[hello_step, Step::Wait(&slot), Step::Wait(&posted)])));
    seeds
}

/// The daemon's protocol.
pub const NICD: Target = Target {
    name: "nicd",
    run,
    seeds,
    expected: || NAMES.iter().map(|(_, name)| (*name).to_owned()).collect(),
    bounded: 10_000,
};
