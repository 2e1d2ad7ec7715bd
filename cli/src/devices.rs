//! `adverb devices`: the NIC that programs will see.

use crate::args::{Devices, Nic};
use crate::error::Error;
use crate::settings;
use adverb_io::DeviceInfo;
use serde_json::json;
use std::io::Write;
use std::net::Ipv6Addr;

/// A port without a link would be a NIC that could not be made, which is an error before this.
const STATE: &str = "active";

/// Prints the device as a table, or as JSON.
pub fn list(arguments: &Devices) -> Result<(), Error> {
    let settings = settings::from_options(&Nic { address: arguments.address, ..Nic::default() })?;
    let device = adverb_io::devices(&settings).map_err(|e| Error::Device(e.to_string()))?;
    let text = if arguments.json { as_json(&device) } else { as_table(&device) };
    std::io::stdout().write_all(text.as_bytes()).map_err(Error::Output)
}

fn as_table(device: &DeviceInfo) -> String {
    let mut rows = vec![["device", "port", "state", "interface", "MTU", "index", "GID"].map(str::to_owned)];
    for (index, gid) in device.gids.iter().enumerate() {
        let mut row = [&*device.name, "1", STATE, &*device.interface, "", "", ""].map(str::to_owned);
        row[4] = device.active_mtu.bytes().to_string();
        row[5] = index.to_string();
        row[6] = Ipv6Addr::from(gid.0).to_string();
        rows.push(row);
    }
    let widths: Vec<usize> = (0..rows[0].len())
        .map(|column| rows.iter().map(|row| row[column].len()).max().unwrap_or(0))
        .collect();
    let mut text = String::new();
    for row in &rows {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

fn as_json(device: &DeviceInfo) -> String {
    let gids: Vec<String> = device.gids.iter().map(|gid| Ipv6Addr::from(gid.0).to_string()).collect();
    let value = json!([{
        "name": device.name,
        "port": 1,
        "state": STATE,
        "address": device.address.to_string(),
        "interface": device.interface,
        "link_mtu": device.link_mtu,
        "active_mtu": device.active_mtu.bytes(),
        "gids": gids,
        "node_guid": format!("{:016x}", device.node_guid),
    }]);
    format!("{value:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use adverb_io::Settings;

    fn loopback() -> DeviceInfo {
        let settings = Settings { address: Some("127.0.0.1".parse().unwrap()), ..Settings::default() };
        adverb_io::devices(&settings).unwrap()
    }

    #[test]
    fn the_table_has_a_row_for_each_gid_in_straight_columns() {
        let device = loopback();
        let table = as_table(&device);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 1 + device.gids.len());
        let column = lines[0].find("GID").unwrap();
        for line in &lines[1..] {
            assert_eq!(&line[column..], "::ffff:127.0.0.1");
            assert!(line.starts_with("adverb0  1     active  lo"), "{line}");
        }
    }

    #[test]
    fn the_json_says_the_same() {
        let value: serde_json::Value = serde_json::from_str(&as_json(&loopback())).unwrap();
        assert_eq!(value[0]["address"], "127.0.0.1");
        assert_eq!(value[0]["active_mtu"], 4096);
        assert_eq!(value[0]["gids"][0], "::ffff:127.0.0.1");
    }
}
