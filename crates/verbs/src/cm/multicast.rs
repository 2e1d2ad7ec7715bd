//! Multicast groups of identifiers for datagrams. On RoCE a group's address is its GID, and joining is the
//! host's own business (IGMP, MLD): the NIC's socket does it when the queue pair is attached.

use crate::abi::*;
use crate::ah::{ibv_attach_mcast, ibv_detach_mcast};
use crate::cm::channel::Told;
use crate::cm::id::{Id, Phase};
use crate::cm::{address, done, event};
use adverb_wire::{Gid, QpNumber};
use core::ffi::{c_int, c_void};
use std::net::IpAddr;

/// Groups that an identifier may be in.
const GROUPS_MAX: usize = 64;

/// A group that an identifier is in.
pub(super) struct Group {
    address: IpAddr,
    gid: Gid,
    /// Whether the queue pair gets what is sent to it.
    attached: bool,
}

/// The address of a group.
///
/// # Safety
/// `address` is valid, or NULL.
unsafe fn group_address(address: *const libc::sockaddr) -> Result<IpAddr, c_int> {
    if address.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: by the caller's promise.
    let address = unsafe { address::read(address) }.ok_or(libc::EINVAL)?;
    let plain = address.ip().to_canonical();
    if plain.is_multicast() { Ok(plain) } else { Err(libc::EINVAL) }
}

/// Joins a group.
///
/// # Safety
/// The identifier is alive, the address valid or NULL.
unsafe fn join(
    id: &Id,
    group: *const libc::sockaddr,
    send_only: bool,
    context: *mut c_void,
) -> Result<(), c_int> {
    // SAFETY: by the caller's promise.
    let address = unsafe { group_address(group) }?;
    let gid = Gid::from(address);
    let c = id.as_c();
    let mut state = id.state();
    let resolved = matches!(state.phase, Phase::Bound | Phase::Address | Phase::Route | Phase::Connected);
    // SAFETY: public fields of the live object.
    let (verbs, qp) = unsafe { ((*c).verbs, (*c).qp) };
    if !id.is_datagram() || !resolved || verbs.is_null() {
        return Err(libc::EINVAL);
    }
    if state.groups.iter().any(|group| group.address == address) {
        return Err(libc::EADDRINUSE);
    }
    if state.groups.len() >= GROUPS_MAX {
        return Err(libc::ENOMEM);
    }
    let attached = !send_only && !qp.is_null();
    if attached {
        // SAFETY: the identifier's own queue pair.
        match unsafe { ibv_attach_mcast(qp, &ibv_gid(gid.0), 0) } {
            0 => {}
            errno => return Err(errno),
        }
    }
    state.groups.push(Group { address, gid, attached });
    let traffic_class = state.options.traffic_class;
    drop(state);
    let mut ud = event::datagrams(gid, QpNumber::MULTICAST, RDMA_UDP_QKEY, traffic_class);
    // What tells the program which of its calls this answers.
    ud.private_data = context;
    id.tell(Told::Joined(ud));
    Ok(())
}

/// Takes the identifier's queue pair out of a group.
///
/// # Safety
/// The identifier is alive.
unsafe fn detach(id: &Id, group: &Group) {
    // SAFETY: by the caller's promise.
    unsafe {
        let qp = (*id.as_c()).qp;
        if group.attached && !qp.is_null() {
            // It fails only where the program detached the queue pair itself.
            ibv_detach_mcast(qp, &ibv_gid(group.gid.0), 0);
        }
    }
}

/// Leaves all groups.
///
/// # Safety
/// The identifier is alive.
pub(super) unsafe fn leave_all(id: &Id) {
    let groups = core::mem::take(&mut id.state().groups);
    for group in &groups {
        // SAFETY: by the caller's promise.
        unsafe { detach(id, group) };
    }
}

/// Joins a group; an event says by which address it is reached.
///
/// # Safety
/// C ABI: see `rdma_join_multicast(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_join_multicast(
    id: *mut rdma_cm_id,
    address: *mut libc::sockaddr,
    context: *mut c_void,
) -> c_int {
    if id.is_null() {
        return done(Err(libc::EINVAL));
    }
    // SAFETY: the caller passes a live identifier and a valid address.
    unsafe {
        let id = Id::of(id);
        done(join(id, address, false, context).and_then(|()| id.complete()))
    }
}

/// Joins a group, perhaps only to send to it.
///
/// # Safety
/// C ABI: see `rdma_join_multicast_ex(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_join_multicast_ex(
    id: *mut rdma_cm_id,
    attr: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    const KNOWN: u32 = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
    if id.is_null() || attr.is_null() {
        return done(Err(libc::EINVAL));
    }
    // SAFETY: the caller passes a live identifier and valid attributes.
    unsafe {
        let attr = &*attr;
        let known = attr.comp_mask & !KNOWN == 0 && attr.comp_mask & RDMA_CM_JOIN_MC_ATTR_ADDRESS != 0;
        let send_only = match attr.join_flags {
            _ if !known => return done(Err(libc::EINVAL)),
            _ if attr.comp_mask & RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS == 0 => false,
            RDMA_MC_JOIN_FLAG_FULLMEMBER => false,
            RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER => true,
            _ => return done(Err(libc::EINVAL)),
        };
        let id = Id::of(id);
        done(join(id, attr.addr, send_only, context).and_then(|()| id.complete()))
    }
}

/// Leaves a group.
///
/// # Safety
/// C ABI: see `rdma_leave_multicast(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_leave_multicast(id: *mut rdma_cm_id, address: *mut libc::sockaddr) -> c_int {
    if id.is_null() {
        return done(Err(libc::EINVAL));
    }
    // SAFETY: the caller passes a live identifier and a valid address.
    unsafe {
        let id = Id::of(id);
        done(group_address(address).and_then(|address| {
            let mut state = id.state();
            let groups = &mut state.groups;
            let at = groups.iter().position(|group| group.address == address).ok_or(libc::EADDRNOTAVAIL)?;
            let group = groups.remove(at);
            drop(state);
            detach(id, &group);
            Ok(())
        }))
    }
}
