//! What the NIC looks like to programs: its address, GIDs, interface, MTU and identifiers.

use crate::error::OpenError;
use crate::settings::Settings;
use adverb_nic::Mtu;
use adverb_os::capture::mac_of;
use adverb_os::interfaces::{default_address, interface_addresses, interface_link, interface_of};
use adverb_wire::Gid;
use adverb_wire::eth::Mac;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsFd;

/// Name of the device.
pub const DEVICE_NAME: &str = "adverb0";

/// Entries of the GID table, unless the user wants others.
const GIDS: u8 = 2;

/// MTU of a switch's port: the largest path MTU fits.
const VIA_MTU: u32 = 9000;

/// The device that this host offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// `adverb0`.
    pub name: String,
    /// The address whose UDP port 4791 the NIC uses.
    pub address: IpAddr,
    /// Source addresses by GID index: all the same one, as on adapters that list each address once per RoCE
    /// version. Two serve programs that are told to use index 0 or 1; some have a 3 written into them, and
    /// want [`Settings::gids`] to be 4.
    pub gids: Vec<Gid>,
    /// Network interface that has the address.
    pub interface: String,
    /// Its index.
    pub interface_index: u32,
    /// Its MTU in bytes.
    pub link_mtu: u32,
    /// Largest path MTU that fits.
    pub active_mtu: Mtu,
    /// Link-layer address; one made of the IP address where the interface has none.
    pub mac: Mac,
    /// Node GUID in host order, made of the address.
    pub node_guid: u64,
    /// Process slot, the upper eight bits of queue pair numbers; zero before the NIC is open.
    pub slot: u8,
}

/// The device that [`Host::open`](crate::Host::open) would open, without opening it.
pub fn devices(settings: &Settings) -> Result<DeviceInfo, OpenError> {
    if settings.via.is_some() {
        return via_device(settings);
    }
    let system = |what| move |source| OpenError::System { what, source };
    let all = interface_addresses().map_err(system("listing the network interfaces"))?;
    let address = settings.address.unwrap_or_else(|| default_address(&all));
    let probe = UdpSocket::bind((address, 0)).map_err(|source| OpenError::Address { address, source })?;
    if address.is_unspecified() || address.is_multicast() {
        let source = io::Error::from(io::ErrorKind::AddrNotAvailable);
        return Err(OpenError::Address { address, source });
    }
    let interface = interface_of(&all, address);
    let (name, index) = interface.map_or(("lo", 1), |i| (&*i.name, i.index));
    let (link_mtu, mac) = interface_link(probe.as_fd(), name).unwrap_or((1500, [0; 6]));
    let gid = Gid::from(address);
    Ok(DeviceInfo {
        name: DEVICE_NAME.to_owned(),
        address,
        gids: vec![gid; settings.gids.unwrap_or(GIDS).into()],
        interface: name.to_owned(),
        interface_index: index,
        link_mtu,
        active_mtu: Mtu::fitting(link_mtu),
        mac: if mac == [0; 6] { mac_of(gid) } else { Mac(mac) },
        node_guid: node_guid(gid),
        slot: 0,
    })
}

/// The device behind a switch: its address need not be one of this host's, and no interface has it. Programs
/// are told of the one that every host has.
fn via_device(settings: &Settings) -> Result<DeviceInfo, OpenError> {
    let address = settings.address.ok_or(OpenError::ViaAddress { address: None })?;
    if address.is_unspecified() || address.is_multicast() {
        return Err(OpenError::ViaAddress { address: Some(address) });
    }
    let gid = Gid::from(address);
    Ok(DeviceInfo {
        name: DEVICE_NAME.to_owned(),
        address,
        gids: vec![gid; settings.gids.unwrap_or(GIDS).into()],
        interface: "lo".to_owned(),
        interface_index: 1,
        link_mtu: VIA_MTU,
        active_mtu: Mtu::fitting(VIA_MTU),
        mac: mac_of(gid),
        node_guid: node_guid(gid),
        slot: 0,
    })
}

/// A locally administered EUI-64 that differs where addresses differ (for IPv4 certainly).
fn node_guid(gid: Gid) -> u64 {
    const LOCAL: u64 = 0x02ad << 48;
    let [high, low] = [0, 8].map(|at| u64::from_be_bytes(gid.0[at..at + 8].try_into().unwrap_or_default()));
    match gid.is_ipv4() {
        true => LOCAL | 0xfffe << 32 | low & 0xffff_ffff,
        false => {
            let mixed = (high ^ low.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            LOCAL | mixed >> 16
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_devices() {
        for (address, mtu) in [("127.0.0.1", Mtu::M4096), ("127.0.0.2", Mtu::M4096)] {
            let address: IpAddr = address.parse().unwrap();
            let settings = Settings { address: Some(address), ..Settings::default() };
            let device = devices(&settings).unwrap();
            assert_eq!((&*device.name, device.address, device.slot), ("adverb0", address, 0));
            assert_eq!((&*device.interface, device.active_mtu), ("lo", mtu));
            assert_eq!((device.gids[0].ip(), device.gids.len()), (address, 2));
            let four = devices(&Settings { gids: Some(4), ..settings }).unwrap();
            assert_eq!(four.gids, [device.gids[0]; 4]);
            assert_ne!(device.mac, Mac([0; 6]));
            assert_eq!(device.node_guid >> 48, 0x02ad);
        }
    }

    #[test]
    fn foreign_addresses_are_refused() {
        for address in ["192.0.2.77", "0.0.0.0", "224.0.0.1"] {
            let settings = Settings { address: address.parse().ok(), ..Settings::default() };
            let error = devices(&settings).unwrap_err();
            assert!(matches!(error, OpenError::Address { .. }), "{error:?}");
            assert!(error.to_string().contains("address="));
        }
    }

    #[test]
    fn behind_a_switch_any_hosts_address_will_do() {
        let settings = |address: Option<&str>| Settings {
            address: address.map(|text| text.parse().unwrap()),
            via: Some("sw0".into()),
            ..Settings::default()
        };
        let device = devices(&settings(Some("192.0.2.77"))).unwrap();
        assert_eq!((device.gids[0].ip().to_string(), device.active_mtu), ("192.0.2.77".into(), Mtu::M4096));
        for (address, said) in
            [(None, "needs an address="), (Some("0.0.0.0"), "no host's"), (Some("ff02::1"), "no host's")]
        {
            let error = devices(&settings(address)).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn the_default_address_can_be_bound() {
        let device = devices(&Settings::default()).unwrap();
        assert!(UdpSocket::bind((device.address, 0)).is_ok());
        assert!(device.interface_index > 0);
    }

    #[test]
    fn identifiers_differ_with_the_address() {
        let guid = |text: &str| node_guid(Gid::from(text.parse::<IpAddr>().unwrap()));
        assert_ne!(guid("10.0.0.1"), guid("10.0.0.2"));
        assert_ne!(guid("fd00::1"), guid("fd00::2"));
        assert_ne!(guid("fd00::1"), guid("fd01::1"));
    }
}
