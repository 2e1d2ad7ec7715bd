//! The process's one [`Host`]: the NIC, its ports and its progress, opened with the first device.
//!
//! A child that was forked has its parent's, which is dead there, until it opens one of its own. What it has
//! of its parent's objects is unknown to that one (`Nic::begin_names_at`), and goes when it is destroyed.
//!
//! The host raises events while it holds the NIC's lock; so nothing that an event handler locks (the
//! tables, the event queues) may be held while one of these calls is made.

use crate::event::lock;
use adverb_io::registry::Refusal;
use adverb_io::registry::words::Region;
use adverb_io::{Host, OpenError, Settings, Way};
use adverb_nic::cm::{CmError, CmEvent};
use adverb_nic::memory::Memory;
use adverb_nic::{Completion, CqId, Error, Nic, PathId, PdId, QpAttr, QpAttrMask, QpId, SendOp};
use adverb_os::say;
use adverb_wire::{Gid, Instant, Key, QpNumber};
use core::ffi::c_int;
use core::sync::atomic::{AtomicPtr, Ordering};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Hosts are never freed.
static HOST: AtomicPtr<Host> = AtomicPtr::new(core::ptr::null_mut());
/// Serialises openings, which may fail and be tried again.
static OPENING: Mutex<()> = Mutex::new(());
/// Multicast groups joined, and how many attachments each has: the host joins a group once.
static GROUPS: Mutex<BTreeMap<[u8; 16], u32>> = Mutex::new(BTreeMap::new());

/// Opens the host unless it is open. `Err` is errno, after a word on standard error.
pub(crate) fn open() -> Result<(), c_int> {
    let _opening = lock(&OPENING);
    if current().is_some_and(Host::is_own) {
        return Ok(());
    }
    let opened = Host::open(&settings()?, Box::new(crate::tables::on_event));
    let host = opened.map_err(|error| open_errno(&error))?;
    // Its parent's objects and groups are not this NIC's.
    lock(&GROUPS).clear();
    crate::tables::clear();
    crate::xrcd::clear();
    HOST.store(Arc::into_raw(host).cast_mut(), Ordering::Release);
    Ok(())
}

/// The host that was opened last, by this process or an ancestor.
#[inline]
fn current() -> Option<&'static Host> {
    // SAFETY: it is null, or came from `Arc::into_raw`; what that stands for is never given back.
    unsafe { HOST.load(Ordering::Acquire).as_ref() }
}

/// Says why there is no device, and gives the errno for it.
pub(crate) fn open_errno(error: &OpenError) -> c_int {
    say!("adverb: {error}");
    match error {
        OpenError::Address { .. } => libc::EADDRNOTAVAIL,
        OpenError::PortTaken { .. } | OpenError::OtherVersion { .. } => libc::EADDRINUSE,
        OpenError::Full { .. } => libc::ENOSPC,
        OpenError::Held { .. } => libc::ETIMEDOUT,
        OpenError::ForeignDirectory { .. } => libc::EACCES,
        OpenError::Directory { source, .. }
        | OpenError::System { source, .. }
        | OpenError::File { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        _ => libc::ENODEV,
    }
}

/// What the environment asks for. `Err` is errno, after a word on standard error: a misspelt setting
/// must never look like a machine without devices.
pub(crate) fn settings() -> Result<Settings, c_int> {
    Settings::from_env().map_err(|error| {
        say!("adverb: {error}");
        libc::EINVAL
    })
}

/// The open host. Objects exist only after `open` has succeeded.
#[inline]
fn host() -> &'static Host {
    current().expect("a verbs object without an open device")
}

/// A control call into the NIC; its error as errno.
pub(crate) fn control<R>(call: impl FnOnce(&mut Nic) -> Result<R, Error>) -> Result<R, c_int> {
    host().control(|nic, _| call(nic)).map_err(Error::errno)
}

/// Lets the NIC's cross-channel queues be looked at.
pub(crate) fn offer_looks() {
    host().offer_looks();
}

/// A control call into the NIC's memory; its error as errno.
pub(crate) fn memory<R>(call: impl FnOnce(&mut Memory) -> Result<R, Error>) -> Result<R, c_int> {
    control(|nic| call(nic.memory()))
}

/// Changes a queue pair's attributes; the error as errno.
pub(crate) fn modify_qp(qp: QpId, attr: &QpAttr, mask: QpAttrMask) -> Result<(), c_int> {
    host().modify_qp(qp, attr, mask).map_err(Error::errno)
}

/// Destroys a queue pair; the error as errno.
pub(crate) fn destroy_qp(qp: QpId) -> Result<(), c_int> {
    host().destroy_qp(qp).map_err(Error::errno)
}

/// Tells the registries of StaR's peers of memory, where there are any; returns when they have it.
pub(crate) fn grant(pd: PdId, region: Region) -> Result<(), c_int> {
    host().grant(pd, region).map_err(errno_of)
}

/// Takes memory back from them; returns when they have done so.
pub(crate) fn withdraw(key: Key) {
    host().withdraw(key);
}

fn errno_of(refusal: Refusal) -> c_int {
    match refusal {
        Refusal::Full => libc::ENOMEM,
        Refusal::NoAgent => libc::EIO,
    }
}

/// Tells them that a region is something else now.
pub(crate) fn grant_anew(pd: PdId, region: Region) -> Result<(), c_int> {
    host().grant_anew(pd, region).map_err(errno_of)
}

/// Tells them of the windows that work requests are to bind. After the first refusal, whose errno is given
/// with its place, no further one is asked for.
pub(crate) fn grant_binds<'a>(qp: QpId, ops: impl Iterator<Item = &'a SendOp>) -> Result<(), (usize, c_int)> {
    if !host().has_registry() {
        return Ok(());
    }
    let binds = ops.enumerate().filter(|(_, op)| matches!(op, SendOp::BindMw { .. }));
    for (at, op) in binds {
        host().grant_bind(qp, op).map_err(|refusal| (at, errno_of(refusal)))?;
    }
    Ok(())
}

/// Whether there is a registry, to which binds must be told.
pub(crate) fn has_registry() -> bool {
    host().has_registry()
}

/// Work requests for which that was done were not posted.
pub(crate) fn retract_binds<'a>(qp: QpId, ops: impl Iterator<Item = &'a SendOp>) {
    ops.for_each(|op| host().retract_bind(qp, op));
}

/// Takes back what peers were told of windows that are not bound any more.
pub(crate) fn settle_windows() {
    host().settle_windows();
}

/// The address of a queue pair's doorbell records; the error as errno.
pub(crate) fn doorbell_record(qp: QpId) -> Result<u64, c_int> {
    host().doorbell_record(qp).map_err(Error::errno)
}

/// A queue pair was reset: its doorbell records begin again at 0, if it has some.
pub(crate) fn reset_doorbells(qp: QpId) {
    host().reset_doorbells(qp);
}

/// Posts work requests.
#[inline]
pub(crate) fn post<R>(call: impl FnOnce(&mut Nic, Instant) -> R) -> R {
    host().post(call)
}

/// Takes up to `max` completions; `out` gets each with its index.
#[inline]
pub(crate) fn poll(cq: CqId, max: usize, mut out: impl FnMut(usize, &Completion)) -> Result<usize, Error> {
    let mut index = 0;
    host().poll(cq, max, |completion| {
        out(index, &completion);
        index += 1;
    })
}

/// Arms a completion queue.
pub(crate) fn arm(cq: CqId, solicited_only: bool) -> Result<(), Error> {
    host().arm(cq, solicited_only)
}

/// The route to a queue pair.
pub(crate) fn resolve(dst: Gid, qpn: QpNumber) -> PathId {
    host().resolve(dst, qpn)
}

/// The way to an address.
pub(crate) fn way_to(dst: Gid) -> Way {
    host().way_to(dst)
}

/// Joins a multicast group for one more attachment.
pub(crate) fn join(group: Gid) -> Result<(), c_int> {
    let mut groups = lock(&GROUPS);
    if !groups.contains_key(&group.0) {
        host().join(group).map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))?;
    }
    *groups.entry(group.0).or_insert(0) += 1;
    Ok(())
}

/// Takes back one `join`.
pub(crate) fn leave(group: Gid) {
    let mut groups = lock(&GROUPS);
    let Some(count) = groups.get_mut(&group.0) else { return };
    *count -= 1;
    if *count == 0 {
        groups.remove(&group.0);
        host().leave(group);
    }
}

/// The clock of completion timestamps, in nanoseconds.
pub(crate) fn now_ns() -> u64 {
    host().control(|_, now| now.as_ps() / 1000)
}

/// The time of day, in nanoseconds since 1970, at which the clock showed `timestamp_ns`.
pub(crate) fn wallclock_ns(timestamp_ns: u64) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes into the local.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &mut time) };
    let realtime = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
    realtime.wrapping_sub(now_ns().wrapping_sub(timestamp_ns))
}

/// A call into the connection manager; its error as errno.
pub(crate) fn cm<R>(call: impl FnOnce(&Host) -> Result<R, CmError>) -> Result<R, c_int> {
    call(host()).map_err(CmError::errno)
}

/// Has the connection manager's events told.
pub(crate) fn on_cm_event(hear: fn(CmEvent)) {
    host().on_cm_event(Box::new(hear));
}
