//! BTH opcodes: three bits of service, five bits of operation (IBTA table 38).

use core::fmt;

/// Transport service, the upper three bits of the opcode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Service {
    /// Reliable connection.
    Rc = 0,
    /// Unreliable connection.
    Uc = 1,
    /// Unreliable datagram.
    Ud = 3,
    /// Congestion notification (RoCEv2 CNP, opcode 0x81 only; IBTA A17.9.3).
    Cnp = 4,
    /// Extended reliable connection.
    Xrc = 5,
}

/// Operation, the lower five bits of the opcode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names are the specification's own")]
pub enum Operation {
    SendFirst = 0x00,
    SendMiddle = 0x01,
    SendLast = 0x02,
    SendLastImm = 0x03,
    SendOnly = 0x04,
    SendOnlyImm = 0x05,
    WriteFirst = 0x06,
    WriteMiddle = 0x07,
    WriteLast = 0x08,
    WriteLastImm = 0x09,
    WriteOnly = 0x0a,
    WriteOnlyImm = 0x0b,
    ReadRequest = 0x0c,
    ReadResponseFirst = 0x0d,
    ReadResponseMiddle = 0x0e,
    ReadResponseLast = 0x0f,
    ReadResponseOnly = 0x10,
    Acknowledge = 0x11,
    AtomicAcknowledge = 0x12,
    CompareSwap = 0x13,
    FetchAdd = 0x14,
    SendLastInv = 0x16,
    SendOnlyInv = 0x17,
}

impl Operation {
    const ALL: [Option<Operation>; 32] = {
        use Operation::*;
        let mut table = [None; 32];
        let known = [
            SendFirst,
            SendMiddle,
            SendLast,
            SendLastImm,
            SendOnly,
            SendOnlyImm,
            WriteFirst,
            WriteMiddle,
            WriteLast,
            WriteLastImm,
            WriteOnly,
            WriteOnlyImm,
            ReadRequest,
            ReadResponseFirst,
            ReadResponseMiddle,
            ReadResponseLast,
            ReadResponseOnly,
            Acknowledge,
            AtomicAcknowledge,
            CompareSwap,
            FetchAdd,
            SendLastInv,
            SendOnlyInv,
        ];
        let mut i = 0;
        while i < known.len() {
            table[known[i] as usize] = Some(known[i]);
            i += 1;
        }
        table
    };

    /// First packet of a multi-packet message.
    #[inline]
    pub const fn is_first(self) -> bool {
        matches!(self, Self::SendFirst | Self::WriteFirst | Self::ReadResponseFirst)
    }

    /// Neither first nor last.
    #[inline]
    pub const fn is_middle(self) -> bool {
        matches!(self, Self::SendMiddle | Self::WriteMiddle | Self::ReadResponseMiddle)
    }

    /// Last or only packet of a SEND or WRITE.
    #[inline]
    pub const fn ends_message(self) -> bool {
        matches!(
            self,
            Self::SendLast
                | Self::SendLastImm
                | Self::SendLastInv
                | Self::SendOnly
                | Self::SendOnlyImm
                | Self::SendOnlyInv
                | Self::WriteLast
                | Self::WriteLastImm
                | Self::WriteOnly
                | Self::WriteOnlyImm
        )
    }

    /// First or only packet of a SEND or WRITE.
    #[inline]
    pub const fn starts_message(self) -> bool {
        matches!(
            self,
            Self::SendFirst
                | Self::SendOnly
                | Self::SendOnlyImm
                | Self::SendOnlyInv
                | Self::WriteFirst
                | Self::WriteOnly
                | Self::WriteOnlyImm
        )
    }

    /// Any packet of a SEND.
    #[inline]
    pub const fn is_send(self) -> bool {
        matches!(
            self,
            Self::SendFirst
                | Self::SendMiddle
                | Self::SendLast
                | Self::SendLastImm
                | Self::SendLastInv
                | Self::SendOnly
                | Self::SendOnlyImm
                | Self::SendOnlyInv
        )
    }

    /// Any packet of an RDMA WRITE.
    #[inline]
    pub const fn is_write(self) -> bool {
        matches!(
            self,
            Self::WriteFirst
                | Self::WriteMiddle
                | Self::WriteLast
                | Self::WriteLastImm
                | Self::WriteOnly
                | Self::WriteOnlyImm
        )
    }

    /// Any packet of a READ response.
    #[inline]
    pub const fn is_read_response(self) -> bool {
        matches!(
            self,
            Self::ReadResponseFirst
                | Self::ReadResponseMiddle
                | Self::ReadResponseLast
                | Self::ReadResponseOnly
        )
    }

    /// CAS or FETCH-ADD request.
    #[inline]
    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap | Self::FetchAdd)
    }

    /// Travels from responder to requester.
    #[inline]
    pub const fn is_response(self) -> bool {
        self.is_read_response() || matches!(self, Self::Acknowledge | Self::AtomicAcknowledge)
    }

    /// Carries immediate data.
    #[inline]
    pub const fn has_immediate(self) -> bool {
        matches!(self, Self::SendLastImm | Self::SendOnlyImm | Self::WriteLastImm | Self::WriteOnlyImm)
    }
}

/// A valid opcode byte: a service with an operation that the service defines.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Opcode(u8);

impl Opcode {
    /// The RoCEv2 congestion notification packet.
    pub const CNP: Opcode = Opcode(0x81);

    /// Builds an opcode; the caller pairs only what IBTA table 38 pairs.
    #[inline]
    pub const fn new(service: Service, operation: Operation) -> Self {
        Opcode((service as u8) << 5 | operation as u8)
    }

    /// Checks a byte from the wire. `None` for reserved, RD and vendor opcodes.
    pub const fn from_wire(byte: u8) -> Option<Self> {
        let op = match Operation::ALL[(byte & 0x1f) as usize] {
            Some(op) => op,
            None => return None,
        };
        let valid = match byte >> 5 {
            0 | 5 => true,
            1 => {
                op.is_send() && !matches!(op, Operation::SendLastInv | Operation::SendOnlyInv)
                    || op.is_write()
            }
            3 => matches!(op, Operation::SendOnly | Operation::SendOnlyImm),
            4 => byte == 0x81,
            _ => false,
        };
        if valid { Some(Opcode(byte)) } else { None }
    }

    /// The byte on the wire.
    #[inline]
    pub const fn wire(self) -> u8 {
        self.0
    }

    /// Upper three bits.
    #[inline]
    pub const fn service(self) -> Service {
        match self.0 >> 5 {
            0 => Service::Rc,
            1 => Service::Uc,
            3 => Service::Ud,
            4 => Service::Cnp,
            _ => Service::Xrc,
        }
    }

    /// Lower five bits. For a CNP the answer carries no meaning (`SendMiddle`).
    #[inline]
    pub const fn operation(self) -> Operation {
        match Operation::ALL[(self.0 & 0x1f) as usize] {
            Some(op) => op,
            None => Operation::SendMiddle,
        }
    }
}

impl Default for Opcode {
    fn default() -> Self {
        Opcode::new(Service::Rc, Operation::SendOnly)
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::CNP {
            return f.write_str("CNP");
        }
        write!(f, "{:?} {:?}", self.service(), self.operation())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_defined_opcodes_pass() {
        let count = (0..=255u8).filter(|&b| Opcode::from_wire(b).is_some()).count();
        // RC and XRC 23 each, UC 12, UD 2, CNP 1.
        assert_eq!(count, 23 + 23 + 12 + 2 + 1);
        for b in 0..=255u8 {
            if let Some(op) = Opcode::from_wire(b) {
                assert_eq!(op.wire(), b);
                if b != 0x81 {
                    assert_eq!(Opcode::new(op.service(), op.operation()), op);
                }
            }
        }
    }
}
