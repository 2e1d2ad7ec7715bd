//! The daemon's protocol, spoken by hand, by somebody who means harm; `nicd/protocol.rs` describes it.

use adverb_nic::one_rma::{Command, DerivedKey, RegionId};
use adverb_rma::Op;
use adverb_wire::Gid;
use std::fs::File;
use std::io::{Read, Write};
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Of the protocol.
const VERSION: u32 = 3;
/// The shared memory with four slots: two rings of four words each, the commands, the completions.
const POSTED: u64 = 128;
const REFUSED: u64 = 192;
const POSTED_SLOTS: u64 = 256;
const COMMANDS: u64 = 320;
const COMPLETIONS: u64 = COMMANDS + 4 * 64;

pub struct Raw {
    channel: OwnedFd,
    board: File,
    bell: File,
    pid: u32,
    address: Gid,
    ring: u32,
    slots: Vec<u32>,
}

pub fn connect(socket: &Path) -> OwnedFd {
    // SAFETY: all zeroes is a valid address, which outlives the call; the descriptor is ours.
    unsafe {
        let fd = libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0);
        let mut name: libc::sockaddr_un = zeroed();
        name.sun_family = libc::AF_UNIX as u16;
        for (to, from) in name.sun_path.iter_mut().zip(socket.as_os_str().as_bytes()) {
            *to = *from as libc::c_char;
        }
        let len = size_of::<libc::sockaddr_un>() as u32;
        // A full backlog means that the daemon does not come to accept: then there is nothing to be said.
        libc::connect(fd, (&raw const name).cast(), len);
        OwnedFd::from_raw_fd(fd)
    }
}

pub fn say(channel: &OwnedFd, packet: &[u8], memory: Option<&File>) -> bool {
    // SAFETY: all zeroes is a valid header; what it points to outlives the call, and the control message has
    // room for one descriptor.
    unsafe {
        let mut control = [0u64; 4];
        let mut piece = libc::iovec { iov_base: packet.as_ptr().cast_mut().cast(), iov_len: packet.len() };
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
        libc::sendmsg(channel.as_raw_fd(), &header, libc::MSG_NOSIGNAL) == packet.len() as isize
    }
}

/// A packet, and the descriptors that came with it. Empty when the connection is closed.
pub fn hear(channel: &OwnedFd) -> (Vec<u8>, Vec<File>) {
    let mut packet = vec![0u8; 4096];
    // SAFETY: all zeroes is a valid header, the buffers outlive the call, and descriptors received are ours.
    unsafe {
        let mut control = [0u64; 8];
        let mut piece = libc::iovec { iov_base: packet.as_mut_ptr().cast(), iov_len: packet.len() };
        let mut header: libc::msghdr = zeroed();
        (header.msg_iov, header.msg_iovlen) = (&raw mut piece, 1);
        (header.msg_control, header.msg_controllen) = (control.as_mut_ptr().cast(), 64);
        let len = libc::recvmsg(channel.as_raw_fd(), &mut header, 0);
        packet.truncate(len.max(0) as usize);
        let at = libc::CMSG_FIRSTHDR(&header);
        let count = if len <= 0 || at.is_null() { 0 } else { ((*at).cmsg_len as usize - 16) / 4 };
        let fd = |i| File::from_raw_fd(libc::CMSG_DATA(at).cast::<i32>().add(i).read_unaligned());
        (packet, (0..count).map(fd).collect())
    }
}

/// What comes on a connection; a panic if nothing does, its end included.
pub fn hear_within(channel: &OwnedFd, patience_s: i64) -> Vec<u8> {
    let mut packet = vec![0u8; 4096];
    let patience = libc::timeval { tv_sec: patience_s, tv_usec: 0 };
    // SAFETY: a timeval, and room for a packet, that live here.
    let len = unsafe {
        let (fd, size) = (channel.as_raw_fd(), size_of::<libc::timeval>() as u32);
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, (&raw const patience).cast(), size);
        libc::recv(fd, packet.as_mut_ptr().cast(), packet.len(), 0)
    };
    packet.truncate(usize::try_from(len).expect("the daemon says something, or closes the connection"));
    packet
}

fn word(packet: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(packet[at..at + 4].try_into().unwrap())
}

/// Memory as the daemon takes it.
fn memory(len: u64) -> File {
    // SAFETY: a C string and plain values; the descriptor is ours.
    let memory = unsafe {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        File::from_raw_fd(libc::memfd_create(c"vandal".as_ptr(), flags))
    };
    memory.set_len(len).unwrap();
    // SAFETY: plain values.
    assert_eq!(unsafe { libc::fcntl(memory.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) }, 0);
    memory
}

impl Raw {
    pub fn attach(socket: &Path) -> Raw {
        Raw::try_attach(socket, 4).unwrap_or_else(|why| panic!("not let in: {why}"))
    }

    /// With up to so many slots; or why not.
    pub fn try_attach(socket: &Path, slots: u32) -> Result<Raw, String> {
        let channel = connect(socket);
        let hello = [&[1u8][..], &VERSION.to_le_bytes(), &slots.to_le_bytes()].concat();
        assert!(say(&channel, &hello, None));
        let (packet, files) = hear(&channel);
        if packet.len() <= 29 || packet[0] != 0 {
            return Err(String::from_utf8_lossy(&packet).into_owned());
        }
        let [board, bell] = files.try_into().unwrap();
        let slots = (0..word(&packet, 21) as usize).map(|i| word(&packet, 29 + 4 * i)).collect();
        let address = Gid(packet[5..21].try_into().unwrap());
        let (pid, ring) = (word(&packet, 1), word(&packet, 25));
        Ok(Raw { channel, board, bell, pid, address, ring, slots })
    }

    /// How many slots it was given.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Asks the daemon to map memory that nobody has written to, until no address would be left. It maps no
    /// more than the host could have.
    pub fn map_all(&self) {
        // SAFETY: plain values.
        let host = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) * libc::sysconf(libc::_SC_PAGESIZE) } as u64;
        let mut mapped = 0;
        for len in (20..47).rev().map(|bits| 1u64 << bits) {
            let answer = self.ask(&[&[2], &len.to_le_bytes()], Some(&memory(len)));
            mapped += if answer[0] == 0 { len } else { 0 };
        }
        assert!(mapped > 0 && mapped <= host, "{mapped} bytes of {host} are mapped");
    }

    fn ask(&self, parts: &[&[u8]], memory: Option<&File>) -> Vec<u8> {
        assert!(say(&self.channel, &parts.concat(), memory));
        hear(&self.channel).0
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        self.board.write_all_at(bytes, at).unwrap();
    }

    fn number(&self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        self.board.read_exact_at(&mut bytes, at).unwrap();
        u64::from_le_bytes(bytes)
    }

    /// Completions so far: the highest number in the ring.
    fn completed(&self) -> u64 {
        (0..4).map(|i| self.number(COMPLETIONS + 32 * i + 24)).max().unwrap()
    }

    fn ring(&self) {
        (&self.bell).write_all(&[1]).unwrap();
    }

    fn post(&self, slots: &[u32], posted: u64) {
        for (i, slot) in slots.iter().enumerate() {
            self.write(POSTED_SLOTS + 8 * i as u64, &(*slot as u64).to_le_bytes());
        }
        self.write(POSTED, &posted.to_le_bytes());
        self.ring();
    }

    /// Waits until each was refused.
    pub fn post_garbage(&self) {
        for i in 0..4u64 {
            let garbage: Vec<u8> = (0..64).map(|k| (k * 37 + i * 11 + 3) as u8).collect();
            self.write(COMMANDS + 64 * i, &garbage);
        }
        self.post(&self.slots, 4);
        while self.number(REFUSED) < 4 {}
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
        assert!(say(&self.channel, &[99; 40], None));
    }

    /// Rings until there is no room for more, then has calls on everything that the two share wait, and
    /// leaves nobody a ring to take.
    pub fn jam(&self) {
        let flags = |flags: libc::c_int| {
            // SAFETY: plain values.
            unsafe { libc::fcntl(self.bell.as_raw_fd(), libc::F_SETFL, flags) };
        };
        flags(libc::O_NONBLOCK);
        while (&self.bell).write_all(&[1; 256]).is_ok() {}
        // It says that it sleeps, and has something to be woken for.
        self.write(0, &1u64.to_le_bytes());
        self.write(COMMANDS, &[0xff; 64]);
        self.write(POSTED_SLOTS, &(self.slots[0] as u64).to_le_bytes());
        self.write(POSTED, &1u64.to_le_bytes());
        // The daemon may have taken all the rings just before.
        let _ = (&self.bell).write(&[1]);
        while self.number(REFUSED) < 1 {}
        let mut taken = [0; 4096];
        while (&self.bell).read(&mut taken).is_ok_and(|n| n > 0) {}
        flags(0);
    }

    /// Asks without end, so that a question always waits, and takes the answers as they come.
    pub fn flood(self: &Arc<Self>) {
        let open = Arc::new(AtomicU64::new(0));
        let (asker, open_there) = (self.clone(), open.clone());
        std::thread::spawn(move || {
            // No more than the daemon has room to answer.
            while say(&asker.channel, &[8], None) {
                open_there.fetch_add(1, Ordering::Relaxed);
                while open_there.load(Ordering::Relaxed) >= 64 {}
            }
        });
        let hearer = self.clone();
        std::thread::spawn(move || {
            while !hear(&hearer.channel).0.is_empty() {
                open.fetch_sub(1, Ordering::Relaxed);
            }
        });
    }

    /// Holds as many connections as it gets, and says nothing on them.
    pub fn crowd(socket: &Path) -> Vec<OwnedFd> {
        (0..200).map(|_| connect(socket)).collect()
    }

    /// Asks by name for all that may be others': regions, memories. Posts commands about them. How many were
    /// refused.
    pub fn reach_for_neighbours(&self) -> u64 {
        let mut refused = 0;
        for index in 0..64u32 {
            let region = (1u32 << 16 | index).to_le_bytes();
            let (pid, key) = (self.pid.to_le_bytes(), [7; 16]);
            let (number, span) = (index.to_le_bytes(), [0u64.to_le_bytes(), 64u64.to_le_bytes()].concat());
            let asked = [
                self.ask(&[&[3], &number], None),
                self.ask(&[&[4], &number, &span, &[7], &key], None),
                self.ask(&[&[5], &region], None),
                self.ask(&[&[6], &region, &self.address.0, &pid, &[1]], None),
                self.ask(&[&[7], &region, &key], None),
            ];
            for answer in asked {
                let why = String::from_utf8_lossy(&answer[1..]).into_owned();
                assert!(answer[0] == 1 && why.contains("no such"), "{why}");
                refused += 1;
            }
        }
        // Others' memory as its own side, and as the place of its completions.
        let mut posted = 0;
        for index in 0..64 {
            let guess = 1 << 16 | index;
            for (local, ring) in [(guess, self.ring), (self.ring, guess)] {
                if guess == self.ring {
                    continue;
                }
                let key = DerivedKey::new([7; 16]);
                self.write(COMMANDS, &self.command(self.ring, local, ring, key));
                posted += 1;
                self.write(POSTED_SLOTS + 8 * ((posted - 1) % 4), &(self.slots[0] as u64).to_le_bytes());
                self.post(&[], posted);
                while self.number(REFUSED) < posted {
                    assert_eq!(self.completed(), 0, "a command about a neighbour's memory was begun");
                }
            }
        }
        refused + posted
    }

    fn command(&self, remote: u32, local: u32, ring: u32, key: DerivedKey) -> [u8; 64] {
        let [remote_region, local_region, completion_region] = [remote, local, ring].map(RegionId::from_wire);
        let command = Command {
            op: Op::Read,
            class: 0,
            len: 64,
            remote_region,
            local_region,
            completion_region,
            target: self.address,
            remote_offset: 0,
            local_offset: 0,
            key,
        };
        command.encode()
    }

    /// Reads its own memory into its own, while another thread changes the command to a neighbour's and back
    /// as fast as it can: whoever looked at it twice would find one thing and do the other. Until both were
    /// seen, often.
    pub fn race(&self) {
        let memory = memory(4096);
        memory.write_all_at(&[0xbd; 4096], 0).unwrap();
        let entered = self.ask(&[&[2], &4096u64.to_le_bytes()], Some(&memory));
        let (number, local) = (word(&entered, 1).to_le_bytes(), word(&entered, 5));
        let span = [0u64.to_le_bytes(), 4096u64.to_le_bytes()].concat();
        let remote = word(&self.ask(&[&[4], &number, &span, &[1], &[3; 16]], None), 1);
        let pid = self.pid.to_le_bytes();
        let derived = self.ask(&[&[6], &remote.to_le_bytes(), &self.address.0, &pid, &[1]], None);
        let key = DerivedKey::new(derived[1..].try_into().unwrap());
        let mine = self.command(remote, local, self.ring, key.clone());
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let known = [local, remote, self.ring];
                let others = (1 << 16..(1 << 16) + 12).filter(|region| !known.contains(region));
                for other in others.cycle().take_while(|_| !over.load(Ordering::Relaxed)) {
                    self.write(COMMANDS, &self.command(remote, other, self.ring, key.clone()));
                    self.write(COMMANDS, &mine);
                }
            });
            let mut posted = 0;
            while self.number(REFUSED) < 100 || self.completed() < 100 {
                posted += 1;
                self.write(POSTED_SLOTS + 8 * ((posted - 1) % 4), &(self.slots[0] as u64).to_le_bytes());
                self.post(&[], posted);
                while self.number(REFUSED) + self.completed() < posted {}
            }
            over.store(true, Ordering::Relaxed);
        });
    }

    /// Whether the daemon has closed the connection, or does so before long.
    pub fn is_let_go(&self, patience_s: i64) -> bool {
        let mut byte = 0u8;
        let patience = libc::timeval { tv_sec: patience_s, tv_usec: 1000 };
        // SAFETY: a timeval, and room for one byte, that live here.
        unsafe {
            let (fd, size) = (self.channel.as_raw_fd(), size_of::<libc::timeval>() as u32);
            let value = (&raw const patience).cast();
            libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, value, size);
            libc::recv(fd, (&raw mut byte).cast(), 1, 0) == 0
        }
    }
}
