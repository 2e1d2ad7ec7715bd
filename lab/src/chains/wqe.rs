//! WQEs of one block in mlx5's layout, written by hand.

use adverb_nic::queue::wqe::{BLOCK, WqeOp};

/// A WQE.
pub type Block = [u8; BLOCK];

/// Write a completion whatever the outcome.
const SIGNALED: u8 = 2 << 2;

/// A control segment: what to do, and how many segments of 16 bytes.
fn control(op: WqeOp, segments: u8, signaled: bool) -> Block {
    let mut block = [0; BLOCK];
    (block[3], block[7]) = (op as u8, segments);
    block[11] = if signaled { SIGNALED } else { 0 };
    block
}

/// Does nothing, and completes.
pub fn nop() -> Block {
    control(WqeOp::Nop, 1, true)
}

/// The queue goes on when a completion queue has had a completion with this index, from 0.
pub fn wait(cq: u32, index: u32) -> Block {
    about(WqeOp::Wait, index, cq)
}

/// Lets a managed queue go as far as this block, which it does not reach.
pub fn enable(queue: u32, end: u32) -> Block {
    about(WqeOp::SendEnable, end, queue)
}

fn about(op: WqeOp, index: u32, number: u32) -> Block {
    let mut block = control(op, 2, false);
    block[24..28].copy_from_slice(&index.to_be_bytes());
    block[28..32].copy_from_slice(&number.to_be_bytes());
    block
}
