//! Breaking things on purpose, to see that the oracle finds it. Each kind is a mistake that a NIC could
//! make; none is ever made unless asked for.

use crate::sim::Sim;

/// A mistake, made over and over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sabotage {
    /// A damaged packet passes its check, with a wrong byte.
    CorruptPasses,
    /// Every tenth completion comes twice.
    CompletionTwice,
    /// Every tenth completion never comes.
    CompletionLost,
    /// Every tenth completion comes after the one behind it.
    CompletionsSwapped,
    /// Every tenth completed fetch-and-add was executed twice.
    AtomicTwice,
    /// After every tenth completion a byte of some other memory of the host changes.
    WriteOutside,
}

impl Sabotage {
    /// All kinds and their names.
    pub const ALL: [(&'static str, Sabotage); 6] = [
        ("corrupt-passes", Sabotage::CorruptPasses),
        ("completion-twice", Sabotage::CompletionTwice),
        ("completion-lost", Sabotage::CompletionLost),
        ("completions-swapped", Sabotage::CompletionsSwapped),
        ("atomic-twice", Sabotage::AtomicTwice),
        ("write-outside", Sabotage::WriteOutside),
    ];

    /// The kind with a name.
    pub fn by_name(name: &str) -> Option<Sabotage> {
        Sabotage::ALL.iter().find(|(n, _)| *n == name).map(|(_, kind)| *kind)
    }
}

impl Sim {
    /// Breaks this simulation from now on.
    pub fn sabotage(&mut self, kind: Sabotage) {
        self.watch.sabotage = Some(kind);
    }

    /// Lets a damaged packet pass with a wrong byte; whether it does.
    pub(crate) fn damage_passes(&mut self, id: u32) -> bool {
        if self.fabric.packets.hot[id as usize].flags & crate::fabric::packet::FLAG_MESSAGE != 0 {
            self.damage_message(id);
            self.fabric.packets.hot[id as usize].flags &= !crate::fabric::packet::FLAG_CORRUPT;
            return true;
        }
        let broken = self.watch.sabotage == Some(Sabotage::CorruptPasses);
        if broken && self.fabric.packets.payload(id).is_some_and(|bytes| !bytes.is_empty()) {
            let bytes = self.fabric.packets.payload_mut(id);
            let middle = bytes.len() / 2;
            bytes[middle] ^= 0x40;
            self.fabric.packets.hot[id as usize].flags &= !crate::fabric::packet::FLAG_CORRUPT;
            return true;
        }
        false
    }
}
