//! The RPC's messages: a length of four bytes, big-endian, then postcard's encoding of a [`Request`] or an
//! [`Answer`]. Within TLS, whose ALPN names the version, so nothing here has to.
//!
//! Messages carry keys, so buffers are made in their final size and erased. (rustls erases its keys, not the
//! records that pass through it.)

use crate::error::{Error, Refusal, lost};
use adverb_nic::one_rma::{RegionId, Rights};
use serde::de::{DeserializeOwned, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::io::{Read, Write};
use std::net::IpAddr;
use zeroize::Zeroizing;

/// Both sides name it in TLS; who speaks another version is refused there.
pub const ALPN: &[u8] = b"adverb-grants/1";
/// Bytes of a message at most: an application's largest call, and room for what stands around it.
pub const MAX_MESSAGE: usize = (4 << 20) + 4096;
/// Bytes of a region's name at most.
pub const MAX_NAME: usize = 128;
/// Leases in one question for news at most.
pub const MAX_HELD: usize = 1024;

/// Bytes that may be secret: not shown, erased when dropped.
pub(crate) struct Secret(pub Zeroizing<Vec<u8>>);

impl From<&[u8]> for Secret {
    fn from(bytes: &[u8]) -> Secret {
        Secret(Zeroizing::new(bytes.to_vec()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Secret, D::Error> {
        struct Bytes;
        impl<'de> Visitor<'de> for Bytes {
            type Value = Secret;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }
            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Secret, E> {
                Ok(Secret::from(bytes))
            }
        }
        deserializer.deserialize_bytes(Bytes)
    }
}

/// What a client asks.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) enum Request {
    /// Who am I, and who is there?
    Hello,
    List,
    Grant(Ask),
    Renew {
        lease: u64,
    },
    Release {
        lease: u64,
    },
    Rotate {
        region: String,
    },
    /// Answered when there is news of these leases' keys, or after this time.
    Watch {
        held: Vec<Known>,
        wait_ms: u32,
    },
    /// For the application.
    Call(Secret),
}

/// What a grant is asked for.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(crate) struct Ask {
    pub region: String,
    pub address: IpAddr,
    pub pid: u32,
    pub rights: u8,
    pub ttl_ms: u64,
}

/// What a client knows of a lease's keys: the epoch of the one that it uses, and the latest that it was told
/// of.
#[derive(Serialize, Deserialize, Clone, Copy, Debug)]
pub(crate) struct Known {
    pub lease: u64,
    pub epoch: u64,
    pub announced: u64,
}

/// Keys of a lease.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) struct Issued {
    pub lease: u64,
    /// Counts the keys of the region.
    pub epoch: u64,
    /// Or announced, to be used once the one before is refused.
    pub in_force: bool,
    pub left_ms: u64,
    /// `Grant::to_bytes`.
    pub grant: Secret,
}

/// What the owner answers.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) enum Answer {
    Hello { client: String },
    Regions(Vec<RegionInfo>),
    Issued(Issued),
    Released,
    Rotated(Rotation),
    Told(Vec<Issued>),
    Called(Secret),
    Refused(Refusal),
}

/// A region, as those see it who may use it.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct RegionInfo {
    /// Its name.
    pub name: String,
    /// The NIC that has it.
    pub address: IpAddr,
    id: u32,
    /// Bytes.
    pub len: u64,
    rights: u8,
    /// How many times its key has changed.
    pub epoch: u64,
    /// Leases of all clients.
    pub leases: u32,
}

impl RegionInfo {
    /// As an owner tells it: the region's name here, the NIC's name for it and its bytes, the NIC, the
    /// asker's rights, how many times its key has changed and how many leases there are.
    pub fn new(
        name: &str,
        (id, len): (RegionId, u64),
        address: IpAddr,
        rights: Rights,
        (epoch, leases): (u64, u32),
    ) -> RegionInfo {
        RegionInfo {
            name: name.to_owned(),
            address,
            id: id.wire(),
            len,
            rights: rights.bits(),
            epoch,
            leases,
        }
    }

    /// The NIC's name for it.
    pub fn id(&self) -> RegionId {
        RegionId::from_wire(self.id)
    }

    /// What the asker may do.
    pub fn rights(&self) -> Rights {
        Rights::from_bits_truncate(self.rights)
    }
}

/// How a region got another key.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rotation {
    /// The new key's number.
    pub epoch: u64,
    /// Leases whose holders had their new keys before.
    pub told: u32,
    /// Leases whose holders did not watch, or did not answer in time: they learn of it by a refusal.
    pub untold: u32,
    /// For how long the holders were waited for, in microseconds.
    pub waited_us: u64,
}

/// Writes a message.
pub(crate) fn send(stream: &mut impl Write, message: &impl Serialize) -> Result<(), Error> {
    let size = postcard::serialize_with_flavor(message, postcard::ser_flavors::Size::default());
    let size = size.map_err(|_| Error::Protocol("a message that cannot be written"))?;
    if size > MAX_MESSAGE {
        return Err(Error::TooLong(size));
    }
    let mut bytes = Zeroizing::new(vec![0; 4 + size]);
    bytes[..4].copy_from_slice(&(size as u32).to_be_bytes());
    postcard::to_slice(message, &mut bytes[4..])
        .map_err(|_| Error::Protocol("a message that cannot be written"))?;
    stream.write_all(&bytes).and_then(|()| stream.flush()).map_err(lost)
}

/// Reads a message. `begun` is called when its first bytes are there.
pub(crate) fn receive<T: DeserializeOwned, S: Read>(
    stream: &mut S,
    begun: impl FnOnce(&mut S),
) -> Result<T, Error> {
    let mut len = [0; 4];
    stream.read_exact(&mut len[..1]).map_err(lost)?;
    begun(stream);
    stream.read_exact(&mut len[1..]).map_err(lost)?;
    let len = u32::from_be_bytes(len) as usize;
    if len > MAX_MESSAGE {
        return Err(Error::Protocol("a message longer than any"));
    }
    // Grows with what comes, so that a length alone costs nothing.
    let mut bytes = Zeroizing::new(Vec::new());
    while bytes.len() < len {
        let next = len.min((2 * bytes.len()).max(4096));
        let mut larger = Zeroizing::new(vec![0; next]);
        larger[..bytes.len()].copy_from_slice(&bytes);
        stream.read_exact(&mut larger[bytes.len()..]).map_err(lost)?;
        bytes = larger;
    }
    match postcard::take_from_bytes(&bytes) {
        Ok((message, [])) => Ok(message),
        Ok(_) | Err(_) => Err(Error::Protocol("a message that cannot be read")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn carried(request: &Request) -> Vec<u8> {
        let mut bytes = Vec::new();
        send(&mut bytes, request).unwrap();
        bytes
    }

    #[test]
    fn messages_arrive_as_they_were_sent_and_secrets_do_not_show() {
        let call = Request::Call(Secret::from(&[0xab; 100_000][..]));
        let bytes = carried(&call);
        let Request::Call(read) = receive(&mut &bytes[..], |_| ()).unwrap() else { panic!() };
        assert_eq!(*read.0, vec![0xab; 100_000]);
        assert_eq!(format!("{call:?}"), "Call(100000 bytes)");
    }

    #[test]
    fn what_is_cut_too_long_or_followed_by_more_is_refused() {
        let bytes = carried(&Request::Rotate { region: "r".to_owned() });
        for len in 0..bytes.len() {
            assert!(receive::<Request, _>(&mut &bytes[..len], |_| ()).is_err(), "{len}");
        }
        let mut longer = bytes.clone();
        longer.push(0);
        longer[3] += 1;
        assert!(matches!(receive::<Request, _>(&mut &longer[..], |_| ()), Err(Error::Protocol(_))));
        let endless = (MAX_MESSAGE as u32 + 1).to_be_bytes();
        assert!(matches!(receive::<Request, _>(&mut &endless[..], |_| ()), Err(Error::Protocol(_))));
        let call = Request::Call(Secret(Zeroizing::new(vec![0; MAX_MESSAGE + 1])));
        assert!(matches!(send(&mut Vec::new(), &call), Err(Error::TooLong(_))));
    }

    #[test]
    fn any_bytes_are_read_or_refused() {
        let mut random = 1u64;
        for len in 0..2000 {
            let bytes: Vec<u8> = (0..len % 200)
                .map(|_| {
                    random = random.wrapping_mul(6364136223846793005).wrapping_add(1);
                    (random >> 33) as u8
                })
                .collect();
            let mut framed = (bytes.len() as u32).to_be_bytes().to_vec();
            framed.extend(&bytes);
            let _ = receive::<Request, _>(&mut &framed[..], |_| ());
            let _ = receive::<Answer, _>(&mut &framed[..], |_| ());
        }
    }
}
