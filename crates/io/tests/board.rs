//! A NIC's board, by who looks: it is seen while its process lives, tells the latest when it is asked, and
//! goes with the NIC.
#![allow(clippy::disallowed_methods, reason = "tests of real time")]

use adverb_io::{Host, Settings, board};
use adverb_nic::{QpCaps, QpInit};
use std::time::{Duration, Instant};

#[test]
fn a_live_nic_is_seen_answers_and_goes() {
    let directory = std::path::PathBuf::from(format!("/dev/shm/adverb-io-test-{}-seen", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    let settings = format!("address=127.244.17.3,directory={}", directory.display());
    let host = Host::open(&Settings::parse(&settings).unwrap(), Box::new(|_| {})).unwrap();
    let seen = || board::read_all(&directory).unwrap();
    assert_eq!(seen().len(), 1);
    assert_eq!((seen()[0].pid, &*seen()[0].address), (std::process::id(), "127.244.17.3"));
    host.control(|nic, _| {
        let pd = nic.memory().alloc_pd().unwrap();
        let cq = nic.create_cq(8).unwrap();
        let caps = QpCaps { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
        nic.create_qp(&QpInit::rc(pd, cq, caps)).unwrap();
    });
    assert_eq!(seen()[0].live_qps(), 0, "nobody has asked");
    seen()[0].ask();
    let deadline = Instant::now() + Duration::from_secs(30);
    while !seen()[0].is_fresh() {
        assert!(Instant::now() < deadline, "its progress thread does not answer");
        std::thread::yield_now();
    }
    assert_eq!(seen()[0].live_qps(), 1);
    drop(host);
    assert_eq!(seen(), []);
    std::fs::remove_dir_all(directory).unwrap();
}
