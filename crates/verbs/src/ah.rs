//! Address handles and multicast (IBTA 11.2.2, 10.5).

use crate::abi::*;
use crate::context::device_of;
use crate::handle::{code, handle, pointer_or_null, set_errno};
use crate::host;
use crate::pd::Pd;
use crate::qp::Qp;
use crate::query::PORT;
use adverb_io::Way;
use adverb_nic::{PathId, PdId, UdAddress};
use adverb_wire::{Gid, QpNumber};
use core::cell::UnsafeCell;
use core::ffi::c_int;

/// An address handle.
#[repr(C)]
pub(crate) struct Ah {
    ibv: UnsafeCell<ibv_ah>,
    /// The NIC's domain; a datagram must be sent from the same one.
    pub(crate) pd: PdId,
    to: UdAddress,
    /// The process behind the address depends on the queue pair number, which each datagram has.
    way: Way,
}

handle!(Ah, ibv_ah);

impl Ah {
    /// The destination of a datagram to a queue pair behind this address.
    #[inline]
    pub(crate) fn address(&self, qpn: u32, qkey: u32) -> UdAddress {
        let qpn = QpNumber::new(qpn);
        UdAddress { qpn, qkey, path: self.way.path(qpn), ..self.to }
    }
}

/// Checks what every address vector on RoCE needs: the port, a global route, a source GID that exists,
/// a destination.
///
/// # Safety
/// `context` is open.
pub(crate) unsafe fn check_route(context: *mut ibv_context, attr: &ibv_ah_attr) -> Result<(), c_int> {
    // SAFETY: by the caller's promise.
    let device = unsafe { device_of(context) };
    let known_source = device.gid(attr.grh.sgid_index.into()).is_some();
    if attr.port_num != PORT || attr.is_global == 0 || !known_source || Gid(attr.grh.dgid.0).is_zero() {
        return Err(libc::EINVAL);
    }
    Ok(())
}

/// Creates an address handle.
///
/// # Safety
/// C ABI: see `ibv_create_ah(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: the caller passes a live domain and valid attributes.
    let (domain, attr) = unsafe { (Pd::of(pd), &*attr) };
    pointer_or_null((|| {
        let context = domain.context();
        // SAFETY: the domain's context is open.
        unsafe { check_route(context, attr) }?;
        domain.hold();
        let to = UdAddress {
            dgid: Gid(attr.grh.dgid.0),
            qpn: QpNumber::default(),
            qkey: 0,
            traffic_class: attr.grh.traffic_class,
            hop_limit: attr.grh.hop_limit,
            path: PathId::DEFAULT,
        };
        let way = host::way_to(to.dgid);
        Ok(Ah { ibv: ibv_ah { context, pd, handle: 0 }.into(), pd: domain.id, to, way }.give())
    })())
}

/// Destroys an address handle.
///
/// # Safety
/// C ABI: see `ibv_create_ah(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    // SAFETY: the caller passes a live handle and gives it up; its domain outlives it.
    unsafe {
        Pd::of((*ah).pd).release();
        drop(Ah::take(ah));
    }
    0
}

/// Source and destination of a received datagram, from its GRH area: an IPv6 header, or an IPv4 header
/// in the last 20 bytes (IBTA A17.4.5.2).
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) from: Gid,
    to: Gid,
    traffic_class: u8,
    hop_limit: u8,
    flow_label: u32,
}

pub(crate) fn received(area: &[u8; 40]) -> Received {
    let (v6, v4) = area.split_at(20);
    if v4[0] == 0x45 && adverb_wire::ip::Ipv4::parse(v4, usize::from(u16::MAX)).is_ok() {
        let mapped = |b: &[u8]| Gid::from(core::net::Ipv4Addr::new(b[0], b[1], b[2], b[3]));
        return Received {
            from: mapped(&v4[12..16]),
            to: mapped(&v4[16..20]),
            traffic_class: v4[1],
            hop_limit: v4[8],
            flow_label: 0,
        };
    }
    let word = u32::from_be_bytes([v6[0], v6[1], v6[2], v6[3]]);
    let gid = |at: usize| {
        let mut gid = [0; 16];
        gid.copy_from_slice(&area[at..at + 16]);
        Gid(gid)
    };
    Received {
        from: gid(8),
        to: gid(24),
        traffic_class: (word >> 20) as u8,
        hop_limit: v6[7],
        flow_label: word & 0xf_ffff,
    }
}

/// The attributes of the way back to the sender of a datagram.
///
/// # Safety
/// C ABI: see `ibv_init_ah_from_wc(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    attr: *mut ibv_ah_attr,
) -> c_int {
    // SAFETY: the caller passes an open context, a completion, and the 40 bytes before its payload.
    let (device, wc, area) = unsafe { (device_of(context), &*wc, *grh.cast::<[u8; 40]>()) };
    // SAFETY: integers only.
    let mut out: ibv_ah_attr = unsafe { core::mem::zeroed() };
    out.port_num = port;
    out.src_path_bits = wc.dlid_path_bits;
    if port != PORT || wc.wc_flags & IBV_WC_GRH == 0 {
        set_errno(libc::EINVAL);
        return -1;
    }
    let back = received(&area);
    let index = device.gids.iter().position(|gid| *gid == back.to);
    // What came to a group goes back from the first address.
    let Some(index) = index.or(back.to.is_multicast().then_some(0)) else {
        set_errno(libc::EINVAL);
        return -1;
    };
    out.is_global = 1;
    out.grh = ibv_global_route {
        dgid: ibv_gid(back.from.0),
        flow_label: back.flow_label,
        sgid_index: index as u8,
        hop_limit: back.hop_limit,
        traffic_class: back.traffic_class,
    };
    // SAFETY: the caller passes a place for the attributes.
    unsafe { *attr = out };
    0
}

/// An address handle for the way back to the sender of a datagram.
///
/// # Safety
/// C ABI: see `ibv_create_ah_from_wc(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port: u8,
) -> *mut ibv_ah {
    // SAFETY: integers only.
    let mut attr: ibv_ah_attr = unsafe { core::mem::zeroed() };
    // SAFETY: as the caller promises.
    unsafe {
        if ibv_init_ah_from_wc((*pd).context, port, wc, grh, &mut attr) != 0 {
            return core::ptr::null_mut();
        }
        ibv_create_ah(pd, &mut attr)
    }
}

/// The Ethernet address of a destination: the NIC sits on sockets and never sees one.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_resolve_eth_l2_from_gid(
    _context: *mut ibv_context,
    _attr: *mut ibv_ah_attr,
    _eth_mac: *mut u8,
    _vid: *mut u16,
) -> c_int {
    set_errno(libc::EOPNOTSUPP);
    -1
}

/// Lets a datagram queue pair receive what is sent to a group.
///
/// # Safety
/// C ABI: see `ibv_attach_mcast(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
    // SAFETY: the caller passes a live queue pair and a GID.
    let (queue, group) = unsafe { (Qp::of(qp), Gid((*gid).0)) };
    code((|| {
        if !group.is_multicast() {
            return Err(libc::EINVAL);
        }
        host::control(|nic| nic.attach_multicast(queue.id, group))?;
        host::join(group).inspect_err(|_| {
            // Undo; it was attached just now.
            let _ = host::control(|nic| nic.detach_multicast(queue.id, group));
        })
    })())
}

/// Takes a queue pair out of a multicast group.
///
/// # Safety
/// C ABI: see `ibv_attach_mcast(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
    // SAFETY: the caller passes a live queue pair and a GID.
    let (queue, group) = unsafe { (Qp::of(qp), Gid((*gid).0)) };
    code(host::control(|nic| nic.detach_multicast(queue.id, group)).map(|()| host::leave(group)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_header_are_read() {
        let mut area = [0u8; 40];
        area[20..]
            .copy_from_slice(&[0x45, 0x02, 0, 60, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        let sum = area[20..].chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum::<u32>();
        let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
        area[30..32].copy_from_slice(&checksum.to_be_bytes());
        let v4 = received(&area);
        assert_eq!(v4.from, Gid::from(core::net::Ipv4Addr::new(10, 0, 0, 1)));
        assert_eq!(v4.to, Gid::from(core::net::Ipv4Addr::new(10, 0, 0, 2)));
        assert_eq!((v4.traffic_class, v4.hop_limit), (2, 64));

        let mut area = [0u8; 40];
        area[..8].copy_from_slice(&[0x60, 0x51, 0x23, 0x45, 0, 20, 17, 9]);
        area[23] = 1;
        area[39] = 2;
        let v6 = received(&area);
        assert_eq!((v6.from.0[15], v6.to.0[15]), (1, 2));
        assert_eq!((v6.traffic_class, v6.hop_limit, v6.flow_label), (5, 9, 0x1_2345));
    }
}
