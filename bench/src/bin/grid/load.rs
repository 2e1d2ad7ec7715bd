//! The clients, all in one process: connections, and requests over those that are drawn at random.

use super::end::{End, REGION, said};
use adverb_bench::{Options, now};
use adverb_io::Transport;
use adverb_nic::{QpId, SendData, SendFlags, SendOp, SendWr, Sge, StarSide, Status};
use adverb_wire::{Gid, Key, QpNumber};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, TcpStream};
use std::time::Duration;

/// Bytes of each request.
const SIZE: u32 = 64;
/// Connections that are set up at a time.
const BATCH: usize = 128;
/// How long that, and each single request, may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// Sends that a connection has room for: with few connections, all that are outstanding.
const DEPTH_FEW: u32 = 128;
const DEPTH_MANY: u32 = 16;
const FEW: usize = 100;

/// What the server says it has counted.
#[derive(Clone, Copy)]
struct Counted {
    cpu_ns: u64,
    vain_ns: u64,
    frames: u64,
    messages: u64,
    answers: u64,
    rounds: u64,
    bytes: i64,
    nic_bytes: i64,
}

struct Load {
    end: End,
    server: BufReader<TcpStream>,
    qps: Vec<QpId>,
    outstanding: Vec<u8>,
    depth: u32,
    target: (u64, Key),
    drawn: u64,
}

/// Runs it: connects, says what that cost the server, and carries out what standard input says.
pub fn run(options: &Options) -> Result<(), String> {
    let end = End::open(options, Transport::StarClient)?;
    let clients = options.get("clients", 1usize)?.clamp(1, 60_000);
    let server: String = options.get("server", String::new())?;
    let server = server.parse::<IpAddr>().map_err(|_| "--server wants an IP address")?;
    let stream = TcpStream::connect((server, options.get("at", 0u16)?)).map_err(said)?;
    stream.set_nodelay(true).map_err(said)?;
    let depth = if clients <= FEW { DEPTH_FEW } else { DEPTH_MANY };
    let mut load = Load {
        end,
        server: BufReader::new(stream),
        qps: Vec::new(),
        outstanding: vec![0; clients],
        depth,
        target: (0, Key(0)),
        drawn: 0x9e37_79b9_7f4a_7c15,
    };
    let before = load.counted()?;
    while load.qps.len() < clients {
        load.connect(Gid::from(server), BATCH.min(clients - load.qps.len()))?;
    }
    // One request over each, so that memory that is only touched in use counts too.
    load.each_once()?;
    let after = load.counted()?;
    println!(
        r#"{{"clients": {clients}, "bytes": {}, "nic_bytes": {}}}"#,
        after.bytes - before.bytes,
        after.nic_bytes - before.nic_bytes
    );
    for line in std::io::stdin().lines() {
        let line = line.map_err(said)?;
        println!("{}", load.told(&line)?);
    }
    Ok(())
}

impl Load {
    fn ask(&mut self, question: &str) -> Result<String, String> {
        self.server.get_mut().write_all(format!("{question}\n").as_bytes()).map_err(said)?;
        let mut answer = String::new();
        self.server.read_line(&mut answer).map_err(said)?;
        if answer.ends_with('\n') { Ok(answer) } else { Err("the server has gone".to_owned()) }
    }

    fn counted(&mut self) -> Result<Counted, String> {
        let answer = self.ask("count")?;
        let numbers: Vec<i64> =
            answer.split_whitespace().map(str::parse).collect::<Result<_, _>>().map_err(said)?;
        let [cpu_ns, vain_ns, frames, messages, answers, rounds, bytes, nic_bytes] = numbers[..] else {
            return Err(format!("the server has counted {answer}"));
        };
        let [cpu_ns, vain_ns, frames, messages, answers, rounds] =
            [cpu_ns, vain_ns, frames, messages, answers, rounds].map(|n| n as u64);
        Ok(Counted { cpu_ns, vain_ns, frames, messages, answers, rounds, bytes, nic_bytes })
    }

    /// Sets so many connections up, and waits until StaR has them, where that is asked for.
    fn connect(&mut self, server: Gid, count: usize) -> Result<(), String> {
        let mut made = Vec::with_capacity(count);
        let mut question = format!("connect {}", self.end.gid);
        for _ in 0..count {
            let (id, number) = self.end.queue_pair(self.depth)?;
            made.push(id);
            let _ = write!(question, " {}", number.get());
        }
        let answer = self.ask(&question)?;
        let numbers: Vec<u64> =
            answer.split_whitespace().map(str::parse).collect::<Result<_, _>>().map_err(said)?;
        let [va, rkey, ref theirs @ ..] = numbers[..] else { return Err(answer) };
        if theirs.len() != count {
            return Err(format!("{} queue pairs at the server, of {count}", theirs.len()));
        }
        self.target = (va, Key(rkey as u32));
        for (id, number) in made.iter().zip(theirs) {
            self.end.connect(*id, server, QpNumber::new(*number as u32))?;
        }
        let begun = now();
        while self.end.star && !self.are_stateful(&made) {
            if begun.elapsed() > PATIENCE {
                return Err("the two sides have not agreed on StaR".to_owned());
            }
            self.end.host.look();
            std::thread::yield_now();
        }
        self.qps.append(&mut made);
        Ok(())
    }

    fn are_stateful(&self, qps: &[QpId]) -> bool {
        self.end.host.inspect(|nic| qps.iter().all(|qp| nic.star_side(*qp) == Ok(StarSide::Stateful)))
    }

    fn draw(&mut self) -> u64 {
        self.drawn =
            self.drawn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.drawn >> 20
    }

    /// Posts requests over these connections.
    fn post(&mut self, places: &[usize], is_write: bool) -> Result<(), String> {
        let slots: Vec<u64> = places.iter().map(|_| self.draw() % (REGION as u64 / 64) * 64).collect();
        let (qps, outstanding, (va, rkey)) = (&self.qps, &mut self.outstanding, self.target);
        let (own, lkey) = (self.end.region.as_ptr() as u64, self.end.mr.lkey);
        let posted = self.end.host.post(|nic, now| {
            for (place, slot) in places.iter().zip(&slots) {
                let at = va + slot;
                let op = if is_write { SendOp::Write(at, rkey) } else { SendOp::Read(at, rkey) };
                let sges = [Sge { addr: own + slot, len: SIZE, lkey }];
                let flags = SendFlags { signaled: true, ..SendFlags::default() };
                let data = SendData::Sges(&sges);
                let wr = SendWr { wr_id: *place as u64, op, flags, data, ud: None, xrc_srqn: 0 };
                nic.post_send(now, qps[*place], &wr)?;
                outstanding[*place] += 1;
            }
            Ok(())
        });
        posted.map_err(|error: adverb_nic::Error| said(error))
    }

    /// Takes what has completed; how many.
    fn reap(&mut self) -> Result<usize, String> {
        let (outstanding, mut failed) = (&mut self.outstanding, None);
        let taken = self.end.host.poll(self.end.cq, 64, |done| {
            outstanding[done.wr_id as usize] -= 1;
            if done.status != Status::Success {
                failed = Some(done.status);
            }
        });
        match failed {
            None => taken.map_err(said),
            Some(status) => Err(format!("a request ended with {status:?}")),
        }
    }

    fn each_once(&mut self) -> Result<(), String> {
        let all: Vec<usize> = (0..self.qps.len()).collect();
        for some in all.chunks(64) {
            self.post(some, true)?;
            let begun = now();
            let mut left = some.len();
            while left > 0 {
                left -= self.reap()?;
                if begun.elapsed() > PATIENCE {
                    return Err("a request takes too long".to_owned());
                }
            }
        }
        Ok(())
    }

    /// `write|read OUTSTANDING MILLISECONDS MICROSECONDS`, the last from turn to turn at least.
    fn told(&mut self, line: &str) -> Result<String, String> {
        let wrong = || format!("write|read OUTSTANDING MILLISECONDS MICROSECONDS is wanted, not `{line}`");
        let words: Vec<&str> = line.split(' ').collect();
        let [op, outstanding, time, period] = words[..] else { return Err(wrong()) };
        let is_write = match op {
            "write" => true,
            "read" => false,
            _ => return Err(wrong()),
        };
        let outstanding: usize = outstanding.parse().map_err(|_| wrong())?;
        // Otherwise there would be no connection with room for the last ones.
        if outstanding > self.qps.len() * self.depth as usize || outstanding == 0 {
            return Err(wrong());
        }
        let time = Duration::from_millis(time.parse().map_err(|_| wrong())?);
        let period = Duration::from_micros(period.parse().map_err(|_| wrong())?);
        let before = self.counted()?;
        let (ops, elapsed) = self.burst(is_write, outstanding, time, period)?;
        let after = self.counted()?;
        Ok(format!(
            concat!(
                r#"{{"ops": {}, "seconds": {:.6}, "cpu_ns": {}, "vain_ns": {}, "frames": {}, "#,
                r#""messages": {}, "answers": {}, "rounds": {}}}"#
            ),
            ops,
            elapsed.as_secs_f64(),
            after.cpu_ns - before.cpu_ns,
            after.vain_ns - before.vain_ns,
            after.frames - before.frames,
            after.messages - before.messages,
            after.answers - before.answers,
            after.rounds - before.rounds,
        ))
    }

    /// So many requests outstanding for so long, in turns: the next ones leave together when all have ended,
    /// so that the server's thread finds as many at a time whatever the number of connections, and not before
    /// `period` after the ones before. How many there were.
    fn burst(
        &mut self,
        is_write: bool,
        outstanding: usize,
        time: Duration,
        period: Duration,
    ) -> Result<(u64, Duration), String> {
        let (begun, mut under_way, mut ops) = (now(), 0, 0u64);
        let mut due = begun;
        let mut places = Vec::with_capacity(outstanding);
        let mut goes_on = true;
        let mut heard = begun;
        while goes_on || under_way > 0 {
            goes_on = goes_on && begun.elapsed() < time;
            if goes_on && under_way == 0 && now() >= due {
                due = now() + period;
                heard = now();
                places.clear();
                while places.len() < outstanding {
                    let place = self.draw() as usize % self.qps.len();
                    let own = places.iter().filter(|other| **other == place).count();
                    if usize::from(self.outstanding[place]) + own < self.depth as usize {
                        places.push(place);
                    }
                }
                self.post(&places, is_write)?;
                under_way = places.len();
            }
            let done = self.reap()?;
            under_way -= done;
            ops += done as u64;
            if done > 0 {
                heard = now();
            } else if under_way > 0 && heard.elapsed() > PATIENCE {
                return Err("a request takes too long".to_owned());
            }
        }
        Ok((ops, begun.elapsed()))
    }
}
