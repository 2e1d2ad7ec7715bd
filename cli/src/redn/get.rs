//! `adverb redn get`: values of keys, as the NIC of `adverb redn serve` answers them. What the chain cannot
//! decide, the worker is asked for.

use super::connect::{Served, connect};
use super::proxy::{Calls, Counters, Expected};
use crate::args::Nic;
use crate::error::Error;
use crate::program::open_plain;
use adverb_os::{clock, say};
use adverb_rdma::Rdma;
use adverb_redn::service::chain::Shape;
use adverb_redn::service::item::Item;
use clap::Args;
use std::io::Write;
use std::process::ExitCode;

/// `adverb redn get`.
#[derive(Args, Debug)]
pub struct Options {
    /// Keys
    #[arg(required = true, value_name = "KEY")]
    pub keys: Vec<String>,
    /// The hull: its address, or address and port
    #[arg(long, value_name = "HOST[:PORT]")]
    pub server: String,
    /// The NIC and its faults.
    #[command(flatten)]
    pub nic: Nic,
}

/// An item's data, unless it has ended.
#[expect(clippy::disallowed_methods, reason = "the edge")]
pub(super) fn item(value: &[u8]) -> Option<&[u8]> {
    let item = Item::of_value(value)?;
    let now_s = clock::realtime_ns() / 1_000_000_000;
    (!item.has_ended(now_s)).then_some(item.data)
}

/// A copy of it.
fn data(value: &[u8]) -> Option<Vec<u8>> {
    item(value).map(<[u8]>::to_vec)
}

/// What a call's answer says of the one key that it was for: its data, if it is there. `None` for an answer
/// that is none.
pub(super) fn told(answer: &[u8]) -> Option<Option<Vec<u8>>> {
    if answer == b"END\r\n" {
        return Some(None);
    }
    let line = answer.iter().position(|byte| *byte == b'\n')?;
    let text = core::str::from_utf8(&answer[..line]).ok()?;
    let mut words = text.split_ascii_whitespace();
    let len = (words.next() == Some("VALUE")).then(|| words.nth(2))??.parse::<usize>().ok()?;
    answer.get(line + 1..line + 1 + len).map(|data| Some(data.to_vec()))
}

/// Prints values, each with an end of line. The command fails when a key has none.
pub fn get(options: &Options) -> Result<ExitCode, Error> {
    let programs = open_plain(&options.nic)?;
    let rdma = Rdma::new(programs.clone());
    programs.block_on(async {
        let Served { mut client, told: setup, line: _line } =
            connect(&rdma, &options.server, Shape::default(), false).await?;
        let counters = Counters::default();
        let mut calls = Calls { to: setup.calls.as_str().into(), stream: None, counters: &counters };
        let mut status = ExitCode::SUCCESS;
        for key in &options.keys {
            let call = async |key: &[u8]| {
                let line = [b"get ", key].concat();
                let answer = calls.call(&line, None, Expected::End).and_then(|answer| told(&answer));
                // As a value, which data of a call is no more.
                let value = |data: Vec<u8>| Item { flags: 0, ends_s: 0, data: &data }.to_value();
                answer.map(|data| data.map(value)).ok_or(adverb_rdma::Error::NoAnswer)
            };
            let got = client.get_or(key.as_bytes(), call).await;
            let got = got.map_err(|error| Error::Remote(format!("--server {}: {error}", options.server)))?;
            match got.and_then(|value| data(&value)) {
                Some(mut data) => {
                    data.push(b'\n');
                    let mut out = std::io::stdout();
                    out.write_all(&data).and_then(|()| out.flush()).map_err(Error::Output)?;
                }
                None => {
                    say!("adverb: no such key: {key}");
                    status = ExitCode::FAILURE;
                }
            }
        }
        Ok(status)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_says_a_value_or_that_there_is_none() {
        assert_eq!(told(b"END\r\n"), Some(None));
        assert_eq!(told(b"VALUE k 0 5\r\nhello\r\nEND\r\n"), Some(Some(b"hello".to_vec())));
        for wrong in
            [&b"SERVER_ERROR none\r\n"[..], b"VALUE k 0 500\r\nhello\r\nEND\r\n", b"", b"VALUE k\r\n"]
        {
            assert_eq!(told(wrong), None);
        }
    }
}
