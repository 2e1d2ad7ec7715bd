//! The floor: what this machine's loopback and caches allow a program that does nothing else.
//!
//!     floor udp-pingpong --size 8        RTT between two processes that spin on connected UDP sockets
//!     floor gso --segment 1024           UDP throughput with segmentation and receive offload
//!     floor relay --segment 4096         the same through a process that passes on what it receives
//!     floor shm-pingpong                 one cache line between two cores
//!     floor shm-ring                     64-byte messages through a ring in memory
//!     floor roce-pingpong --frames 2     RTT of RoCEv2 frames through adverb's sockets, without a NIC
//!     floor roce-bulk --segment 4096     throughput of such frames
//!     floor gcm --size 4096              AES-128-GCM of one message on one processor: sealed, and opened
//!
//! Each prints one JSON object. Nothing is pinned: the kernel places spinners better than a mask does.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a tool of those who build adverb")]

mod roce;

use adverb_bench::{Options, now, percentile};
use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// A peer that is silent for this long is dead, and the measurement void.
const SILENCE: Duration = Duration::from_secs(5);
/// Ends a flood; no payload of a flood has this length.
const BYE: &[u8] = b"bye";
/// Largest UDP payload over IPv4.
const UDP_PAYLOAD_MAX: usize = 65_507;
/// Most segments that Linux cuts from one send (UDP_MAX_SEGMENTS since 6.9; 64 before).
const SEGMENTS_MAX: usize = 64;
const SOCKET_BUFFER_BYTES: libc::c_int = 4 << 20;

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let name = words.next().unwrap_or_default();
    let options = Options::new(words.collect());
    let outcome = match name.as_str() {
        "udp-pingpong" => udp_pingpong(&options),
        "udp-echo" => udp_echo(&options),
        "gso" => gso(&options, "gso-sink"),
        "relay" => gso(&options, "gso-relay"),
        "gso-relay" => gso_relay(&options),
        "gso-sink" => gso_sink(&options),
        "shm-pingpong" => shm_pingpong(&options),
        "shm-ring" => shm_ring(&options),
        "roce-pingpong" => roce::pingpong(&options),
        "roce-echo" => roce::echo(&options),
        "roce-bulk" => roce::bulk(&options),
        "roce-sink" => roce::sink(&options),
        "gcm" => gcm(&options),
        _ => {
            let roles = "udp-pingpong|gso|relay|shm-pingpong|shm-ring|roce-pingpong|roce-bulk|gcm";
            Err(format!("usage: floor {roles} [--option value]").into())
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("floor: {why}");
            ExitCode::FAILURE
        }
    }
}

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Half a connected pair: binds, starts this program again as `role`, and waits for its first datagram.
fn start(role: &str, options: &[(&str, usize)]) -> Result<(UdpSocket, Child), Box<dyn std::error::Error>> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(role).arg("--port").arg(socket.local_addr()?.port().to_string());
    for (name, value) in options {
        command.arg(format!("--{name}")).arg(value.to_string());
    }
    let child = command.stdout(Stdio::piped()).spawn()?;
    socket.set_read_timeout(Some(SILENCE))?;
    let (_, peer) = socket.recv_from(&mut [0; 16])?;
    socket.connect(peer)?;
    socket.set_nonblocking(true)?;
    Ok((socket, child))
}

/// The other half: binds, connects to the parent's port, and says hello.
fn join(options: &Options) -> Result<UdpSocket, Box<dyn std::error::Error>> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.connect((Ipv4Addr::LOCALHOST, options.get("port", 0u16)?))?;
    socket.set_nonblocking(true)?;
    socket.send(b"hello")?;
    Ok(socket)
}

/// Spins until a datagram is there. Looks at the clock seldom, so that the spin stays tight.
fn recv_spin(socket: &UdpSocket, buffer: &mut [u8]) -> io::Result<usize> {
    let mut idle_since = None;
    for turn in 1u32.. {
        match socket.recv(buffer) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            other => return other,
        }
        if turn.is_multiple_of(4096) && idle_since.get_or_insert_with(now).elapsed() > SILENCE {
            break;
        }
        std::hint::spin_loop();
    }
    Err(ErrorKind::TimedOut.into())
}

fn udp_pingpong(options: &Options) -> Outcome {
    let size = options.get("size", 8usize)?;
    let rounds = options.get("rounds", 50_000usize)?;
    let (socket, mut child) = start("udp-echo", &[])?;
    let mut buffer = vec![0u8; size];
    let mut samples = Vec::with_capacity(rounds);
    for round in 0..rounds + rounds / 10 {
        let before = now();
        socket.send(&buffer)?;
        recv_spin(&socket, &mut buffer)?;
        if round >= rounds / 10 {
            samples.push(before.elapsed().as_nanos() as u64);
        }
    }
    socket.send(BYE)?;
    child.wait()?;
    let (p50, p99) = (percentile(&mut samples, 0.5), percentile(&mut samples, 0.99));
    println!(
        r#"{{"size": {size}, "rtt_p50_us": {:.3}, "rtt_p99_us": {:.3}}}"#,
        p50 as f64 / 1e3,
        p99 as f64 / 1e3
    );
    Ok(())
}

fn udp_echo(options: &Options) -> Outcome {
    let socket = join(options)?;
    let mut buffer = vec![0u8; UDP_PAYLOAD_MAX];
    loop {
        let length = recv_spin(&socket, &mut buffer)?;
        if &buffer[..length] == BYE {
            return Ok(());
        }
        socket.send(&buffer[..length])?;
    }
}

/// Sets an integer option of a socket.
fn set_option(
    socket: &UdpSocket,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    // SAFETY: the descriptor is open for as long as `socket` is borrowed, and the kernel reads four
    // bytes at the address of a live `c_int`.
    let outcome = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sends as fast as the socket takes it. With a `--window` of sends in flight nothing is lost; without
/// one the sink's buffer overflows and only what arrives counts.
fn gso(options: &Options, far: &str) -> Outcome {
    let segment = options.get("segment", 1024usize)?.clamp(1, UDP_PAYLOAD_MAX);
    let window = options.get("window", 0u64)?;
    let run_ms = options.get("milliseconds", 500u64)?;
    let segments = options.get("segments", SEGMENTS_MAX)?.min(UDP_PAYLOAD_MAX / segment).max(1);
    let (socket, child) = start(far, &[("segment", segment), ("window", window as usize)])?;
    set_option(&socket, libc::SOL_UDP, libc::UDP_SEGMENT, segment as libc::c_int)?;
    set_option(&socket, libc::SOL_SOCKET, libc::SO_SNDBUF, SOCKET_BUFFER_BYTES)?;
    let burst = vec![0x5au8; segment * segments];
    let (mut sent, mut heard) = (0u64, 0u64);
    let mut word = [0u8; 8];
    let begun = now();
    while begun.elapsed() < Duration::from_millis(run_ms) {
        if window > 0 && sent - heard >= window {
            recv_spin(&socket, &mut word)?;
            heard = u64::from_le_bytes(word);
            continue;
        }
        match socket.send(&burst) {
            Ok(_) => sent += 1,
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) => return Err(error.into()),
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    set_option(&socket, libc::SOL_UDP, libc::UDP_SEGMENT, 0)?;
    finish_sink(&socket, child, segment, sent * burst.len() as u64, seconds)
}

/// Tells the sink to stop until it does (a full buffer drops the word), and prints what it counted.
fn finish_sink(
    socket: &UdpSocket,
    mut child: Child,
    segment: usize,
    sent_bytes: u64,
    seconds: f64,
) -> Outcome {
    let asked = now();
    while child.try_wait()?.is_none() {
        // Refused once the sink has gone: that is what we wait for.
        let _ = socket.send(BYE);
        if asked.elapsed() > SILENCE {
            child.kill()?;
            return Err("the sink does not stop".into());
        }
    }
    let report = io::read_to_string(child.stdout.take().ok_or("the sink has no output")?)?;
    let received: u64 = report.trim().parse()?;
    println!(
        r#"{{"segment": {segment}, "gbps": {:.3}, "segments_m": {:.3}, "lost": {:.4}}}"#,
        received as f64 * 8.0 / seconds / 1e9,
        received as f64 / segment as f64 / seconds / 1e6,
        1.0 - received as f64 / sent_bytes.max(1) as f64
    );
    Ok(())
}

/// Passes on what it receives, as it receives it, to a sink that it starts; and back what that says.
fn gso_relay(options: &Options) -> Outcome {
    let segment = options.get("segment", 1024usize)?;
    let window = options.get("window", 0usize)?;
    let socket = join(options)?;
    set_option(&socket, libc::SOL_UDP, libc::UDP_GRO, 1)?;
    set_option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF, SOCKET_BUFFER_BYTES)?;
    let (onward, mut sink) = start("gso-sink", &[("segment", segment), ("window", window)])?;
    set_option(&onward, libc::SOL_UDP, libc::UDP_SEGMENT, segment as libc::c_int)?;
    set_option(&onward, libc::SOL_SOCKET, libc::SO_SNDBUF, SOCKET_BUFFER_BYTES)?;
    let (mut buffer, mut word) = (vec![0u8; 1 << 16], [0u8; 8]);
    let mut heard = now();
    for turn in 1u32.. {
        match socket.recv(&mut buffer) {
            Ok(length) if &buffer[..length] == BYE => break,
            Ok(length) => {
                while let Err(error) = onward.send(&buffer[..length]) {
                    if error.kind() != ErrorKind::WouldBlock {
                        return Err(error.into());
                    }
                }
                heard = now();
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) => return Err(error.into()),
        }
        if let Ok(length) = onward.recv(&mut word) {
            socket.send(&word[..length])?;
        }
        if turn.is_multiple_of(4096) && heard.elapsed() > SILENCE {
            return Err("nothing comes".into());
        }
    }
    set_option(&onward, libc::SOL_UDP, libc::UDP_SEGMENT, 0)?;
    let asked = now();
    while sink.try_wait()?.is_none() {
        let _ = onward.send(BYE);
        if asked.elapsed() > SILENCE {
            sink.kill()?;
            return Err("the sink does not stop".into());
        }
    }
    let report = sink.stdout.take().ok_or("the sink has no output")?;
    print!("{}", io::read_to_string(report)?);
    Ok(())
}

fn gso_sink(options: &Options) -> Outcome {
    let segment = options.get("segment", 1024usize)?;
    let window = options.get("window", 0u64)?;
    let socket = join(options)?;
    set_option(&socket, libc::SOL_UDP, libc::UDP_GRO, 1)?;
    set_option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF, SOCKET_BUFFER_BYTES)?;
    let mut buffer = vec![0u8; 1 << 16];
    let (mut bytes, mut bursts) = (0u64, 0u64);
    loop {
        let length = recv_spin(&socket, &mut buffer)?;
        if &buffer[..length] == BYE {
            println!("{bytes}");
            return Ok(());
        }
        debug_assert!(length >= segment || length > 0);
        bytes += length as u64;
        bursts += 1;
        if window > 0 && bursts.is_multiple_of((window / 4).max(1)) {
            socket.send(&bursts.to_le_bytes())?;
        }
    }
}

/// A counter alone on its cache line (two, because x86 prefetches lines in pairs).
#[repr(align(128))]
#[derive(Default)]
struct Line(AtomicU64);

fn wait_for(line: &Line, value: u64) {
    while line.0.load(Ordering::Acquire) != value {
        std::hint::spin_loop();
    }
}

fn shm_pingpong(options: &Options) -> Outcome {
    let rounds = options.get("rounds", 1_000_000u64)?;
    let (ping, pong) = (Line::default(), Line::default());
    let elapsed = thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=rounds {
                wait_for(&ping, round);
                pong.0.store(round, Ordering::Release);
            }
        });
        let begun = now();
        for round in 1..=rounds {
            ping.0.store(round, Ordering::Release);
            wait_for(&pong, round);
        }
        begun.elapsed()
    });
    println!(r#"{{"one_way_us": {:.4}}}"#, elapsed.as_secs_f64() * 1e6 / rounds as f64 / 2.0);
    Ok(())
}

/// A 64-byte message: seven words and the sequence number that publishes them.
#[repr(align(64))]
#[derive(Default)]
struct Slot([AtomicU64; 8]);

fn shm_ring(options: &Options) -> Outcome {
    const SLOTS: u64 = 1024;
    let messages = options.get("messages", 20_000_000u64)?;
    let slots: Vec<Slot> = (0..SLOTS).map(|_| Slot::default()).collect();
    let taken = Line::default();
    let (elapsed, sum) = thread::scope(|scope| {
        let sink = scope.spawn(|| {
            let mut sum = 0u64;
            for number in 0..messages {
                let slot = &slots[(number % SLOTS) as usize].0;
                while slot[7].load(Ordering::Acquire) != number + 1 {
                    std::hint::spin_loop();
                }
                for word in &slot[..7] {
                    sum = sum.wrapping_add(word.load(Ordering::Relaxed));
                }
                if number % (SLOTS / 8) == 0 {
                    taken.0.store(number, Ordering::Release);
                }
            }
            sum
        });
        let begun = now();
        for number in 0..messages {
            while number >= taken.0.load(Ordering::Acquire) + SLOTS {
                std::hint::spin_loop();
            }
            let slot = &slots[(number % SLOTS) as usize].0;
            for word in &slot[..7] {
                word.store(number, Ordering::Relaxed);
            }
            slot[7].store(number + 1, Ordering::Release);
        }
        let sum = sink.join().unwrap_or(0);
        (begun.elapsed(), sum)
    });
    // Every message carries its number seven times: a torn or lost one changes the sum.
    let expected = (0..messages).fold(0u64, |sum, number| sum.wrapping_add(number.wrapping_mul(7)));
    if sum != expected {
        return Err("the ring lost or tore a message".into());
    }
    println!(r#"{{"messages_m": {:.3}}}"#, messages as f64 / elapsed.as_secs_f64() / 1e6);
    Ok(())
}

fn gcm(options: &Options) -> Outcome {
    let size = options.get("size", 4096usize)?;
    let messages = options.get("messages", 200_000u64)?;
    let key = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &[7; 16])?);
    let nonce = |number: u64| {
        let mut bytes = [0; NONCE_LEN];
        bytes[..8].copy_from_slice(&number.to_be_bytes());
        Nonce::assume_unique_for_key(bytes)
    };
    let mut message = vec![0x5a; size];
    let (mut seal_ns, mut open_ns) = (Vec::new(), Vec::new());
    // Few messages between two looks at the clock, so that they stay in the nearest cache.
    const TURN: u64 = 64;
    for turn in 0..messages / TURN {
        let mut sealed = Vec::new();
        let begun = now();
        for number in turn * TURN..(turn + 1) * TURN {
            let tag = key.seal_in_place_separate_tag(nonce(number), Aad::from(&[0; 32]), &mut message)?;
            std::hint::black_box(&tag);
        }
        seal_ns.push(begun.elapsed().as_nanos() as u64);
        for number in turn * TURN..(turn + 1) * TURN {
            let mut copy = message.clone();
            key.seal_in_place_append_tag(nonce(number), Aad::from(&[0; 32]), &mut copy)?;
            sealed.push(copy);
        }
        let begun = now();
        for (copy, number) in sealed.iter_mut().zip(turn * TURN..) {
            let opened = key.open_in_place(nonce(number), Aad::from(&[0; 32]), copy)?;
            std::hint::black_box(opened);
        }
        open_ns.push(begun.elapsed().as_nanos() as u64);
    }
    let each = |samples: &mut [u64]| percentile(samples, 0.5) as f64 / TURN as f64 / 1e3;
    let (seal, open) = (each(&mut seal_ns), each(&mut open_ns));
    println!(r#"{{"size": {size}, "seal_us": {seal:.4}, "open_us": {open:.4}}}"#);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_options_reach_the_kernel() {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        set_option(&socket, libc::SOL_UDP, libc::UDP_SEGMENT, 512).unwrap();
        let sink = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        socket.send_to(&[1; 1024], sink.local_addr().unwrap()).unwrap();
        // One send of 1024 bytes arrives as two segments, so the option was taken.
        assert_eq!(sink.recv(&mut [0; 2048]).unwrap(), 512);
        assert_eq!(sink.recv(&mut [0; 2048]).unwrap(), 512);
        assert!(set_option(&socket, -1, -1, 1).is_err());
    }
}
