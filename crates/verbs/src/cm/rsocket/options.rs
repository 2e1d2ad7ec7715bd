//! Options of sockets: sizes, which count until the socket connects, and what programs of TCP ask for.

use super::socket::{Phase, State, of};
use super::stream::{CONTROL, LOW_WATER};
use super::wire;
use crate::cm::done;
use core::ffi::{c_int, c_void};

/// `SOL_RDMA` and its options (rdma/rsocket.h).
const SOL_RDMA: c_int = 0x10000;
const RDMA_SQSIZE: c_int = 0;
const RDMA_RQSIZE: c_int = 1;
const RDMA_INLINE: c_int = 2;
const RDMA_IOMAPSIZE: c_int = 3;

/// Bytes of a ring, at most.
pub(super) const RING_MAX: u32 = 1 << 28;
/// Requests of a queue: at least and at most.
const QUEUE_MIN: u16 = 2 * CONTROL as u16;
const QUEUE_MAX: u16 = 8192;
/// Inline bytes at most: what the device has.
pub(super) const INLINE_MAX: u32 = adverb_nic::limits::MAX_INLINE;
/// Mappings of a socket at most.
pub(super) const MAPPINGS_MAX: u32 = 1 << 12;
/// What a segment is said to hold: a RoCE packet's payload.
const SEGMENT: c_int = 4096;

/// What is set.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) send: u32,
    pub(super) receive: u32,
    pub(super) send_queue: u16,
    pub(super) receive_queue: u16,
    pub(super) inline: u32,
    pub(super) mappings: u32,
    pub(super) reuse: bool,
    pub(super) only_v6: bool,
    /// Seconds, if SO_LINGER is on.
    pub(super) linger: Option<c_int>,
    keepalive: bool,
    oob_inline: bool,
    nodelay: bool,
    keep_idle: c_int,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            send: 1 << 17,
            receive: 1 << 17,
            send_queue: 384,
            receive_queue: 384,
            inline: 64,
            mappings: 0,
            reuse: false,
            only_v6: false,
            linger: None,
            keepalive: false,
            oob_inline: false,
            nodelay: false,
            keep_idle: 7200,
        }
    }
}

/// A ring for so many bytes, doubled as the kernel doubles what programs ask for.
fn ring(asked: c_int) -> u32 {
    ring_of(u32::try_from(asked).unwrap_or(0).saturating_mul(2))
}

/// A ring of so many bytes, as near as there is one.
pub(super) fn ring_of(bytes: u32) -> u32 {
    bytes.clamp(2 * LOW_WATER as u32, RING_MAX) & !15
}

/// A queue for so many requests, as near as there is one.
pub(super) fn queue(asked: u32) -> u16 {
    u16::try_from(asked).unwrap_or(u16::MAX).clamp(QUEUE_MIN, QUEUE_MAX)
}

impl Settings {
    /// Sets an option of one number. `fixed`: sizes can be changed no more.
    fn set(&mut self, level: c_int, name: c_int, value: c_int, fixed: bool) -> Result<(), c_int> {
        let flag = value != 0;
        match (level, name) {
            // As with TCP's, a size that comes too late for this connection is none's fault.
            (libc::SOL_SOCKET, libc::SO_SNDBUF) if !fixed => self.send = ring(value),
            (libc::SOL_SOCKET, libc::SO_RCVBUF) if !fixed => self.receive = ring(value),
            (libc::SOL_SOCKET, libc::SO_SNDBUF | libc::SO_RCVBUF) => {}
            (libc::SOL_SOCKET, libc::SO_REUSEADDR) => self.reuse = flag,
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => self.keepalive = flag,
            (libc::SOL_SOCKET, libc::SO_OOBINLINE) => self.oob_inline = flag,
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => self.nodelay = flag,
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) if value > 0 => self.keep_idle = value,
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => return Err(libc::EINVAL),
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => {}
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => self.only_v6 = flag,
            (SOL_RDMA, RDMA_SQSIZE..=RDMA_IOMAPSIZE) if value < 0 => return Err(libc::EINVAL),
            (SOL_RDMA, RDMA_SQSIZE..=RDMA_IOMAPSIZE) if fixed => return Err(libc::EINVAL),
            (SOL_RDMA, RDMA_SQSIZE) => self.send_queue = queue(value as u32),
            (SOL_RDMA, RDMA_RQSIZE) => self.receive_queue = queue(value as u32),
            (SOL_RDMA, RDMA_INLINE) => self.inline = (value as u32).min(INLINE_MAX),
            (SOL_RDMA, RDMA_IOMAPSIZE) => self.mappings = wire::tellable((value as u32).min(MAPPINGS_MAX)),
            _ => return Err(libc::EOPNOTSUPP),
        }
        Ok(())
    }

    /// An option of one number.
    fn get(&self, level: c_int, name: c_int) -> Result<c_int, c_int> {
        Ok(match (level, name) {
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => self.send as c_int,
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => self.receive as c_int,
            (libc::SOL_SOCKET, libc::SO_REUSEADDR) => self.reuse.into(),
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => self.keepalive.into(),
            (libc::SOL_SOCKET, libc::SO_OOBINLINE) => self.oob_inline.into(),
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => self.nodelay.into(),
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => self.keep_idle,
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => SEGMENT,
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => self.only_v6.into(),
            (SOL_RDMA, RDMA_SQSIZE) => self.send_queue.into(),
            (SOL_RDMA, RDMA_RQSIZE) => self.receive_queue.into(),
            (SOL_RDMA, RDMA_INLINE) => self.inline as c_int,
            (SOL_RDMA, RDMA_IOMAPSIZE) => self.mappings as c_int,
            _ => return Err(libc::EOPNOTSUPP),
        })
    }
}

impl State {
    /// An option of one number, of the socket's state too.
    fn option(&mut self, level: c_int, name: c_int) -> Result<c_int, c_int> {
        let datagrams = self.datagrams.is_some();
        Ok(match (level, name) {
            (libc::SOL_SOCKET, libc::SO_TYPE) if datagrams => libc::SOCK_DGRAM,
            (libc::SOL_SOCKET, libc::SO_TYPE) => libc::SOCK_STREAM,
            (libc::SOL_SOCKET, libc::SO_PROTOCOL) if datagrams => libc::IPPROTO_UDP,
            (libc::SOL_SOCKET, libc::SO_PROTOCOL) => libc::IPPROTO_TCP,
            (libc::IPPROTO_TCP, _) if datagrams => return Err(libc::EOPNOTSUPP),
            (libc::SOL_SOCKET, libc::SO_ERROR) => {
                self.advance();
                if let Some(of) = &mut self.datagrams {
                    return Ok(of.take_error().err().unwrap_or(0));
                }
                let broken = self.link.as_ref().and_then(|link| link.broken).unwrap_or(0);
                let error = core::mem::take(&mut self.error);
                if error != 0 { error } else { broken }
            }
            (libc::SOL_SOCKET, libc::SO_DOMAIN) => self.domain,
            (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => (self.phase == Phase::Listening).into(),
            _ => self.settings.get(level, name)?,
        })
    }
}

/// Sets an option.
///
/// # Safety
/// C ABI: as `setsockopt(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsetsockopt(
    socket: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: libc::socklen_t,
) -> c_int {
    done((|| {
        let socket = of(socket)?;
        let mut state = socket.lock();
        let length = length as usize;
        if value.is_null() {
            return Err(libc::EFAULT);
        }
        if (level, name) == (libc::SOL_SOCKET, libc::SO_LINGER) {
            if length < size_of::<libc::linger>() {
                return Err(libc::EINVAL);
            }
            // SAFETY: the caller passes as many bytes as it says.
            let linger = unsafe { value.cast::<libc::linger>().read_unaligned() };
            state.settings.linger = (linger.l_onoff != 0).then_some(linger.l_linger);
            return Ok(());
        }
        if length < size_of::<c_int>() {
            return Err(libc::EINVAL);
        }
        // SAFETY: as above.
        let value = unsafe { value.cast::<c_int>().read_unaligned() };
        if state.datagrams.is_some() && level == libc::IPPROTO_TCP {
            return Err(libc::EOPNOTSUPP);
        }
        let fixed = match &state.datagrams {
            Some(of) => of.is_bound(),
            None => !matches!(state.phase, Phase::Idle | Phase::Bound | Phase::Listening),
        };
        state.settings.set(level, name, value, fixed)
    })())
}

/// Says what an option is.
///
/// # Safety
/// C ABI: as `getsockopt(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgetsockopt(
    socket: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut libc::socklen_t,
) -> c_int {
    done((|| {
        let socket = of(socket)?;
        let mut state = socket.lock();
        if value.is_null() || length.is_null() {
            return Err(libc::EFAULT);
        }
        let mut bytes = [0; size_of::<libc::linger>()];
        let whole = if (level, name) == (libc::SOL_SOCKET, libc::SO_LINGER) {
            let linger = state.settings.linger;
            bytes[..4].copy_from_slice(&c_int::from(linger.is_some()).to_ne_bytes());
            bytes[4..].copy_from_slice(&linger.unwrap_or(0).to_ne_bytes());
            bytes.len()
        } else {
            bytes[..4].copy_from_slice(&state.option(level, name)?.to_ne_bytes());
            size_of::<c_int>()
        };
        // SAFETY: the caller passes room for as many bytes as it says.
        unsafe {
            let given = whole.min(*length as usize);
            core::ptr::copy_nonoverlapping(bytes.as_ptr(), value.cast(), given);
            *length = given as libc::socklen_t;
        }
        Ok(())
    })())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_bounds_and_are_fixed_once_connected() {
        let mut settings = Settings::default();
        let mut set = |level, name, value, fixed| settings.set(level, name, value, fixed);
        assert_eq!(set(libc::SOL_SOCKET, libc::SO_RCVBUF, 1 << 19, false), Ok(()));
        assert_eq!(set(libc::SOL_SOCKET, libc::SO_SNDBUF, -1, false), Ok(()));
        assert_eq!(set(SOL_RDMA, RDMA_SQSIZE, 1, false), Ok(()));
        assert_eq!(set(SOL_RDMA, RDMA_RQSIZE, 1 << 20, false), Ok(()));
        assert_eq!(set(SOL_RDMA, RDMA_INLINE, 1 << 20, false), Ok(()));
        assert_eq!(set(SOL_RDMA, RDMA_IOMAPSIZE, 1, false), Ok(()));
        assert_eq!(set(SOL_RDMA, RDMA_IOMAPSIZE, -1, false), Err(libc::EINVAL));
        assert_eq!(set(SOL_RDMA, RDMA_RQSIZE, 5, true), Err(libc::EINVAL));
        assert_eq!(set(libc::SOL_SOCKET, libc::SO_RCVBUF, 5, true), Ok(()));
        assert_eq!(set(libc::SOL_SOCKET, libc::SO_REUSEPORT, 1, false), Err(libc::EOPNOTSUPP));
        assert_eq!((settings.receive, settings.send), (1 << 20, 4096));
        assert_eq!((settings.send_queue, settings.receive_queue), (QUEUE_MIN, QUEUE_MAX));
        assert_eq!((settings.inline, settings.mappings), (INLINE_MAX, 1));
    }
}
