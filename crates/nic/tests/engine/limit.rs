//! Rates that programs set for their queue pairs.

use super::bench::*;
use super::world::*;
use adverb_nic::queue::wqe::WqeOp;
use adverb_nic::*;
use adverb_wire::{Duration, Instant};

fn within(part: f64, whole: f64) -> bool {
    (part / whole - 1.0).abs() < 0.05
}

#[test]
fn frames_keep_to_the_rate_of_their_queue_pair() {
    // 80 Mb/s are 10 MB/s; a request of 8 bytes counts 64, or as much as a typical packet has.
    for (len, typical, counted) in [(4096, 0, 4096), (8, 0, 64), (8, 256, 256)] {
        for irn in [false, true] {
            let mut b = Bench::with_config(1, |config| config.irn = irn.then(IrnConfig::default));
            let (limited, _) = b.pair(QpFlags::empty(), CAPS);
            let (free, _) = b.pair(QpFlags::empty(), CAPS);
            b.w.run(Duration::from_ms(1));
            let limit = RateLimit { kbps: 80_000, burst: 0, typical_packet: typical };
            let nic = &mut b.w.nodes[0].nic;
            nic.set_rate_limit(limited, limit).unwrap();
            assert_eq!(
                (nic.rate_limit(limited), nic.rate_limit(free)),
                (Ok(limit), Ok(RateLimit::default()))
            );
            let (to, from) = (b.far.at(0), [b.near.sge(0, len)]);
            let start = b.w.now;
            let requests = 2000;
            let mut posted = 0;
            let mut done = 0;
            while done < requests {
                while posted < requests && b.post(limited, SendOp::Write(to.0, to.1), &from).is_ok() {
                    posted += 1;
                }
                assert_eq!(b.w.completion(0).status, Status::Success);
                done += 1;
            }
            let took = b.w.now.since(start).as_ns() as f64 / 1e9;
            let rate = (requests * counted) as f64 / took;
            assert!(within(rate, 10e6), "{len} {typical} {irn}: {rate}");
            // Others pay nothing, and the bound can be taken off.
            let start = b.w.now;
            b.post(free, SendOp::Write(to.0, to.1), &from).unwrap();
            b.w.completion(0);
            assert!(b.w.now.since(start) < Duration::from_us(50));
            let nic = &mut b.w.nodes[0].nic;
            nic.set_rate_limit(limited, RateLimit::default()).unwrap();
            let start = b.w.now;
            for _ in 0..20 {
                b.post(limited, SendOp::Write(to.0, to.1), &from).unwrap();
            }
            for _ in 0..20 {
                b.w.completion(0);
            }
            assert!(b.w.now.since(start) < Duration::from_us(100));
        }
    }
}

/// A chain that never ends and sends nothing counts as well, and waits in virtual time.
#[test]
fn a_loop_without_frames_keeps_to_its_rate() {
    let mut b = Bench::new(2);
    let cq = b.unpolled_cq();
    let looped = b.own(QpFlags::MANAGED_SEND, SMALL, cq);
    let number = b.number(looped);
    // Four ENABLEs of their own queue, each a quarter of the circle of 2^16 blocks further.
    for at in 0..4 {
        b.put(looped, at, &wqe(WqeOp::SendEnable, &[queue((at as u32 + 1) << 14, number)], SIGNALED));
    }
    b.ring(looped, 4);
    // 51.2 Mb/s of 64 bytes: 100,000 requests per second.
    b.w.nodes[0].nic.set_rate_limit(looped, RateLimit { kbps: 51_200, ..RateLimit::default() }).unwrap();
    let starter = b.qp(false);
    b.put(starter, 0, &wqe(WqeOp::SendEnable, &[queue(4, number)], 0));
    b.ring(starter, 1);
    let start: Instant = b.w.now;
    b.w.run(Duration::from_ms(200));
    let done = b.w.nodes[0].nic.cq_produced(cq).unwrap() as f64;
    let rate = done / (b.w.now.since(start).as_ns() as f64 / 1e9);
    assert!(within(rate, 100_000.0), "{rate}");
    assert!(!b.w.nodes[0].nic.has_work(), "between its turns the NIC is idle");
    // It ends at once.
    b.w.nodes[0].nic.destroy_qp(looped).unwrap();
    b.w.run(Duration::from_ms(1));
}

#[test]
fn limits_that_cannot_be_set_are_refused() {
    let mut b = Bench::new(3);
    let init = b.init(SMALL);
    let nic = &mut b.w.nodes[0].nic;
    let in_reset = nic.create_qp(&init).unwrap();
    let limit = RateLimit { kbps: 1000, ..RateLimit::default() };
    assert_eq!(nic.set_rate_limit(in_reset, limit), Err(Error::WrongState));
    let qp = b.qp(false);
    let nic = &mut b.w.nodes[0].nic;
    let large = RateLimit { typical_packet: 5000, ..limit };
    assert!(matches!(nic.set_rate_limit(qp, large), Err(Error::Invalid(_))));
    nic.destroy_qp(qp).unwrap();
    assert_eq!(nic.set_rate_limit(qp, limit), Err(Error::NoSuchObject));
}
