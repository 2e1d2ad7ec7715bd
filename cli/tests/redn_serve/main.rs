//! `adverb redn serve` with real processes: gets go on whatever becomes of the worker, a hull's end is told,
//! clients come and go, and none of them harms another.
#![cfg(unix)]

mod attacks;
mod blocked;
mod gets;
mod world;
