//! `adverb queue`: a bounded queue in remote memory, over real processes. A pipe with several writers:
//! lines go in at `produce`, and come out at `consume`.

use crate::args::Nic;
use crate::bench::Times;
use crate::error::Error;
use crate::output::print;
use crate::program::{open, open_plain, wire_time};
use crate::remote::{size, span};
use adverb_apps::queue::{Bug, Consumer, Producer, QueueConfig, QueueError};
use adverb_io::program::Programs;
use adverb_os::say;
use adverb_rdma::{Connect, Error as RdmaError, Rdma};
use clap::{Args, Subcommand};
use std::io::{BufRead, Write};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

/// Shown by `adverb queue --help`.
pub const EXAMPLES: &str = "\
The queue is in the consumer's memory. Producers write it one-sidedly; the consumer's program notices when an
element is whole. A producer that dies after it has claimed a place is shut out, and its place is skipped. The
queue is found at an address and TCP port of its consumer (--at); elements go over the NIC.

Examples:
  adverb queue consume &
  adverb queue produce one two three
  seq 1000 | adverb queue produce
  adverb queue bench --time 3s --size 1KB";

/// `adverb queue`.
#[derive(Subcommand, Debug)]
pub enum Queue {
    /// Own the queue and print its elements, a line each, until ended by a signal
    Consume(Box<Consume>),
    /// Queue the arguments, or else the lines of standard input; ends when all are acknowledged
    Produce(Box<Produce>),
    /// Queue elements as fast as they go; print the rate and the times
    Bench(Box<BenchOptions>),
}

/// `adverb queue consume`.
#[derive(Args, Debug)]
pub struct Consume {
    /// Where producers find it: an address of this host and a TCP port
    #[arg(long, value_name = "IP:PORT", env = "ADVERB_QUEUE", default_value = "127.0.0.1:7461")]
    pub at: String,
    /// Elements that the queue holds
    #[arg(long, value_name = "N", default_value_t = 64,
        value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub slots: u32,
    /// Bytes of an element at most
    #[arg(long, value_name = "BYTES", value_parser = size, default_value = "4KB")]
    pub item_max: usize,
    /// How long a producer that has claimed a place may leave it empty before it is shut out
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "2s")]
    pub patience: Duration,
    /// End after so many elements
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
    /// Print nothing but, at the end, how many elements came
    #[arg(long)]
    pub quiet: bool,
    /// The NIC and its faults.
    #[command(flatten)]
    pub nic: Nic,
}

/// What producers share.
#[derive(Args, Debug)]
pub struct To {
    /// Where the queue is
    #[arg(long, value_name = "HOST:PORT", env = "ADVERB_QUEUE", default_value = "127.0.0.1:7461")]
    pub at: String,
    /// Give up when the queue cannot be reached within this time
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "10s")]
    pub patience: Duration,
    /// The NIC and its faults.
    #[command(flatten)]
    pub nic: Nic,
}

/// `adverb queue produce`.
#[derive(Args, Debug)]
pub struct Produce {
    /// The elements
    pub elements: Vec<String>,
    /// The queue.
    #[command(flatten)]
    pub to: To,
}

/// `adverb queue bench`.
#[derive(Args, Debug)]
pub struct BenchOptions {
    /// The queue.
    #[command(flatten)]
    pub to: To,
    /// How long
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "3s")]
    pub time: Duration,
    /// Bytes of an element
    #[arg(long, value_name = "BYTES", value_parser = size, default_value = "64")]
    pub size: usize,
}

/// Runs it.
pub fn queue(action: &Queue) -> Result<ExitCode, Error> {
    match action {
        Queue::Consume(options) => consume(options),
        Queue::Produce(options) => with_queue(&options.to, async |_, producer| {
            if !options.elements.is_empty() {
                for element in &options.elements {
                    if producer.enqueue(element.as_bytes()).await?.is_none() {
                        return Ok(Outcome::Stopped);
                    }
                }
                return Ok(Outcome::Done);
            }
            for line in std::io::stdin().lock().lines() {
                let Ok(line) = line else { return Ok(Outcome::Input) };
                if producer.enqueue(line.as_bytes()).await?.is_none() {
                    return Ok(Outcome::Stopped);
                }
            }
            Ok(Outcome::Done)
        }),
        Queue::Bench(options) => {
            with_queue(&options.to, async |rdma, producer| bench(rdma, producer, options).await)
        }
    }
}

enum Outcome {
    Done,
    /// What to print.
    Answer(String),
    /// A signal came first.
    Stopped,
    /// Standard input failed.
    Input,
}

fn failed(at: &str, error: &QueueError) -> Error {
    let help = match error {
        QueueError::Rdma(RdmaError::NoAnswer | RdmaError::Left) => {
            "; is `adverb queue consume` running there?"
        }
        _ => "",
    };
    Error::Remote(format!("--at {at}: {error}{help}"))
}

fn consume(options: &Consume) -> Result<ExitCode, Error> {
    let programs = open(&options.nic)?;
    let rdma = Rdma::new(programs.clone());
    let config = QueueConfig {
        slots: options.slots,
        item_max: u32::try_from(options.item_max).unwrap_or(u32::MAX),
        patience: wire_time(options.patience),
        ..QueueConfig::default()
    };
    let consumed = programs.block_on(async {
        let mut consumer = Consumer::open(&rdma, &options.at, config).await?;
        say!("adverb: queue ready at {}", options.at);
        let mut count = 0;
        let mut out = std::io::stdout().lock();
        while options.count.is_none_or(|wanted| count < wanted) {
            let Some(element) = consumer.next(None).await? else { break };
            count += 1;
            if !options.quiet {
                let written = out.write_all(&element).and_then(|()| out.write_all(b"\n"));
                if let Err(error) = written.and_then(|()| out.flush()) {
                    return Ok(Err(Error::Output(error)));
                }
            }
        }
        Ok::<_, QueueError>(Ok((count, consumer.skipped())))
    });
    let (count, skipped) = consumed.map_err(|error| failed(&options.at, &error))??;
    if options.quiet {
        print(&format!("{count} elements\n"))?;
    }
    if skipped > 0 {
        say!("adverb: {skipped} places were skipped: their producers did not fill them");
    }
    Ok(ExitCode::SUCCESS)
}

fn with_queue(
    to: &To,
    run: impl AsyncFnOnce(&Rdma, &mut Producer) -> Result<Outcome, QueueError>,
) -> Result<ExitCode, Error> {
    // A producer that a signal ends is shut out, as one that dies.
    let programs: Rc<Programs> = open_plain(&to.nic)?;
    let rdma = Rdma::new(programs.clone());
    let done = programs.block_on(async {
        let patience = rdma.now().await? + wire_time(to.patience);
        let mut producer =
            Producer::open(&rdma, &to.at, &Connect::default(), Some(patience), Bug::None).await?;
        run(&rdma, &mut producer).await
    });
    match done.map_err(|error| failed(&to.at, &error))? {
        Outcome::Done => Ok(ExitCode::SUCCESS),
        Outcome::Answer(text) => print(&text).map(|()| ExitCode::SUCCESS),
        Outcome::Stopped => Ok(ExitCode::FAILURE),
        Outcome::Input => Err(Error::Options("standard input cannot be read as lines of UTF-8".to_owned())),
    }
}

async fn bench(rdma: &Rdma, producer: &mut Producer, options: &BenchOptions) -> Result<Outcome, QueueError> {
    let start = rdma.now().await?;
    let end = start + wire_time(options.time);
    let payload = vec![7; options.size];
    let mut times = Vec::new();
    loop {
        let begun = rdma.now().await?;
        if begun >= end {
            break;
        }
        if producer.enqueue(&payload).await?.is_none() {
            break;
        }
        times.push(rdma.now().await?.since(begun).as_ns());
    }
    let times = Times::new(times);
    let seconds = rdma.now().await?.since(start).as_ns() as f64 / 1e9;
    let text = format!(
        "{} elements of {} bytes in {seconds:.1} s: {:.0}/s; {times}",
        times.count(),
        options.size,
        times.count() as f64 / seconds,
    );
    Ok(Outcome::Answer(format!("{text}\n")))
}
