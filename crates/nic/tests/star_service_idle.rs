//! A native service keeps nothing of an idle client: a million of them, each of which said hello, was
//! answered once before the count, and is served again after it. By an allocator that counts what the
//! server's NIC and its program take. A file of its own: the allocator counts for the whole process.
#![allow(clippy::print_stdout, reason = "a test")]

use adverb_nic::service::{ClientConfig, ClientId, Outcome, ServiceConfig, ServiceId};
use adverb_nic::{Nic, NicConfig, Payload, Seed, TxFrame};
use adverb_wire::{Duration, Gid, Instant};
use std::alloc::{GlobalAlloc, Layout, System};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

/// Counts while the server is called.
struct Counting;

static IN_SERVER: AtomicBool = AtomicBool::new(false);
static LIVE: AtomicI64 = AtomicI64::new(0);
static CALLS: AtomicU64 = AtomicU64::new(0);

fn count(bytes: i64) {
    if IN_SERVER.load(Ordering::Relaxed) {
        LIVE.fetch_add(bytes, Ordering::Relaxed);
        CALLS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: every call goes on to the system's allocator as it came; counting does not touch the memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller keeps the contract of `alloc`, which is the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn as_server<R>(call: impl FnOnce() -> R) -> R {
    IN_SERVER.store(true, Ordering::Relaxed);
    let result = call();
    IN_SERVER.store(false, Ordering::Relaxed);
    result
}

struct World {
    now: Instant,
    server: Nic,
    service: ServiceId,
    clients: Vec<Nic>,
    /// What the server's program has been asked.
    served: u64,
}

fn nic(number: u32, last: u8) -> Nic {
    let gids = vec![Gid::from(Ipv4Addr::new(10, 0, 0, last))];
    Nic::new(NicConfig { gids, qpn_base: number << 16, ..NicConfig::default() }, u64::from(number))
}

impl World {
    /// Carries every frame that a client's NIC has, and all that follows.
    fn settle(&mut self, at: usize) {
        let mut out = TxFrame::default();
        let mut bytes = [0u8; 4096];
        let mut goes_on = true;
        while goes_on {
            goes_on = false;
            while self.clients[at].next_frame(self.now, &mut out) {
                let len = out.payload.len();
                out.payload.read(&mut bytes[..len]);
                let (now, server) = (self.now, &mut self.server);
                as_server(|| server.on_frame(now, &out.packet, &Payload::from_slice(&bytes[..len])));
                goes_on = true;
            }
            self.serve();
            while as_server(|| self.server.next_frame(self.now, &mut out)) {
                let len = out.payload.len();
                out.payload.read(&mut bytes[..len]);
                self.clients[at].on_frame(self.now, &out.packet, &Payload::from_slice(&bytes[..len]));
                goes_on = true;
            }
        }
    }

    /// The server's program: counts.
    fn serve(&mut self) {
        as_server(|| {
            let mut request = [0; 8];
            while let Ok(Some((_, reply))) = self.server.next_request(self.now, self.service, &mut request) {
                self.served += 1;
                let answer = self.served.to_le_bytes();
                self.server.reply(self.now, self.service, &reply, &answer).expect("it is in time");
            }
        });
    }

    fn outcome(&mut self, at: usize, client: ClientId, outcome: Outcome) {
        let reached = self.clients[at].next_reached(&mut [0; 8]).expect("an outcome");
        assert_eq!((reached.client, reached.outcome), (client, outcome));
    }

    /// Each client asks once and is answered.
    fn serve_all(&mut self, ids: &[Vec<ClientId>]) {
        for (at, ids) in ids.iter().enumerate() {
            for id in ids {
                self.now += Duration::from_us(10);
                self.clients[at].request(self.now, *id, 1, b"when").unwrap();
                self.settle(at);
                self.outcome(at, *id, Outcome::Reply(8));
            }
        }
    }
}

#[test]
fn a_million_idle_clients_cost_the_server_nothing() {
    let total: usize = std::env::var("ADVERB_CLIENTS").map_or(1_000_000, |n| n.parse().unwrap());
    let nics = total.div_ceil(62_500);
    let mut server = nic(1, 1);
    let now = Instant::from_ns(1000);
    let config = ServiceConfig { remembered: 1 << 17, ..ServiceConfig::default() };
    let service = server.open_service(now, &config, Seed::from(7)).unwrap();
    let number = server.service_number(service).unwrap();
    let gid = Gid::from(Ipv4Addr::new(10, 0, 0, 1));
    let clients = (0..nics).map(|at| nic(2 + at as u32, 2 + at as u8)).collect();
    let mut w = World { now, server, service, clients, served: 0 };
    let bytes = w.server.service_bytes(service).unwrap();
    let mut ids = Vec::new();
    for at in 0..nics {
        let config = ClientConfig { server: gid, service: number, gid: 0 };
        let mut own = Vec::new();
        for _ in 0..62_500.min(total - at * 62_500) {
            w.now += Duration::from_us(2);
            let (now, seed) = (w.now, || Seed::from(at as u64));
            let id = w.clients[at].open_client(now, &config, seed).unwrap();
            w.settle(at);
            w.outcome(at, id, Outcome::Ready);
            own.push(id);
        }
        ids.push(own);
    }
    w.serve_all(&ids);
    // All are idle now.
    w.now += Duration::from_ms(20 * 60 * 1000);
    let live = LIVE.load(Ordering::Relaxed);
    println!(
        "{total} idle clients: {live} bytes, in {} calls of the allocator",
        CALLS.load(Ordering::Relaxed)
    );
    assert_eq!((live, CALLS.load(Ordering::Relaxed)), (0, 0));
    assert_eq!(w.server.service_bytes(service), Ok(bytes));
    w.serve_all(&ids);
    assert_eq!((w.served, LIVE.load(Ordering::Relaxed)), (2 * total as u64, 0));
}
