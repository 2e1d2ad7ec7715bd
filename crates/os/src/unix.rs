//! Unix sockets that keep packets apart (SOCK_SEQPACKET), carry descriptors (SCM_RIGHTS), and know who is at
//! the other end (SO_PEERCRED).
#![allow(unsafe_code)]

use crate::check;
use crate::sys::{Buffer, ask_for_buffer};
use std::ffi::OsStr;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Descriptors in one packet at most.
pub const FDS_MAX: usize = 2;
/// Room for their control message, in words.
const CONTROL_WORDS: usize = 8;

/// A listening socket.
pub struct Listener(OwnedFd);

/// One end of a connection.
#[derive(Debug)]
pub struct Channel(OwnedFd);

/// Who is at the other end, as the kernel knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    /// Its process.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
}

fn socket(kind: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: plain values; the descriptor returned is ours.
    unsafe {
        let fd = check(libc::socket(libc::AF_UNIX, kind | libc::SOCK_CLOEXEC, 0))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// Connects to a stream of bytes, if that can be done at once. No call waits afterwards.
pub fn connect_stream(path: &Path) -> io::Result<UnixStream> {
    let fd = socket(libc::SOCK_STREAM | libc::SOCK_NONBLOCK)?;
    connect(fd.as_fd(), path)?;
    Ok(UnixStream::from(fd))
}

fn connect(socket: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let (name, len) = address(path)?;
    // SAFETY: the address lives here and has that length.
    uninterrupted(|| unsafe { libc::connect(socket.as_raw_fd(), (&raw const name).cast(), len) } as isize)
        .map(drop)
}

/// Makes a call again when a signal ended it. Where a socket has a time for its calls the kernel does not do
/// so by itself, whatever the handler asks for (signal(7)). The time begins anew.
fn uninterrupted(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        match usize::try_from(call()) {
            Ok(done) => return Ok(done),
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
}

fn address(path: &Path) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
    // SAFETY: all zeroes is a valid `sockaddr_un`.
    let mut name: libc::sockaddr_un = unsafe { zeroed() };
    name.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = OsStr::as_bytes(path.as_os_str());
    // A name that begins with a zero has no file: it is in the abstract namespace, and all its bytes count.
    let nameless = bytes.first() == Some(&0);
    if bytes.is_empty() || bytes.len() >= name.sun_path.len() || bytes[1..].contains(&0) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a socket's path has 1 to 107 bytes"));
    }
    for (to, from) in name.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    let whole = size_of::<libc::sockaddr_un>();
    let len = if nameless { whole - name.sun_path.len() + bytes.len() } else { whole };
    Ok((name, len as libc::socklen_t))
}

impl Listener {
    /// Listens at a path, where there must be nothing.
    pub fn bind(path: &Path) -> io::Result<Listener> {
        let fd = socket(libc::SOCK_SEQPACKET)?;
        let (name, len) = address(path)?;
        // SAFETY: the address lives here and has that length; the other calls take plain values.
        unsafe {
            check(libc::bind(fd.as_raw_fd(), (&raw const name).cast(), len))?;
            check(libc::listen(fd.as_raw_fd(), 64))?;
            check(libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK))?;
        }
        Ok(Listener(fd))
    }

    /// A connection that waits, if there is one. It does not block.
    pub fn accept(&self) -> io::Result<Channel> {
        let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let none = std::ptr::null_mut();
        // SAFETY: no address is asked for; the descriptor returned is ours.
        unsafe {
            let fd = check(libc::accept4(self.0.as_raw_fd(), none, std::ptr::null_mut(), flags))?;
            Ok(Channel(OwnedFd::from_raw_fd(fd)))
        }
    }

    /// Takes no more connections, and wakes who waits for some.
    pub fn close(&self) {
        // SAFETY: plain values.
        unsafe { libc::shutdown(self.0.as_raw_fd(), libc::SHUT_RDWR) };
    }

    /// The descriptor, to wait on.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Channel {
    /// Connects. Calls wait, for `patience_s` seconds at most.
    pub fn connect(path: &Path, patience_s: u32) -> io::Result<Channel> {
        let fd = socket(libc::SOCK_SEQPACKET)?;
        let patience = libc::timeval { tv_sec: patience_s as _, tv_usec: 0 };
        for option in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
            let size = size_of::<libc::timeval>() as libc::socklen_t;
            let value = (&raw const patience).cast();
            // SAFETY: the value is a timeval of that size.
            check(unsafe { libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, option, value, size) })?;
        }
        Channel(fd).connected(path)
    }

    /// Connects, if that can be done at once. No call waits afterwards.
    pub fn connect_at_once(path: &Path) -> io::Result<Channel> {
        Channel(socket(libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK)?).connected(path)
    }

    fn connected(self, path: &Path) -> io::Result<Channel> {
        connect(self.0.as_fd(), path)?;
        Ok(self)
    }

    /// The descriptor, to wait on.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Ends the connection for both ends, whoever else holds a descriptor of it.
    pub fn end(self) {
        // SAFETY: plain values.
        unsafe { libc::shutdown(self.0.as_raw_fd(), libc::SHUT_RDWR) };
    }

    /// Asks the kernel to keep so many bytes of packets that the other end has not read. It may keep fewer.
    pub fn ask_for_send_buffer(&self, bytes: usize) {
        // As good as it gets: a small buffer costs turns, not frames.
        let _ = ask_for_buffer(self.0.as_fd(), Buffer::Send, bytes);
    }

    /// Whether a process of this process's user is at the other end, whatever its number.
    pub fn is_of_own_user(&self) -> bool {
        self.credentials().is_ok_and(|found| found.uid == crate::sys::effective_uid())
    }

    fn credentials(&self) -> io::Result<libc::ucred> {
        let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        let place = (&raw mut found).cast();
        // SAFETY: a place for a ucred, of its length.
        check(unsafe { libc::getsockopt(self.fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, place, &mut len) })?;
        Ok(found)
    }

    /// The process that connected, or that listens.
    pub fn peer(&self) -> io::Result<Peer> {
        let found = self.credentials()?;
        // 0 is a process of a namespace that cannot be seen from here.
        let pid = u32::try_from(found.pid).ok().filter(|pid| *pid > 0).ok_or(io::ErrorKind::NotFound)?;
        Ok(Peer { pid, uid: found.uid })
    }

    /// Something that becomes readable when the process at the other end has ended, whoever else holds its
    /// end of the connection, such as a child that it forked. `None` on kernels before 6.5, where only the
    /// end of the connection tells.
    pub fn peer_life(&self) -> Option<OwnedFd> {
        /// Of `asm-generic/socket.h`.
        const SO_PEERPIDFD: libc::c_int = 77;
        let mut fd: libc::c_int = -1;
        let mut len = size_of::<libc::c_int>() as libc::socklen_t;
        let place = (&raw mut fd).cast();
        // SAFETY: a place for a descriptor, of its length; the descriptor returned is ours.
        unsafe {
            let got = libc::getsockopt(self.fd(), libc::SOL_SOCKET, SO_PEERPIDFD, place, &mut len);
            (got == 0 && fd >= 0).then(|| OwnedFd::from_raw_fd(fd))
        }
    }

    /// Sends one packet.
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        assert!(fds.len() <= FDS_MAX, "no more descriptors than there is room for");
        let mut piece = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let mut control = [0u64; CONTROL_WORDS];
        // SAFETY: all zeroes is a valid `msghdr`.
        let mut header: libc::msghdr = unsafe { zeroed() };
        header.msg_iov = &raw mut piece;
        header.msg_iovlen = 1;
        if !fds.is_empty() {
            let len = size_of_val(fds) as libc::c_uint;
            header.msg_control = control.as_mut_ptr().cast();
            // SAFETY: the buffer is aligned and has room for one message of `FDS_MAX` descriptors, which
            // CMSG_FIRSTHDR and CMSG_DATA stay inside.
            unsafe {
                header.msg_controllen = libc::CMSG_SPACE(len) as _;
                let at = libc::CMSG_FIRSTHDR(&header);
                (*at).cmsg_level = libc::SOL_SOCKET;
                (*at).cmsg_type = libc::SCM_RIGHTS;
                (*at).cmsg_len = libc::CMSG_LEN(len) as _;
                let data = libc::CMSG_DATA(at).cast::<libc::c_int>();
                for (i, fd) in fds.iter().enumerate() {
                    data.add(i).write_unaligned(fd.as_raw_fd());
                }
            }
        }
        // SAFETY: the header points to bytes and controls that outlive the call.
        uninterrupted(|| unsafe { libc::sendmsg(self.fd(), &header, libc::MSG_NOSIGNAL) }).map(drop)
    }

    /// Receives one packet: its bytes in `buffer`, how many, and the descriptors that came with it. `None`
    /// when the other end is closed. A packet that is longer than the buffer, or has more descriptors than
    /// one may have, is an error.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<(usize, Vec<OwnedFd>)>> {
        let mut piece = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        let mut control = [0u64; CONTROL_WORDS];
        // SAFETY: all zeroes is a valid `msghdr`.
        let mut header: libc::msghdr = unsafe { zeroed() };
        header.msg_iov = &raw mut piece;
        header.msg_iovlen = 1;
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = size_of_val(&control) as _;
        // SAFETY: the header points to buffers of the lengths it says, which outlive the call.
        let len = uninterrupted(|| unsafe { libc::recvmsg(self.fd(), &mut header, libc::MSG_CMSG_CLOEXEC) })?;
        let mut fds = Vec::new();
        // SAFETY: the kernel filled the control buffer; the CMSG functions stay inside it, and each
        // descriptor in it is now ours.
        unsafe {
            let mut at = libc::CMSG_FIRSTHDR(&header);
            while !at.is_null() {
                if ((*at).cmsg_level, (*at).cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                    let bytes = (*at).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                    let data = libc::CMSG_DATA(at).cast::<libc::c_int>();
                    for i in 0..bytes / size_of::<libc::c_int>() {
                        fds.push(OwnedFd::from_raw_fd(data.add(i).read_unaligned()));
                    }
                }
                at = libc::CMSG_NXTHDR(&header, at);
            }
        }
        if header.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0 || fds.len() > FDS_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a packet that is too long"));
        }
        // A packet of no bytes is nothing that either side sends.
        if len == 0 { Ok(None) } else { Ok(Some((len, fds))) }
    }

    /// Says that nothing more will come, and waits until the other end closes, as long as calls may wait.
    pub fn finish(&self) {
        // SAFETY: plain values.
        unsafe { libc::shutdown(self.fd(), libc::SHUT_WR) };
        let mut rest = [0; 256];
        while let Ok(Some(_)) = self.receive(&mut rest) {}
    }

    /// Returns when the other end has closed, or its process has ended. What comes before that is lost.
    pub fn wait_for_end(&self) {
        let mut rest = [0; 256];
        loop {
            match self.receive(&mut rest) {
                Ok(Some(_)) => {}
                Ok(None) => return,
                // A call may wait for so long only.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
    }

    /// Ends the connection for both sides. Does not wait.
    pub fn hang_up(&self) {
        // SAFETY: plain values.
        unsafe { libc::shutdown(self.fd(), libc::SHUT_RDWR) };
    }

    /// Whether the other end is gone. Does not wait.
    pub fn is_closed(&self) -> bool {
        let mut byte = 0u8;
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        // SAFETY: room for one byte that lives here.
        match unsafe { libc::recv(self.fd(), (&raw mut byte).cast(), 1, flags) } {
            0 => true,
            n if n < 0 => io::Error::last_os_error().kind() != io::ErrorKind::WouldBlock,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::thread::JoinHandleExt;

    #[test]
    fn packets_descriptors_and_names_come_through() {
        let path = std::env::temp_dir().join(format!("adverb-unix-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = Listener::bind(&path).unwrap();
        assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let near = Channel::connect(&path, 1).unwrap();
        let far = listener.accept().unwrap();
        assert_eq!(far.peer().unwrap().pid, std::process::id());
        if let Some(life) = far.peer_life() {
            assert!(!crate::sys::wait_readable(life.as_raw_fd(), std::time::Duration::ZERO), "it lives");
        }
        let file = std::fs::File::open("/dev/null").unwrap();
        near.send(b"first", &[file.as_fd(), file.as_fd()]).unwrap();
        near.send(b"second", &[]).unwrap();
        let mut buffer = [0; 6];
        let (len, fds) = far.receive(&mut buffer).unwrap().unwrap();
        assert_eq!((&buffer[..len], fds.len()), (&b"first"[..], 2));
        assert_eq!(far.receive(&mut buffer).unwrap().unwrap().0, 6);
        assert_eq!(far.receive(&mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        near.send(b"too long", &[]).unwrap();
        assert_eq!(far.receive(&mut buffer).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert!(!far.is_closed());
        drop(near);
        far.wait_for_end();
        assert!(far.is_closed() && far.receive(&mut buffer).unwrap().is_none());
        std::fs::remove_file(&path).unwrap();
        assert!(Channel::connect(&path, 1).is_err());
        assert!(Listener::bind(Path::new(&"x".repeat(200))).is_err());
    }

    /// Signals whose handler does nothing, one after the other, while a call waits: it goes on waiting.
    #[test]
    fn a_signal_ends_no_call() {
        extern "C" fn nothing(_: libc::c_int) {}
        // SAFETY: all zeroes is a valid `sigaction`, with a handler that does nothing.
        unsafe {
            let mut action: libc::sigaction = zeroed();
            action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
            check(libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut())).unwrap();
        }
        let path = std::env::temp_dir().join(format!("adverb-unix-signals-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = Listener::bind(&path).unwrap();
        let near = Channel::connect(&path, 60).unwrap();
        let far = listener.accept().unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let waiting = std::thread::spawn(move || {
            tell.send(crate::sys::thread_id()).unwrap();
            near.receive(&mut [0; 8]).map(|received| received.is_some())
        });
        let stat = format!("/proc/self/task/{}/stat", told.recv().unwrap());
        let sleeps = || std::fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") S "));
        for _ in 0..20 {
            while !sleeps() && !waiting.is_finished() {
                std::thread::yield_now();
            }
            // SAFETY: the thread has not been joined.
            unsafe { libc::pthread_kill(waiting.as_pthread_t(), libc::SIGUSR2) };
        }
        far.send(b"x", &[]).unwrap();
        assert!(waiting.join().unwrap().unwrap());
        std::fs::remove_file(&path).unwrap();
    }
}
