//! Switch configurations that make no sense, refused with the remedy.

use super::{CLASSES_MAX, Discipline, SwitchConfig};
use crate::error::Error;

impl SwitchConfig {
    /// Thresholds within buffers, chances within 0 to 1, classes within bounds.
    pub fn check(&self) -> Result<(), Error> {
        if self.classes == 0 || usize::from(self.classes) > CLASSES_MAX {
            let why = format!("{} classes; give 1 to {CLASSES_MAX}", self.classes);
            return Err(Error::new("switch.classes", why));
        }
        let buffer = match self.discipline {
            Discipline::InputQueued { buffer } | Discipline::SharedBuffer { buffer, .. } => buffer,
        };
        if buffer == 0 {
            return Err(Error::new("switch.buffer", "is zero; give bytes that packets may wait in"));
        }
        if let Discipline::SharedBuffer { alpha, .. } = self.discipline
            && (alpha.is_nan() || alpha <= 0.0)
        {
            return Err(Error::new("switch.alpha", "must be above 0; leave it out for no dynamic threshold"));
        }
        let own = matches!(self.discipline, Discipline::InputQueued { .. });
        for pfc in self.pfc.iter().flatten() {
            if pfc.xoff > buffer {
                let why = format!("{} bytes is above the buffer of {buffer}; lower it", pfc.xoff);
                return Err(Error::new("switch.pfc.xoff", why));
            }
            if own && pfc.headroom > buffer - pfc.xoff {
                let why = format!(
                    "{} bytes and a headroom of {} are above the buffer of {buffer}; lower it, or leave \
                     it out for what the headroom leaves",
                    pfc.xoff, pfc.headroom
                );
                return Err(Error::new("switch.pfc.xoff", why));
            }
            if pfc.xon > pfc.xoff {
                let why = format!("{} bytes is above xoff ({}); lower it", pfc.xon, pfc.xoff);
                return Err(Error::new("switch.pfc.xon", why));
            }
        }
        if let Some(red) = self.ecn {
            // Equal ones are DCTCP's K.
            if red.kmin > red.kmax {
                let why = format!("{} bytes is above kmax ({})", red.kmin, red.kmax);
                return Err(Error::new("switch.ecn.kmin", why));
            }
            if !(0.0..=1.0).contains(&red.pmax) {
                return Err(Error::new(
                    "switch.ecn.pmax",
                    format!("{} is not a chance from 0 to 1", red.pmax),
                ));
            }
        }
        Ok(())
    }
}
