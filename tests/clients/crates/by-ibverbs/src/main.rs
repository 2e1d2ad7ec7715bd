//! `by-ibverbs PORT` and `by-ibverbs PORT ADDRESS`: messages back and forth over RC by the crate `ibverbs`,
//! each compared by whoever gets it. Queue pairs are told over TCP.

use ibverbs::{CompletionQueue, Gid, QueuePairEndpoint, ibv_qp_type, ibv_wc};
use std::error::Error;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

const ROUNDS: u64 = 1000;
const WORDS: usize = 512;
const SENT: u64 = 1;
const RECEIVED: u64 = 2;

/// The peer's end, for this side's.
fn exchanged(stream: &mut TcpStream, own: QueuePairEndpoint) -> Result<QueuePairEndpoint, Box<dyn Error>> {
    let gid = own.gid.ok_or("the queue pair has no GID")?;
    stream.write_all(&own.num.to_be_bytes())?;
    stream.write_all(&gid.subnet_prefix().to_be_bytes())?;
    stream.write_all(&gid.interface_id().to_be_bytes())?;
    let (mut number, mut raw, mut gid) = ([0; 4], [0; 16], Gid::default());
    stream.read_exact(&mut number)?;
    stream.read_exact(&mut raw)?;
    gid.as_mut().raw = raw;
    Ok(QueuePairEndpoint { num: u32::from_be_bytes(number), lid: 0, gid: Some(gid) })
}

/// Waits for the completion of one request, and for no other.
fn completed(cq: &CompletionQueue, wanted: u64, early: &mut Vec<u64>) -> Result<(), Box<dyn Error>> {
    let mut completions = [ibv_wc::default(); 2];
    loop {
        if let Some(at) = early.iter().position(|id| *id == wanted) {
            early.remove(at);
            return Ok(());
        }
        for completion in cq.poll(&mut completions)? {
            if let Some((status, _)) = completion.error() {
                return Err(format!("request {} failed: {status:?}", completion.wr_id()).into());
            }
            early.push(completion.wr_id());
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let port: u16 = args.next().ok_or("a port is missing")?.parse()?;
    let peer = args.next();
    let devices = ibverbs::devices()?;
    let context = devices.get(0).ok_or("no device")?.open()?;
    let cq = context.create_cq(4, 0)?;
    let pd = context.alloc_pd()?;
    let mut out = pd.allocate::<u64>(WORDS)?;
    let mut into = pd.allocate::<u64>(WORDS)?;
    let mut builder = pd.create_qp(&cq, &cq, ibv_qp_type::IBV_QPT_RC);
    let prepared = builder.set_gid_index(0).set_max_recv_wr(2).set_max_send_wr(2).build()?;

    let is_client = peer.is_some();
    let mut stream = match peer {
        Some(address) => TcpStream::connect((address, port))?,
        None => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?.accept()?.0,
    };
    let remote = exchanged(&mut stream, prepared.endpoint())?;
    let mut qp = prepared.handshake(remote)?;
    // SAFETY: the region outlives the request, whose completion is waited for before it is used again.
    unsafe { qp.post_receive(&mut into, .., RECEIVED)? };
    // Both have a receive before either sends.
    stream.write_all(&[1])?;
    stream.read_exact(&mut [0])?;

    let mut early = Vec::new();
    for round in 0..ROUNDS {
        for turn in [is_client, !is_client] {
            if turn {
                (0..).zip(out.iter_mut()).for_each(|(at, word)| *word = round * WORDS as u64 + at);
                // SAFETY: as above.
                unsafe { qp.post_send(&mut out, .., SENT)? };
                completed(&cq, SENT, &mut early)?;
            } else {
                completed(&cq, RECEIVED, &mut early)?;
                if !(0..).zip(into.iter()).all(|(at, word)| *word == round * WORDS as u64 + at) {
                    return Err(format!("round {round}: other bytes than were sent").into());
                }
                into.fill(0);
                if round + 1 < ROUNDS {
                    // SAFETY: as above.
                    unsafe { qp.post_receive(&mut into, .., RECEIVED)? };
                }
            }
        }
    }
    // Who has received last stays until its acknowledgement has arrived.
    stream.write_all(&[1])?;
    stream.read_exact(&mut [0])?;
    println!("ibverbs: {ROUNDS} rounds of {} bytes, all right", 8 * WORDS);
    Ok(())
}
