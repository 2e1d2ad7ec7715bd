//! Multicast groups of the NIC (IBTA 10.5): which datagram queue pairs listen to which address.

use crate::error::Error;
use crate::ids::QpId;
use crate::limits;
use adverb_wire::Gid;

/// Groups with their members; few, so a row is enough.
#[derive(Default)]
pub(crate) struct Groups {
    groups: Vec<(Gid, Vec<QpId>)>,
}

impl Groups {
    /// Members of a group.
    pub fn members(&self, group: Gid) -> &[QpId] {
        self.groups.iter().find(|(gid, _)| *gid == group).map_or(&[], |(_, members)| members)
    }

    /// Whether a queue pair is a member anywhere.
    pub fn has(&self, qp: QpId) -> bool {
        self.groups.iter().any(|(_, members)| members.contains(&qp))
    }

    /// Adds a member; joining twice is one membership.
    pub fn attach(&mut self, qp: QpId, group: Gid) -> Result<(), Error> {
        if !group.is_multicast() {
            return Err(Error::Invalid("multicast address"));
        }
        if let Some((_, members)) = self.groups.iter_mut().find(|(gid, _)| *gid == group) {
            if members.contains(&qp) {
                return Ok(());
            }
            if members.len() == limits::MAX_QP_PER_GROUP {
                return Err(Error::TableFull);
            }
            members.push(qp);
            return Ok(());
        }
        if self.groups.len() == limits::MAX_MCAST_GROUPS {
            return Err(Error::TableFull);
        }
        self.groups.push((group, vec![qp]));
        Ok(())
    }

    /// Removes a member. `Invalid` when it is none.
    pub fn detach(&mut self, qp: QpId, group: Gid) -> Result<(), Error> {
        let missing = Error::Invalid("multicast group: the queue pair is not attached");
        let at = self.groups.iter().position(|(gid, _)| *gid == group).ok_or(missing)?;
        let members = &mut self.groups[at].1;
        let member = members.iter().position(|m| *m == qp).ok_or(missing)?;
        members.swap_remove(member);
        if members.is_empty() {
            self.groups.swap_remove(at);
        }
        Ok(())
    }
}
