//! Transports: how work requests become packets and packets become completions.
//!
//! [`requester`] runs the WQEs of every service (`inflight` is its state) and `segmentation` cuts their
//! messages into packets; [`receive`] places the messages of RC, UC and XRC; [`rc`] adds reliability on both
//! sides; [`uc`] and [`ud`] are what is left without it.

pub(crate) mod failure;
pub(crate) mod incoming;
pub(crate) mod inflight;
pub(crate) mod rc;
pub(crate) mod receive;
pub(crate) mod report;
pub(crate) mod requester;
mod segmentation;
pub(crate) mod star;
pub(crate) mod uc;
pub(crate) mod ud;
