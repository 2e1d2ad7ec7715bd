//! Congestion control: how many packets a reliable queue pair may have unacknowledged.

mod window;

pub(crate) use window::Window;
