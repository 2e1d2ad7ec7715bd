//! Rules of the memory room, one by one.
