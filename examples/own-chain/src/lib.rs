//! Bids that a NIC judges. The program is `bids.redn`; `adverb redn run bids.redn` runs it alone.
//!
//! A server compiles and loads it, and then does nothing: the NIC compares a client's bid with the best one,
//! keeps it, and replies.

use adverb_rdma::{Duration, On, Rdma};
use adverb_redn::language::lower::Options;
use adverb_redn::language::{Compiled, Error, compile, parse};
use adverb_redn::run::{Failure, connect, serve};

/// The program's text.
pub const PROGRAM: &str = include_str!("../bids.redn");

/// What became of a bid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Judged {
    /// Another one is as high, or higher.
    Below(u64),
    /// It is the best one.
    Best,
    /// It is the best one, and ends the sale.
    Sold,
}

/// The program as a chain, with a best bid and a price to begin with.
pub fn program(best: u64, price: u64) -> Result<Compiled, Error> {
    let text = PROGRAM.replace("word 100, word 500", &format!("word {best}, word {price}"));
    compile(&parse(&text)?, Options { finish: true, bug: None })
}

/// Loads the program for one bid under this name, and returns the best bid once it is judged.
pub async fn judge(rdma: &Rdma, name: &str, best: u64, price: u64) -> Result<u64, Failure> {
    let served = serve(rdma, name, program(best, price)?).await?;
    served.ended(rdma, Duration::from_ms(1_000)).await?;
    rdma.until(&[On::Gone(&served.line), On::Stop], None).await?;
    let regions = served.regions().await?;
    let word = regions.get("words").and_then(|words| words.bytes.first_chunk());
    Ok(word.map_or(best, |word| u64::from_ne_bytes(*word)))
}

/// Bids, and waits for the NIC's reply. `None` if there is none in time.
pub async fn bid(rdma: &Rdma, name: &str, bid: u64) -> Result<Option<Judged>, Failure> {
    let client = connect(rdma, name, Duration::from_ms(1_000)).await?;
    client.ask(&program(0, 0)?.message(&[bid])).await?;
    let Some(reply) = client.reply(rdma, Duration::from_ms(1_000)).await? else { return Ok(None) };
    Ok(Some(match reply.imm {
        0 => Judged::Below(client.buffer.load(0).await?),
        1 => Judged::Best,
        _ => Judged::Sold,
    }))
}
