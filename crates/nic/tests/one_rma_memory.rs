//! No security state for each peer: what a target keeps does not grow with initiators (section 4.2). Alone in
//! its program, for it looks at all of the program's memory.

mod one_rma_world;

use adverb_nic::one_rma::*;
use adverb_wire::Duration;
use adverb_wire::one_rma::Op;
use one_rma_world::*;

/// Resident bytes of this process.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[test]
fn memory_does_not_grow_with_initiators() {
    let mut target = host(0, 1, &|_| {});
    let mut frame = OneRmaFrame::new();
    let mut now = adverb_wire::Instant::from_ns(1);
    let mut serve = |index: usize, boot: u64| {
        // One initiator after another, each from an address of its own: a read that is served, and a write
        // that is given up halfway.
        let address = adverb_wire::Gid::from(std::net::Ipv4Addr::from(0x0b00_0000 + index as u32));
        let mut small = config(1);
        (small.address, small.slots, small.regions) = (address, 2, 3);
        (small.slots_by_priority, small.inbound_ops) = ([2; 4], 1);
        let mut nic = adverb_nic::OneRma::new(small, boot..boot + 10, 1).unwrap();
        let pd = nic.memory().alloc_pd().unwrap();
        let access = adverb_nic::Access::LOCAL_WRITE;
        let memory = Memory::register(nic.memory(), pd, 4096, access);
        nic.attach(ProcessInit { pid: PID, quota: 2, priority: 0 }).unwrap();
        let init = RegionInit {
            owner: PID,
            pd,
            lkey: memory.mr.lkey,
            addr: memory.addr(),
            len: 4096,
            rights: Rights::empty(),
            key: region_key(1),
        };
        let own = nic.register(&init).unwrap();
        for op in [Op::Read, Op::Write] {
            let slot = nic.allot_slot(PID).unwrap();
            let command = Command {
                op,
                class: 0,
                len: 64,
                remote_region: target.target,
                local_region: own,
                completion_region: own,
                target: gid(0),
                remote_offset: 0,
                local_offset: 1024,
                key: target.nic.derive(target.target, address, PID, op).unwrap(),
            };
            nic.post(now, slot, &command.encode()).unwrap();
            assert!(nic.next_frame(now, &mut frame));
            let mut message = frame.message().to_vec();
            target.nic.on_frame(now, address, &mut message);
            while target.nic.next_frame(now, &mut frame) {
                assert_eq!(frame.to, address);
            }
        }
        now += Duration::from_us(1);
    };
    (0..2_000).for_each(|index| serve(index, 1));
    let before = resident();
    (2_000..102_000).for_each(|index| serve(index, 1));
    let grown = resident().saturating_sub(before);
    assert!(grown < 1 << 20, "{grown} bytes for 100,000 initiators");
    assert_eq!(target.counter("reads_served"), 102_000);
    assert_eq!(target.counter("requests") - target.counter("nacks_window"), 204_000);
}
