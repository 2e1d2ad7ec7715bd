//! Addresses of identifiers: binding, resolving a peer's address, the path to it.
//!
//! The NIC has one address. A program may bind to it, or to any (0.0.0.0, ::, and, as with the kernel's, to
//! loopback addresses that are not the NIC's). Peers are reached by UDP, or by a switch's port.

use crate::abi::*;
use crate::cm::channel::Told;
use crate::cm::id::{Id, Phase};
use crate::cm::{common_context, common_pd, device, done, open};
use crate::host;
use crate::query::PORT;
use adverb_io::cm::Bind;
use adverb_nic::cm::{PortSpace, Service};
use adverb_os::interfaces::interface_addresses;
use adverb_wire::Gid;
use core::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};

/// Where adapters have the RoCE v2 form of their address.
pub(super) const ROCE_GID_INDEX: u8 = 1;
/// Hop limit of paths.
pub(super) const HOP_LIMIT: u8 = 64;
/// The partition of all of RoCE.
const PKEY: u16 = 0xffff;
/// `path_rec.packet_life_time`, and the selector that says "exactly" (IBTA 15.2.5.16).
const PACKET_LIFE_TIME: u8 = 18;
const EXACTLY: u8 = 2;

/// An index that the GID table has.
pub(super) fn source_gid_index(wanted: u8) -> u8 {
    device().map_or(0, |device| if device.gid(wanted.into()).is_some() { wanted } else { 0 })
}

/// Both ends of an identifier.
pub(super) struct Endpoints {
    pub(super) src: SocketAddr,
    pub(super) dst: SocketAddr,
    /// As the wire has them.
    pub(super) sgid: Gid,
    pub(super) dgid: Gid,
}

impl Endpoints {
    /// Of a request that came in.
    pub(super) fn asked(own: Gid, service: Service, peer: Gid, peer_port: u16) -> Endpoints {
        Endpoints {
            src: SocketAddr::new(own.ip(), service.port),
            dst: SocketAddr::new(peer.ip(), peer_port),
            sgid: own,
            dgid: peer,
        }
    }
}

/// Reads a C address. `None` for a family that is not IP's.
///
/// # Safety
/// `address` is a valid address of its family.
pub(super) unsafe fn read(address: *const libc::sockaddr) -> Option<SocketAddr> {
    // SAFETY: by the caller's promise; the program's address need not be aligned.
    unsafe {
        match i32::from((&raw const (*address).sa_family).read_unaligned()) {
            libc::AF_INET => {
                let v4 = address.cast::<libc::sockaddr_in>().read_unaligned();
                let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
                Some(SocketAddr::V4(SocketAddrV4::new(ip, u16::from_be(v4.sin_port))))
            }
            libc::AF_INET6 => {
                let v6 = address.cast::<libc::sockaddr_in6>().read_unaligned();
                let ip = v6.sin6_addr.s6_addr.into();
                let port = u16::from_be(v6.sin6_port);
                Some(SocketAddr::V6(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id)))
            }
            _ => None,
        }
    }
}

/// An address for C.
pub(super) fn write(address: &SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: integers.
    let mut storage: libc::sockaddr_storage = unsafe { core::mem::zeroed() };
    let to = &raw mut storage;
    let length = match address {
        SocketAddr::V4(v4) => {
            // SAFETY: integers; the storage has room and alignment for every family.
            unsafe {
                let mut c: libc::sockaddr_in = core::mem::zeroed();
                c.sin_family = libc::AF_INET as libc::sa_family_t;
                c.sin_port = v4.port().to_be();
                c.sin_addr.s_addr = u32::from(*v4.ip()).to_be();
                to.cast::<libc::sockaddr_in>().write(c);
            }
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            // SAFETY: as above.
            unsafe {
                let mut c: libc::sockaddr_in6 = core::mem::zeroed();
                c.sin6_family = libc::AF_INET6 as libc::sa_family_t;
                c.sin6_port = v6.port().to_be();
                c.sin6_addr.s6_addr = v6.ip().octets();
                c.sin6_flowinfo = v6.flowinfo();
                c.sin6_scope_id = v6.scope_id();
                to.cast::<libc::sockaddr_in6>().write(c);
            }
            size_of::<libc::sockaddr_in6>()
        }
    };
    (storage, length as libc::socklen_t)
}

/// Writes both ends into an identifier.
///
/// # Safety
/// It is alive.
pub(super) unsafe fn set_endpoints(c: *mut rdma_cm_id, endpoints: &Endpoints) {
    // SAFETY: by the caller's promise.
    unsafe {
        (*c).route.addr.src_storage = write(&endpoints.src).0;
        (*c).route.addr.dst_storage = write(&endpoints.dst).0;
        (*c).route.addr.addr = rdma_ib_addr {
            sgid: ibv_gid(endpoints.sgid.0),
            dgid: ibv_gid(endpoints.dgid.0),
            pkey: PKEY.to_be(),
        };
        (*c).port_num = PORT;
    }
}

/// Gives an identifier the path to its peer.
///
/// # Safety
/// It is alive, and its ends are set.
pub(super) unsafe fn set_path(c: *mut rdma_cm_id, mtu: Option<u8>) {
    // SAFETY: integers.
    let mut path: ibv_sa_path_rec = unsafe { core::mem::zeroed() };
    // SAFETY: by the caller's promise.
    unsafe {
        path.dgid = (*c).route.addr.addr.dgid;
        path.sgid = (*c).route.addr.addr.sgid;
        path.hop_limit = HOP_LIMIT;
        path.reversible = 1;
        path.numb_path = 1;
        path.pkey = PKEY.to_be();
        path.mtu_selector = EXACTLY;
        path.mtu = mtu.unwrap_or_else(own_mtu);
        path.rate_selector = EXACTLY;
        path.packet_life_time_selector = EXACTLY;
        path.packet_life_time = PACKET_LIFE_TIME;
        free_path(c);
        (*c).route.path_rec = Box::into_raw(Box::new(path));
        (*c).route.num_paths = 1;
    }
}

/// Frees an identifier's path.
///
/// # Safety
/// It is alive.
pub(super) unsafe fn free_path(c: *mut rdma_cm_id) {
    // SAFETY: by the caller's promise; `set_path` boxed it.
    unsafe {
        let path = core::mem::replace(&mut (*c).route.path_rec, core::ptr::null_mut());
        if !path.is_null() {
            drop(Box::from_raw(path));
        }
        (*c).route.num_paths = 0;
    }
}

/// The port's MTU as verbs numbers it.
pub(super) fn own_mtu() -> u8 {
    device().map_or(0, |device| device.mtu as u8)
}

/// The NIC's address.
pub(super) fn own_address() -> Result<IpAddr, c_int> {
    Ok(device()?.gid(0).ok_or(libc::ENODEV)?.ip())
}

/// The same address, in one form: IPv6 has one for each of IPv4's.
fn plain(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

/// What a program may bind to: the NIC's own address, or any.
pub(super) fn bindable(address: IpAddr) -> Result<bool, c_int> {
    let address = plain(address);
    if address == own_address()? {
        return Ok(true);
    }
    if address.is_unspecified() || address.is_loopback() {
        return Ok(false);
    }
    let of_host = interface_addresses().map_err(|e| e.raw_os_error().unwrap_or(libc::EIO))?;
    let known = of_host.iter().any(|interface| plain(interface.address) == address);
    Err(if known { libc::ENODEV } else { libc::EADDRNOTAVAIL })
}

/// Says which device an identifier is on, and which domain it has unless the program chooses another.
///
/// # Safety
/// The identifier is alive, and nobody else writes these fields meanwhile.
pub(super) unsafe fn set_device(c: *mut rdma_cm_id) {
    // SAFETY: by the caller's promise.
    unsafe {
        (*c).verbs = common_context();
        if (*c).pd.is_null() {
            (*c).pd = common_pd();
        }
    }
}

/// Binds an identifier: its port is taken, and if it names the NIC's address, its device is known.
fn bind(id: &Id, address: SocketAddr) -> Result<(), c_int> {
    let mut state = id.state();
    if state.phase != Phase::Idle {
        return Err(libc::EINVAL);
    }
    if id.space() == PortSpace::Ipoib {
        return Err(libc::EINVAL);
    }
    let own = bindable(address.ip())?;
    open()?;
    let bind = Bind {
        space: id.space(),
        port: address.port(),
        address: address.ip(),
        reuse: state.options.reuse,
        af_only: state.options.af_only,
    };
    let binding = host::cm(|host| host.cm_bind(&bind))?;
    let mut bound = address;
    bound.set_port(binding.service.port);
    state.binding = Some(binding);
    state.phase = Phase::Bound;
    let c = id.as_c();
    // SAFETY: the live identifier's own fields, written under its lock.
    unsafe {
        (*c).route.addr.src_storage = write(&bound).0;
        if own {
            set_device(c);
            (*c).port_num = PORT;
            (*c).route.addr.addr.sgid = ibv_gid(Gid::from(plain(address.ip())).0);
            (*c).route.addr.addr.pkey = PKEY.to_be();
        }
    }
    Ok(())
}

/// Binds an identifier that names no address to any, as `rdma_listen` does.
pub(super) fn bind_any(id: &Id) -> Result<(), c_int> {
    bind(id, SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)))
}

/// Binds to an address and a port. Where the address is the NIC's own, its device is known from now on.
///
/// # Safety
/// C ABI: see `rdma_bind_addr(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, address: *mut libc::sockaddr) -> c_int {
    if id.is_null() || address.is_null() {
        return done(Err(libc::EINVAL));
    }
    // SAFETY: the caller passes a live identifier and a valid address.
    let (id, address) = unsafe { (Id::of(id), read(address)) };
    done(address.ok_or(libc::EINVAL).and_then(|address| bind(id, address)))
}

/// Whether the NIC can reach an address: the kernel is asked, unless a switch's port is the way.
fn reaches(own: IpAddr, peer: IpAddr) -> Result<bool, c_int> {
    if own.is_ipv4() != peer.is_ipv4() {
        return Ok(false);
    }
    // A group is reached where it is joined.
    if own == peer || peer.is_multicast() || host::settings()?.via.is_some() {
        return Ok(true);
    }
    let socket = UdpSocket::bind((own, 0)).map_err(|e| e.raw_os_error().unwrap_or(libc::EIO))?;
    Ok(socket.connect((peer, adverb_wire::ROCE_UDP_PORT)).is_ok())
}

/// Finds by which device a peer is reached; an event says what came of it.
fn resolve(id: &Id, src: Option<SocketAddr>, dst: SocketAddr) -> Result<(), c_int> {
    let idle = id.state().phase == Phase::Idle;
    let own = own_address()?;
    if let Some(src) = src
        && src.is_ipv4() != dst.is_ipv4()
    {
        return Err(libc::EINVAL);
    }
    if idle {
        let any = if dst.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let any = any.parse().map_err(|_| libc::EINVAL)?;
        bind(id, src.unwrap_or(any))?;
    }
    let mut state = id.state();
    if state.phase != Phase::Bound {
        return Err(libc::EINVAL);
    }
    let peer = if dst.ip().is_unspecified() { own } else { plain(dst.ip()) };
    if !reaches(own, peer)? {
        drop(state);
        id.tell(Told::Local(RDMA_CM_EVENT_ADDR_ERROR, -libc::ENODEV));
        return Ok(());
    }
    let port = state.binding.as_ref().map_or(0, |binding| binding.service.port);
    let src_ip = if dst.is_ipv6() && own.is_ipv4() { Gid::from(own).0.into() } else { own };
    let endpoints = Endpoints {
        src: SocketAddr::new(src_ip, port),
        dst: if dst.ip().is_unspecified() { SocketAddr::new(own, dst.port()) } else { dst },
        sgid: Gid::from(own),
        dgid: Gid::from(peer),
    };
    let c = id.as_c();
    // SAFETY: the live identifier's own fields, written under its lock.
    unsafe {
        set_device(c);
        set_endpoints(c, &endpoints);
    }
    state.phase = Phase::Address;
    drop(state);
    id.tell(Told::Local(RDMA_CM_EVENT_ADDR_RESOLVED, 0));
    Ok(())
}

/// Finds by which device a peer is reached.
///
/// # Safety
/// C ABI: see `rdma_resolve_addr(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    src: *mut libc::sockaddr,
    dst: *mut libc::sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    if id.is_null() || dst.is_null() {
        return done(Err(libc::EINVAL));
    }
    // SAFETY: the caller passes a live identifier and valid addresses, or NULL for the source.
    unsafe {
        let id = Id::of(id);
        let src = if src.is_null() { Ok(None) } else { read(src).map(Some).ok_or(libc::EINVAL) };
        let begun = src.and_then(|src| resolve(id, src, read(dst).ok_or(libc::EINVAL)?));
        done(begun.and_then(|()| id.complete()))
    }
}

/// Finds the path to a peer whose address is resolved.
///
/// # Safety
/// C ABI: see `rdma_resolve_route(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_resolve_route(id: *mut rdma_cm_id, _timeout_ms: c_int) -> c_int {
    if id.is_null() {
        return done(Err(libc::EINVAL));
    }
    // SAFETY: the caller passes a live identifier.
    unsafe {
        let id = Id::of(id);
        {
            let mut state = id.state();
            if state.phase != Phase::Address {
                return done(Err(libc::EINVAL));
            }
            set_path(id.as_c(), None);
            state.phase = Phase::Route;
        }
        id.tell(Told::Local(RDMA_CM_EVENT_ROUTE_RESOLVED, 0));
        done(id.complete())
    }
}

/// The port of an address, in network order.
fn port_of(address: &libc::sockaddr_storage) -> u16 {
    // SAFETY: the storage holds a valid address, or zeroes.
    let address = unsafe { read(core::ptr::from_ref(address).cast()) };
    address.map_or(0, |address| address.port().to_be())
}

/// The port that an identifier is bound to, in network order.
///
/// # Safety
/// C ABI: see `rdma_get_src_port(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: the caller passes a live identifier.
    port_of(unsafe { &(*id).route.addr.src_storage })
}

/// The peer's port, in network order.
///
/// # Safety
/// C ABI: see `rdma_get_dst_port(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: the caller passes a live identifier.
    port_of(unsafe { &(*id).route.addr.dst_storage })
}
