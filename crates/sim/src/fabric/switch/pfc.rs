//! Priority flow control (IEEE 802.1Qbb): a switch tells the other end of a link to stop one class
//! when what came on the link and waits here exceeds `xoff`, and to go on below `xon`.
//!
//! Pause frames go before everything that waits, behind what is being sent. They do not expire: a
//! pause holds until its end is sent, as if it were refreshed in time.

use super::Switch;

/// Thresholds of a class, for each incoming link, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pfc {
    /// Stop above this.
    pub xoff: u32,
    /// Go on at or below this.
    pub xon: u32,
    /// Buffer above `xoff`, for what is under way when the pause is sent. Input ports have it within their
    /// own buffer; a shared buffer is not divided, and has it where there is room.
    pub headroom: u32,
}

impl Switch {
    /// After a packet of `class` was buffered: whether the other end of port `entered`'s cable has to be
    /// paused now.
    #[inline]
    pub fn must_pause(&mut self, entered: u16, class: usize) -> bool {
        let Some(pfc) = self.config.pfc[class] else { return false };
        let ingress = &mut self.ingress[usize::from(entered) * self.classes() + class];
        if ingress.pausing || ingress.bytes <= pfc.xoff {
            return false;
        }
        ingress.pausing = true;
        self.pauses += 1;
        true
    }

    /// After a packet of `class` left the buffer: whether the other end may go on.
    #[inline]
    pub fn may_resume(&mut self, entered: u16, class: usize) -> bool {
        let Some(pfc) = self.config.pfc[class] else { return false };
        let ingress = &mut self.ingress[usize::from(entered) * self.classes() + class];
        if !ingress.pausing || ingress.bytes > pfc.xon {
            return false;
        }
        ingress.pausing = false;
        true
    }
}
