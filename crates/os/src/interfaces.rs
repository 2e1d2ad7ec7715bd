//! The network interfaces of this host: their addresses, MTUs and link-layer addresses, and which address a
//! host goes by.
#![allow(unsafe_code)]

use crate::check;
use adverb_wire::ROCE_UDP_PORT;
use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// One address of one network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// Interface name.
    pub name: String,
    /// Interface index.
    pub index: u32,
    /// The address.
    pub address: IpAddr,
    /// Its netmask.
    pub netmask: IpAddr,
    /// The interface is up.
    pub up: bool,
    /// The interface is a loopback.
    pub loopback: bool,
}

/// Addresses of this network namespace's interfaces.
pub fn interface_addresses() -> io::Result<Vec<InterfaceAddress>> {
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: `list` is a valid place for the answer.
    check(unsafe { libc::getifaddrs(&mut list) })?;
    let mut found = Vec::new();
    let mut at = list;
    while !at.is_null() {
        // SAFETY: `at` is a node of the list, which lives until freeifaddrs below; its name is a C string,
        // and its addresses are null or valid for their family.
        unsafe {
            let node = &*at;
            at = node.ifa_next;
            if let (Some(address), Some(netmask)) =
                (sockaddr_ip(node.ifa_addr), sockaddr_ip(node.ifa_netmask))
            {
                found.push(InterfaceAddress {
                    name: CStr::from_ptr(node.ifa_name).to_string_lossy().into_owned(),
                    index: libc::if_nametoindex(node.ifa_name),
                    address,
                    netmask,
                    up: node.ifa_flags & libc::IFF_UP as u32 != 0,
                    loopback: node.ifa_flags & libc::IFF_LOOPBACK as u32 != 0,
                });
            }
        }
    }
    // SAFETY: the list came from getifaddrs and is not used afterwards.
    unsafe { libc::freeifaddrs(list) };
    Ok(found)
}

/// Reads the address out of a socket address.
///
/// # Safety
/// `address` is null, or points to a socket address that is as long as its family says.
unsafe fn sockaddr_ip(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: the caller vouches for the pointer; each cast is to the type its family names.
    unsafe {
        match libc::c_int::from(address.as_ref()?.sa_family) {
            libc::AF_INET => {
                let v4 = &*address.cast::<libc::sockaddr_in>();
                Some(IpAddr::V4(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr))))
            }
            libc::AF_INET6 => {
                let v6 = &*address.cast::<libc::sockaddr_in6>();
                Some(IpAddr::V6(Ipv6Addr::from(v6.sin6_addr.s6_addr)))
            }
            _ => None,
        }
    }
}

/// MTU and link-layer address of an interface.
pub fn interface_link(socket: BorrowedFd<'_>, name: &str) -> io::Result<(u32, [u8; 6])> {
    // SAFETY: all zeroes is a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    // SAFETY: `request` is a valid record with a terminated name; each call fills the union's field that
    // is read after it.
    unsafe {
        check(libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU as libc::Ioctl, &mut request))?;
        let mtu = request.ifr_ifru.ifru_mtu.max(0) as u32;
        check(libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFHWADDR as libc::Ioctl, &mut request))?;
        let data = request.ifr_ifru.ifru_hwaddr.sa_data;
        Ok((mtu, [data[0], data[1], data[2], data[3], data[4], data[5]].map(|b| b as u8)))
    }
}

/// Where packets to the world leave from; else the first address that is up and no loopback.
pub fn default_address(all: &[InterfaceAddress]) -> IpAddr {
    // Connecting a datagram socket asks for the route and sends nothing. The addresses are of the ranges
    // for documentation (RFC 5737, RFC 3849).
    let route = |from: &str, to: &str| {
        let socket = UdpSocket::bind((from, 0)).ok()?;
        socket.connect((to, ROCE_UDP_PORT)).ok()?;
        socket.local_addr().ok().map(|a| a.ip()).filter(|ip| !ip.is_unspecified() && !ip.is_loopback())
    };
    let first_up = || all.iter().find(|a| a.up && !a.loopback && a.address.is_ipv4()).map(|a| a.address);
    route("0.0.0.0", "198.51.100.1")
        .or_else(first_up)
        .or_else(|| route("::", "2001:db8::1"))
        .unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

/// The interface that has the address, or whose subnet holds it (as for 127.0.0.2).
pub fn interface_of(all: &[InterfaceAddress], address: IpAddr) -> Option<&InterfaceAddress> {
    let same_subnet = |a: &&InterfaceAddress| match (a.address, a.netmask, address) {
        (IpAddr::V4(own), IpAddr::V4(mask), IpAddr::V4(ip)) => {
            a.loopback && own.to_bits() & mask.to_bits() == ip.to_bits() & mask.to_bits()
        }
        _ => false,
    };
    all.iter().find(|a| a.address == address).or_else(|| all.iter().find(same_subnet))
}

/// MTU of the interface that has an address. `None` where the address is not this host's.
pub fn mtu_of(address: IpAddr) -> Option<u32> {
    let probe = UdpSocket::bind((address, 0)).ok()?;
    let all = interface_addresses().ok()?;
    let name = interface_of(&all, address).map_or("lo", |interface| &interface.name);
    interface_link(probe.as_fd(), name).ok().map(|(mtu, _)| mtu)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_is_found() {
        let addresses = interface_addresses().unwrap();
        let lo = addresses.iter().find(|a| a.address == IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap();
        assert!(lo.loopback && lo.up && lo.index > 0);
        assert_eq!(lo.netmask, IpAddr::V4(Ipv4Addr::new(255, 0, 0, 0)));
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let (mtu, mac) = interface_link(socket.as_fd(), &lo.name).unwrap();
        assert!(mtu >= 1280);
        assert_eq!(mac, [0; 6]);
        assert!(interface_link(socket.as_fd(), "a name that is too long").is_err());
    }

    #[test]
    fn an_address_has_its_interfaces_mtu() {
        assert_eq!(mtu_of(IpAddr::from([127, 0, 0, 9])), Some(65_536));
        assert_eq!(mtu_of(IpAddr::from([192, 0, 2, 77])), None, "not an address of this host");
    }
}
