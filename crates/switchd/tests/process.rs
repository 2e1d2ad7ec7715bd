//! The process with its sockets: processes claim addresses, frames cross, faults and questions.

use adverb_os::batch::Tally;
use adverb_os::sys::wait_readable;
use adverb_os::unix::Channel;
use adverb_os::via::{Hello, Message, Place, Via, socket_path};
use adverb_switch::PortId;
use adverb_switchd::replay::{Failure, Life, replay};
use adverb_switchd::tape::{BYTES_MIN, End, Entry, Reader, Tape};
use adverb_switchd::{Config, OpenError, Process, Question, Stopper, control};
use adverb_wire::arp::{Arp, ArpKind};
use adverb_wire::eth::{ETHERTYPE_ARP, ETHERTYPE_IPV4, Eth, Mac};
use adverb_wire::{
    Bth, Flow, Gid, Instant, Opcode, Operation, Packet, Psn, QpNumber, Service, WireExtra, verify_udp,
};
use serde_json::Value;
use std::fs::Permissions;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::num::NonZeroU32;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(20);
const TOKEN: &[u8] = b"0123456789abcdef";
const GATE: &str = "listen = '127.0.0.1:0'\ntoken = 'FOLDER/token'\n";

struct Running {
    thread: Option<JoinHandle<()>>,
    stopper: Stopper,
    path: PathBuf,
    gate: Option<SocketAddr>,
    folder: PathBuf,
}

impl Running {
    fn start(test: &str, text: &str) -> Running {
        Running::open(test, text, Process::open)
    }

    /// With a recording in the folder's `tape`.
    fn recorded(test: &str, text: &str) -> Running {
        Running::open(test, text, |config, folder| {
            Process::open_recorded(config, folder, Some((&folder.join("tape"), BYTES_MIN)))
        })
    }

    fn open(
        test: &str,
        text: &str,
        open: impl FnOnce(Config, &Path) -> Result<Process, OpenError>,
    ) -> Running {
        let folder = std::env::temp_dir().join(format!("adverb-switchd-{}-{test}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        let text = text.replace("FOLDER", &folder.display().to_string());
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::set_permissions(&folder, Permissions::from_mode(0o700)).unwrap();
        std::fs::write(folder.join("token"), TOKEN).unwrap();
        std::fs::set_permissions(folder.join("token"), Permissions::from_mode(0o600)).unwrap();
        Running::of(open(Config::parse(&text).unwrap(), &folder).unwrap(), folder)
    }

    fn of(mut process: Process, folder: PathBuf) -> Running {
        let (stopper, path, gate) = (process.stopper(), process.path().to_owned(), process.gate());
        let thread = Some(std::thread::spawn(move || process.run().unwrap()));
        Running { thread, stopper, path, gate, folder }
    }

    /// Another host's way to it.
    fn remote(&self, token: &[u8]) -> Place {
        Place::Remote(self.gate.unwrap(), token.to_vec())
    }

    /// What a connection that says these bytes, and then nothing, is told before it ends.
    fn told(&self, bytes: &[u8]) -> Vec<u8> {
        let mut stream = TcpStream::connect(self.gate.unwrap()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(bytes).unwrap();
        let mut told = Vec::new();
        match stream.read_to_end(&mut told) {
            Ok(_) => {}
            // What it said last was not read any more.
            Err(e) => assert_eq!(e.kind(), ErrorKind::ConnectionReset),
        }
        told
    }

    /// Another switch in its place, whose recording goes on.
    fn start_again(&mut self, text: &str) {
        let recording = self.folder.join("tape");
        let config = Config::parse(text).unwrap();
        let mut process =
            Process::open_recorded(config, &self.folder, Some((&recording, BYTES_MIN))).unwrap();
        self.stopper = process.stopper();
        self.thread = Some(std::thread::spawn(move || process.run().unwrap()));
    }

    fn show(&self) -> Value {
        control::ask(&self.path, &Question::Show {}).unwrap()
    }

    fn stop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn gid(text: &str) -> Gid {
    Gid::from(text.parse::<IpAddr>().unwrap())
}

fn hello(address: &str, slot: u8, host: u8) -> Hello {
    Hello { slot, address: gid(address), host: [host; 16] }
}

fn packet(from: &str, to: &str, slot: u8, psn: u32) -> Packet {
    let flow = Flow { src: gid(from), dst: gid(to), traffic_class: 2, hop_limit: 64, src_port: 0 };
    let bth = Bth {
        opcode: Opcode::new(Service::Rc, Operation::SendMiddle),
        dest_qp: QpNumber::new(u32::from(slot) << 16 | 17),
        psn: Psn::new(psn),
        ..Bth::default()
    };
    Packet { flow, bth, payload_len: 1024, ..Packet::default() }
}

fn send(via: &mut Via, packet: &Packet) {
    assert!(via.stage_packet(Instant::ZERO, packet, |at| at.fill(7)));
    assert!(via.flush(&mut Tally::default()));
}

/// PSNs of the next `count` frames, and their class.
fn hear(via: &mut Via, count: usize) -> Vec<(u32, u8)> {
    let mut heard = Vec::new();
    while heard.len() < count {
        assert!(wait_readable(via.fd(), PATIENCE), "{} of {count} frames came", heard.len());
        via.receive(Instant::ZERO, |datagram| {
            assert!(verify_udp(&datagram.flow, datagram.bytes).is_some());
            let packet = Packet::parse_bth(datagram.flow, datagram.bytes).unwrap().packet;
            heard.push((packet.bth.psn.get(), packet.flow.traffic_class));
        });
    }
    heard
}

/// A switch may run on any thread of its process, and says on which: who waits for it looks at that one.
#[test]
fn a_switch_says_which_thread_takes_frames() {
    let mut running = Running::start("thread", "");
    let mut one = Via::open(Place::Local(running.path.clone()), hello("10.9.0.1", 1, 1)).unwrap();
    send(&mut one, &packet("10.9.0.1", "10.9.0.1", 1, 0));
    hear(&mut one, 1);
    let (pid, tid) = one.process().unwrap();
    let thread = PathBuf::from(format!("/proc/self/task/{tid}"));
    assert!(pid == std::process::id() && tid != pid && thread.exists());
    running.stop();
    // A thread that has been waited for still has to leave the kernel's list.
    let looks = PATIENCE.as_millis();
    let is_gone = (0..looks).any(|_| {
        std::thread::park_timeout(Duration::from_millis(1));
        !thread.exists()
    });
    assert!(is_gone, "it was the switch's");
}

#[test]
fn frames_go_to_the_process_whose_queue_pair_they_name() {
    let running = Running::start("slots", "");
    let open =
        |address: &str, slot| Via::open(Place::Local(running.path.clone()), hello(address, slot, 1)).unwrap();
    let mut client = open("10.9.0.2", 1);
    let mut servers = [open("10.9.0.1", 3), open("10.9.0.1", 4)];
    for psn in 0..100 {
        send(&mut client, &packet("10.9.0.2", "10.9.0.1", 3 + (psn % 2) as u8, psn));
    }
    for (at, server) in servers.iter_mut().enumerate() {
        let heard = hear(server, 50);
        assert!(heard.iter().zip(0..).all(|((psn, class), i)| (*psn, *class) == (2 * i + at as u32, 2)));
    }
    // Back to itself, to all processes of an address, to a slot that nobody has, under another's address.
    send(&mut client, &packet("10.9.0.2", "10.9.0.2", 1, 200));
    assert_eq!(hear(&mut client, 1), [(200, 2)]);
    send(&mut client, &packet("10.9.0.2", "10.9.0.1", 0, 201));
    servers.iter_mut().for_each(|server| assert_eq!(hear(server, 1), [(201, 2)]));
    send(&mut client, &packet("10.9.0.2", "10.9.0.1", 9, 202));
    send(&mut client, &packet("10.9.0.1", "10.9.0.2", 1, 203));
    send(&mut client, &packet("10.9.0.2", "10.9.0.7", 1, 204));
    send(&mut client, &packet("10.9.0.2", "10.9.0.2", 1, 205));
    assert_eq!(hear(&mut client, 1), [(205, 2)]);
    let shown = running.show();
    let ports = shown["ports"].as_array().unwrap();
    let port = |address: &str| ports.iter().find(|port| port["address"] == address).unwrap();
    assert_eq!(port("10.9.0.1")["processes"], 2);
    assert_eq!(port("10.9.0.1")["drop_no_process"], 1);
    assert_eq!((&port("10.9.0.2")["rx_frames"], &port("10.9.0.2")["dropped"]), (&106.into(), &2.into()));
    assert_eq!(
        (&shown["counters"]["drop_source"], &shown["counters"]["drop_no_route"]),
        (&1.into(), &1.into())
    );
}

#[test]
fn an_address_is_claimed_once_and_free_when_its_process_has_ended() {
    let running = Running::start("claims", "");
    let open = |host, slot| Via::open(Place::Local(running.path.clone()), hello("10.9.0.1", slot, host));
    let first = open(1, 1).unwrap();
    let refused = open(2, 1).unwrap_err().to_string();
    assert!(refused.contains("another host or folder") && refused.contains("10.9.0.1"), "{refused}");
    let refused = open(1, 1).unwrap_err().to_string();
    assert!(refused.contains("slot 1"), "{refused}");
    let _second = open(1, 2).unwrap();
    let refused =
        Via::open(Place::Local(running.path.clone()), hello("0.0.0.0", 1, 1)).unwrap_err().to_string();
    assert!(refused.contains("not the address of a host"), "{refused}");
    assert!(Via::open(Place::Local(running.path.clone()), hello("10.9.0.3", 0xff, 1)).is_err());
    drop(first);
    drop(_second);
    open(2, 1).unwrap();
    // What ended with frames that nobody had read yet gives its slot back too.
    for psn in 0..20 {
        let mut via = open(3, 1).unwrap();
        (0..40).for_each(|_| send(&mut via, &packet("10.9.0.1", "10.9.0.1", 1, psn)));
    }
    let same = Process::open(Config::parse("").unwrap(), &running.folder).map(drop).unwrap_err().to_string();
    assert!(same.contains("another daemon") && same.contains("another"), "{same}");
}

#[test]
fn a_killed_switch_comes_back_and_its_processes_with_it() {
    let mut running = Running::start("again", "");
    let mut via = Via::open(Place::Local(running.path.clone()), hello("10.9.0.1", 1, 1)).unwrap();
    send(&mut via, &packet("10.9.0.1", "10.9.0.1", 1, 1));
    assert_eq!(hear(&mut via, 1), [(1, 2)]);
    running.stop();
    assert!(wait_readable(via.fd(), PATIENCE));
    via.receive(Instant::ZERO, |_| panic!("no frame"));
    assert_eq!(via.fd(), -1);
    let mut process = Process::open(Config::parse("").unwrap(), &running.folder).unwrap();
    running.stopper = process.stopper();
    running.thread = Some(std::thread::spawn(move || process.run().unwrap()));
    let later = Instant::from_ns(1_000_000_000);
    via.receive(later, |_| panic!("no frame"));
    send(&mut via, &packet("10.9.0.1", "10.9.0.1", 1, 2));
    assert_eq!(hear(&mut via, 1), [(2, 2)]);
}

#[test]
fn programs_are_shown_traced_and_set() {
    let text =
        "[[program]]\nkind = 'ecn'\nevery = 2\n[[program]]\nkind = 'cas_to_write'\nserver = '10.9.0.8'";
    let running = Running::start("set", text);
    let mut via = Via::open(Place::Local(running.path.clone()), hello("10.9.0.1", 1, 1)).unwrap();
    let classes = |via: &mut Via| -> Vec<u8> {
        (0..4).for_each(|psn| send(via, &packet("10.9.0.1", "10.9.0.1", 1, psn)));
        hear(via, 4).iter().map(|(_, class)| *class).collect()
    };
    assert_eq!(classes(&mut via), [2, 3, 2, 3]);
    let ask = |question| control::ask(&running.path, &question).map_err(|e| e.to_string());
    let events = ask(Question::Trace { qp: Some(1 << 16 | 17), last: Some(1), before: None }).unwrap();
    let line = events["events"][0].as_str().unwrap();
    assert!(line.contains("marked") && line.contains("psn"), "{line}");
    assert_eq!(
        ask(Question::Trace { qp: Some(5), last: None, before: None }).unwrap()["events"],
        Value::Array(vec![])
    );
    ask(Question::Mark { program: "1".into(), above: None, every: NonZeroU32::new(4) }).unwrap();
    assert_eq!(classes(&mut via), [2, 2, 2, 3]);
    assert_eq!(running.show()["programs"][0]["every"], 4);
    assert_eq!(running.show()["counters"]["ecn_marked"], 3);
    for (question, said) in [
        (Question::Mark { program: "cas_to_write".into(), above: None, every: None }, "marks nothing"),
        (Question::Mark { program: "trim".into(), above: None, every: None }, "no program trim"),
        (Question::Mark { program: "3".into(), above: None, every: None }, "no program 3"),
        (Question::Forget { program: "ecn".into(), word: 8 }, "follows no words"),
        (Question::Forget { program: "cas_to_write".into(), word: 8 }, "0x8 is not followed"),
    ] {
        let refused = ask(question).unwrap_err();
        assert!(refused.contains(said), "{refused}");
    }
}

/// A virtual machine's end of a cable.
struct Machine(UnixStream);

impl Machine {
    const MAC: Mac = Mac([0x52, 0x54, 0, 0, 0x77, 0x11]);

    fn accept(listener: &UnixListener) -> Machine {
        let (stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Machine(stream)
    }

    fn send(&mut self, dst: Mac, ethertype: u16, body: &[u8]) {
        let frame = [&Eth { dst, src: Machine::MAC, ethertype }.emit()[..], body].concat();
        self.0.write_all(&(frame.len() as u32).to_be_bytes()).unwrap();
        self.0.write_all(&frame).unwrap();
    }

    /// The next frame: its header, and what follows it.
    fn hear(&mut self) -> (Eth, Vec<u8>) {
        let mut length = [0; 4];
        self.0.read_exact(&mut length).unwrap();
        let mut frame = vec![0; u32::from_be_bytes(length) as usize];
        self.0.read_exact(&mut frame).unwrap();
        let (eth, at) = Eth::parse(&frame).unwrap();
        (eth, frame.split_off(at))
    }

    /// Asks for an address, and says the hardware address that it is told.
    fn ask(&mut self, own: &str, target: &str) -> Mac {
        let [own, target] = [own, target].map(|text| text.parse().unwrap());
        let request =
            Arp { kind: ArpKind::Request, sender: (Machine::MAC, own), target: (Mac::default(), target) };
        self.send(Mac::BROADCAST, ETHERTYPE_ARP, &request.emit());
        let (_, told) = self.hear();
        let told = Arp::parse(&told).unwrap();
        assert_eq!((told.kind, told.sender.1), (ArpKind::Reply, target));
        told.sender.0
    }
}

/// A packet from its IP header on.
fn frame(packet: &Packet) -> Vec<u8> {
    let mut bytes = vec![0; packet.frame_len()];
    let payload = vec![7; packet.payload_len as usize];
    assert_eq!(packet.emit_frame(&WireExtra::default(), &payload, &mut bytes), bytes.len());
    bytes
}

#[test]
fn a_virtual_machine_has_a_port_by_its_cable() {
    let text = "[[port]]\naddress = '10.9.0.11'\nqemu = 'FOLDER/one'\n\
                [[port]]\naddress = '10.9.0.12'\nqemu = 'FOLDER/two'\nalso = ['fd09::12']";
    let running = Running::start("cable", text);
    // The machine comes later than the switch.
    let listen = |name: &str| UnixListener::bind(running.folder.join(name)).unwrap();
    let (first, second) = (listen("one"), listen("two"));
    let (mut one, mut two) = (Machine::accept(&first), Machine::accept(&second));
    let mut via = Via::open(Place::Local(running.path.clone()), hello("10.9.0.1", 1, 1)).unwrap();
    let there = one.ask("10.9.0.11", "10.9.0.1");
    // From the machine to a process, and back to where it came from.
    one.send(there, ETHERTYPE_IPV4, &frame(&packet("10.9.0.11", "10.9.0.1", 1, 5)));
    assert_eq!(hear(&mut via, 1), [(5, 2)]);
    send(&mut via, &packet("10.9.0.1", "10.9.0.11", 0, 6));
    let (eth, body) = one.hear();
    assert_eq!((eth.dst, eth.src), (Machine::MAC, there));
    assert_eq!(Packet::parse_ip(&body).unwrap().packet.bth.psn.get(), 6);
    // To a machine that has said nothing yet: it is asked for, and gets the packet when it has answered.
    send(&mut via, &packet("10.9.0.1", "10.9.0.12", 0, 7));
    let asked = Arp::parse(&two.hear().1).unwrap();
    assert_eq!((asked.kind, asked.sender), (ArpKind::Request, (there, "10.9.0.1".parse().unwrap())));
    let answer = Arp { kind: ArpKind::Reply, sender: (Machine::MAC, asked.target.1), target: asked.sender };
    two.send(asked.sender.0, ETHERTYPE_ARP, &answer.emit());
    assert_eq!(Packet::parse_ip(&two.hear().1).unwrap().packet.bth.psn.get(), 7);
    // Between machines other protocols pass too; a process gets RDMA only.
    let mut tcp = frame(&packet("10.9.0.11", "10.9.0.12", 0, 8));
    tcp[9] = 6;
    let other = one.ask("10.9.0.11", "10.9.0.12");
    one.send(other, ETHERTYPE_IPV4, &tcp);
    assert_eq!(two.hear().1, tcp);
    tcp[16..20].copy_from_slice(&[10, 9, 0, 1]);
    one.send(there, ETHERTYPE_IPV4, &tcp);
    // A claim of its address, a foreign source, and a length that no frame has.
    let taken =
        Via::open(Place::Local(running.path.clone()), hello("10.9.0.11", 1, 1)).unwrap_err().to_string();
    assert!(taken.contains("for what is at"), "{taken}");
    one.send(there, ETHERTYPE_IPV4, &frame(&packet("10.9.0.12", "10.9.0.1", 1, 9)));
    one.0.write_all(&[0xff; 64]).unwrap();
    // The machine is found again.
    let mut again = Machine::accept(&first);
    assert_eq!(again.ask("10.9.0.11", "10.9.0.1"), there);
    let shown = running.show();
    let port = shown["ports"].as_array().unwrap().iter().find(|port| port["address"] == "10.9.0.11").unwrap();
    assert_eq!((&port["dropped"], &port["cable"]["drop_not_rdma"]), (&1.into(), &1.into()), "{port}");
    assert_eq!((&port["cable"]["malformed"], &port["cable"]["plugged"]), (&1.into(), &true.into()), "{port}");
}

#[test]
fn a_ports_faults_and_capture_are_its_own() {
    let text = "[[port]]\naddress = '10.9.0.2'\nfaults = { loss = 0.5, seed = 7, direction = 'tx' }\n\
                pcap = 'FOLDER/two.pcap'";
    let mut running = Running::start("faults", text);
    let mut one = Via::open(Place::Local(running.path.clone()), hello("10.9.0.1", 1, 1)).unwrap();
    let mut two = Via::open(Place::Local(running.path.clone()), hello("10.9.0.2", 1, 1)).unwrap();
    let port_two = |running: &Running| running.show()["ports"][1].clone();
    for psn in 0..100 {
        send(&mut one, &packet("10.9.0.1", "10.9.0.2", 1, psn));
        send(&mut two, &packet("10.9.0.2", "10.9.0.1", 1, psn));
    }
    assert_eq!(hear(&mut one, 100).len(), 100, "what it sends suffers nothing");
    let mut lost = 0;
    while port_two(&running)["tx_frames"] != 100 {
        std::thread::yield_now();
    }
    lost += port_two(&running)["tx_faults"]["lost"].as_u64().unwrap() as usize;
    assert!((30..70).contains(&lost), "{lost}");
    assert_eq!(hear(&mut two, 100 - lost).len(), 100 - lost);
    running.stop();
    let bytes = std::fs::read(running.folder.join("two.pcap")).unwrap();
    let captured = adverb_wire::pcap::Reader::new(&bytes).unwrap().count();
    assert_eq!(captured, 200 - lost);
}

#[test]
fn what_nobody_should_say_ends_its_connection_only() {
    let running = Running::start("hostile", "");
    let mut via = Via::open(Place::Local(running.path.clone()), hello("10.9.0.1", 1, 1)).unwrap();
    let raw = |bytes: &[u8]| {
        let channel = Channel::connect(&running.path, 20).unwrap();
        channel.send(bytes, &[]).unwrap();
        channel
    };
    for bytes in [&[99, 1][..], &[1], &[4, 1, 0, 7], &Message::Answer(b"x").emit(), &[0; 61 << 10]] {
        raw(bytes).wait_for_end();
    }
    let silent = Channel::connect(&running.path, 20).unwrap();
    let answered = raw(&Message::Ask(b"{\"ask\":\"sing\"}").emit());
    let mut buffer = [0; 1000];
    let (len, _) = answered.receive(&mut buffer).unwrap().unwrap();
    assert!(String::from_utf8_lossy(&buffer[..len]).contains("no question"));
    // Frames of any bytes, of which none is a packet.
    let mut bytes = vec![4];
    for i in 0..200u16 {
        bytes.extend_from_slice(&(1 + i % 100).to_le_bytes());
        bytes.extend((0..=i % 100).map(|j| (i.wrapping_mul(31) ^ j.wrapping_mul(7)) as u8));
    }
    let channel = raw(&Message::Hello(hello("10.9.0.5", 1, 1)).emit());
    channel.send(&bytes, &[]).unwrap();
    channel.receive(&mut buffer).unwrap().unwrap();
    send(&mut via, &packet("10.9.0.1", "10.9.0.1", 1, 5));
    assert_eq!(hear(&mut via, 1), [(5, 2)]);
    while running.show()["counters"]["drop_parse"] != 200 {
        std::thread::yield_now();
    }
    assert!(running.show()["messages_malformed"].as_u64() >= Some(4));
    assert!(!silent.is_closed(), "it has some seconds to say something");
}

#[test]
fn a_name_is_a_file_in_the_folder() {
    let running = Running::start("name", "name = 'lock'");
    assert_eq!(running.path, socket_path(&running.folder, Path::new("lock")));
    assert_eq!(running.show()["name"], "lock");
}

/// A process of another host, as a message over TCP.
fn framed(message: &Message<'_>) -> Vec<u8> {
    let message = message.emit();
    [&(message.len() as u16).to_le_bytes()[..], &message].concat()
}

#[test]
fn processes_of_other_hosts_come_with_the_token() {
    let mut running = Running::start("remote", GATE);
    let mut server = Via::open(running.remote(TOKEN), hello("10.9.0.1", 1, 1)).unwrap();
    let mut client = Via::open(running.remote(TOKEN), hello("10.9.0.2", 1, 2)).unwrap();
    let mut near = Via::open(Place::Local(running.path.clone()), hello("10.9.0.3", 1, 3)).unwrap();
    // An address is one host's, however its processes come.
    for place in [running.remote(TOKEN), Place::Local(running.path.clone())] {
        let refused = Via::open(place, hello("10.9.0.1", 2, 2)).unwrap_err().to_string();
        assert!(refused.contains("for processes of another host or folder"), "{refused}");
    }
    for psn in 0..500 {
        send(&mut client, &packet("10.9.0.2", "10.9.0.1", 1, psn));
        send(&mut near, &packet("10.9.0.3", "10.9.0.2", 1, psn));
    }
    let psns = |heard: Vec<(u32, u8)>| heard.into_iter().map(|(psn, _)| psn).collect::<Vec<_>>();
    assert_eq!(psns(hear(&mut server, 500)), (0..500).collect::<Vec<_>>());
    assert_eq!(psns(hear(&mut client, 500)), (0..500).collect::<Vec<_>>());
    // A source that is not the port's goes nowhere, from another host as from this one.
    send(&mut client, &packet("10.9.0.3", "10.9.0.1", 1, 9));
    send(&mut client, &packet("10.9.0.2", "10.9.0.1", 1, 10));
    assert_eq!(hear(&mut server, 1), [(10, 2)]);
    assert_eq!(running.show()["counters"]["drop_source"], 1);
    // The switch ends: its far processes see it, as near ones do.
    running.stop();
    while client.fd() >= 0 {
        assert!(wait_readable(client.fd(), PATIENCE));
        client.receive(Instant::ZERO, |_| panic!("no frame"));
    }
}

#[test]
fn who_does_not_know_the_token_gets_nothing() {
    let running = Running::start("strangers", GATE);
    for token in [&b"0123456789abcdeg"[..], b"0123456789abcdef0", b"0123456789abcde"] {
        let refused = Via::open(running.remote(token), hello("10.9.0.1", 1, 1)).unwrap_err().to_string();
        assert_eq!(refused, "this switch has another token");
    }
    let shown = running.show();
    assert_eq!((&shown["strangers_refused"], &shown["messages_malformed"]), (&3.into(), &0.into()));
    // No hello, frames or questions before it, no questions behind it, and no lengths beyond it.
    let greeting = framed(&Message::Hello(hello("10.9.0.1", 1, 1)));
    let question = framed(&Message::Ask(br#"{"ask":"show"}"#));
    let token = framed(&Message::Token(TOKEN));
    for bytes in
        [&greeting, &question, &[&token[..], &question].concat(), &b"GET / HTTP/1.1\r\n\r\n".to_vec()]
    {
        assert_eq!(running.told(bytes), b"", "{bytes:?}");
    }
    for bytes in [[0, 0], [0xff, 0xff], [0, 1]] {
        assert_eq!(running.told(&bytes), b"", "{bytes:?}");
    }
    assert_eq!(running.show()["messages_malformed"], 3);
    assert_eq!(running.show()["ports"], Value::Array(Vec::new()));
}

/// Many who connect and say nothing keep nobody out: the first of them has to go.
#[test]
fn silence_keeps_no_host_out() {
    let running = Running::start("silence", GATE);
    let connect = || TcpStream::connect(running.gate.unwrap()).unwrap();
    let silent: Vec<TcpStream> = (0..200).map(|_| connect()).collect();
    let mut via = Via::open(running.remote(TOKEN), hello("10.9.0.1", 1, 1)).unwrap();
    send(&mut via, &packet("10.9.0.1", "10.9.0.1", 1, 5));
    assert_eq!(hear(&mut via, 1), [(5, 2)]);
    let mut first = &silent[0];
    first.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(first.read(&mut [0; 8]).unwrap(), 0, "it had to go");
}

/// Feeds a folder's recording to a switch.
fn replayed(path: &Path) -> Result<Vec<Life>, Failure> {
    replay(std::io::BufReader::new(std::fs::File::open(path).unwrap()))
}

/// A recording's entries.
fn entries(path: &Path) -> Vec<Entry> {
    let mut reader = Reader::new(std::io::BufReader::new(std::fs::File::open(path).unwrap())).unwrap();
    std::iter::from_fn(|| reader.next().unwrap()).collect()
}

/// The first difference in a recording of which one entry is another, and whose checks are right.
fn with_another(path: &Path, of: impl Fn(&mut Entry) -> bool) -> String {
    let other = path.with_extension("other");
    let _ = std::fs::remove_file(&other);
    let mut tape = Tape::open(&other, 1 << 30).unwrap();
    let mut all = entries(path);
    assert!(all.iter_mut().any(of), "there is such an entry");
    all.iter().for_each(|entry| tape.add(entry).unwrap());
    tape.flush().unwrap();
    drop(tape);
    let differs = replayed(&other).map(drop).unwrap_err();
    assert!(matches!(differs, Failure::Differs { .. }), "{differs}");
    differs.to_string()
}

/// Two lives of a switch with loss, a mark for each second frame after a while, and a port that goes.
fn two_lives(test: &str) -> (Running, PathBuf) {
    let text = "trace = 16\n[[program]]\nkind = 'ecn'\nabove = 60000\n[faults]\nloss = 0.1\nseed = 3";
    let mut running = Running::recorded(test, text);
    let path = running.folder.join("tape");
    let mut one = Via::open(Place::Local(running.path.clone()), hello("10.9.0.1", 1, 1)).unwrap();
    for psn in 0..100 {
        send(&mut one, &packet("10.9.0.1", "10.9.0.1", 1, psn));
    }
    send(&mut one, &packet("10.9.0.1", "10.9.0.7", 1, 100));
    while running.show()["counters"]["drop_no_route"] != 1 {
        std::thread::yield_now();
    }
    control::ask(&running.path, &mark(2)).unwrap();
    assert!(control::ask(&running.path, &Question::Forget { program: "1".into(), word: 8 }).is_err());
    while running.show()["counters"]["ecn_marked"].as_u64() < Some(5) {
        send(&mut one, &packet("10.9.0.1", "10.9.0.1", 1, 7));
    }
    drop(one);
    while !running.show()["ports"].as_array().unwrap().is_empty() {
        std::thread::yield_now();
    }
    running.stop();
    // Another life, in the same file.
    running.start_again(text);
    let mut two = Via::open(Place::Local(running.path.clone()), hello("10.9.0.2", 1, 1)).unwrap();
    send(&mut two, &packet("10.9.0.2", "10.9.0.2", 1, 1));
    while running.show()["counters"]["rx_frames"] != 1 {
        std::thread::yield_now();
    }
    running.stop();
    (running, path)
}

fn mark(every: u32) -> Question {
    Question::Mark { program: "ecn".into(), above: None, every: NonZeroU32::new(every) }
}

#[test]
fn a_recording_is_what_another_switch_does() {
    let (_running, path) = two_lives("record");
    let lives = replayed(&path).unwrap();
    let [first, second] = &lives[..] else { panic!("two lives: {lives:?}") };
    let marked = first.counts.iter().find(|(name, _)| name == "ecn_marked").map(|(_, count)| *count);
    assert_eq!((first.controls, first.end, marked.is_some_and(|n| n >= 5)), (2, Some(End::Stopped), true));
    assert!(first.frames_in >= 70 && first.frames_out >= 70, "{first:?}");
    assert_eq!((second.frames_in, second.frames_out, second.end), (1, 1, Some(End::Stopped)));
    assert!(first.states > 0 && second.states > 0);
}

#[test]
fn every_part_of_a_recording_counts() {
    let (_running, path) = two_lives("altered");
    // A frame's bytes, its time, its port; a control call; a count; what left; and that nothing more did.
    let said = with_another(&path, |entry| match entry {
        Entry::Frame(_, _, bytes) => {
            bytes[60] ^= 1;
            true
        }
        _ => false,
    });
    assert!(said.contains("life 1") && said.contains("now by port 0"), "{said}");
    let said = with_another(&path, |entry| match entry {
        Entry::Depth(_, bytes) => {
            *bytes = 60_000;
            true
        }
        _ => false,
    });
    assert!(said.contains("now by port 0"), "{said}");
    let said = with_another(&path, |entry| match entry {
        Entry::Control(_, text) => {
            *text = serde_json::to_string(&mark(3)).unwrap();
            true
        }
        _ => false,
    });
    assert!(said.contains("now by port 0"), "{said}");
    let said = with_another(&path, |entry| match entry {
        Entry::State(state) => {
            state[0].1 += 1;
            true
        }
        _ => false,
    });
    assert!(said.contains("rx_frames was"), "{said}");
    let said = with_another(&path, |entry| match entry {
        Entry::Out(port, _) => {
            port.0 += 1;
            true
        }
        _ => false,
    });
    assert!(said.contains("by port 1 left") && said.contains("now by port 0"), "{said}");
    let said = with_another(&path, |entry| match entry {
        Entry::Out(..) => {
            *entry = Entry::Drained;
            true
        }
        _ => false,
    });
    assert!(said.contains("nothing more left then"), "{said}");
    let said = with_another(&path, |entry| match entry {
        // The one that nobody has the address of: only its time is remembered.
        Entry::Frame(at, _, bytes) if bytes[19] == 7 => {
            *at = Instant::from_ps(at.as_ps() + 1);
            true
        }
        _ => false,
    });
    assert!(said.contains("trace was"), "{said}");
    let said = with_another(&path, |entry| match entry {
        Entry::Claim(_, address) => {
            *address = gid("10.9.0.8");
            true
        }
        _ => false,
    });
    assert!(said.contains("now nothing"), "{said}");
}

#[test]
fn a_recording_that_is_full_ends_and_its_switch_goes_on() {
    let mut running = Running::recorded("full", "");
    let path = running.folder.join("tape");
    let mut via = Via::open(Place::Local(running.path.clone()), hello("10.9.0.1", 1, 1)).unwrap();
    let mut heard = 0;
    while heard < 3000 {
        (0..50).for_each(|psn| send(&mut via, &packet("10.9.0.1", "10.9.0.1", 1, psn)));
        heard += hear(&mut via, 50).len();
    }
    running.stop();
    assert!(std::fs::metadata(&path).unwrap().len() <= BYTES_MIN);
    let lives = replayed(&path).unwrap();
    assert_eq!((lives.len(), lives[0].end), (1, Some(End::Full)));
    assert!(lives[0].frames_out > 1000 && lives[0].frames_out < 3000, "{lives:?}");
    let full = Process::open_recorded(Config::parse("").unwrap(), &running.folder, Some((&path, BYTES_MIN)));
    assert!(full.map(drop).unwrap_err().to_string().contains("full"));
}

#[test]
fn recordings_that_nobody_has_written_are_refused() {
    let folder = std::env::temp_dir().join(format!("adverb-switchd-{}-refused", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("tape");
    let tape = |all: &[Entry]| {
        let _ = std::fs::remove_file(&path);
        let mut tape = Tape::open(&path, BYTES_MIN).unwrap();
        all.iter().for_each(|entry| tape.add(entry).unwrap());
        tape.flush().unwrap();
        drop(tape);
        replayed(&path).map(drop).unwrap_err().to_string()
    };
    let now = Instant::ZERO;
    let begin = |config: &str| Entry::Begin { now, config: config.to_owned(), shifted: Vec::new() };
    assert!(tape(&[]).contains("it has no switch"));
    assert!(tape(&[Entry::AddPort]).contains("something happens to no switch"));
    assert!(tape(&[begin("[[program]]\nkind = 'sort'")]).contains("the switch's file in the recording"));
    let paper = "[[program]]\nkind = 'cas_to_write'\nserver = '10.9.0.1'\nmode = 'paper'\nclients = 2";
    assert!(tape(&[begin(paper)]).contains("for simulations"));
    assert!(tape(&[begin(""), Entry::Control(now, "sing".to_owned())]).contains("a question"));
    let ended = [begin(""), Entry::End(End::Stopped), Entry::Timer(now)];
    assert!(tape(&ended).contains("something happens to no switch"));
    // Calls that fail fail again, and break nothing.
    let port = PortId(200);
    let calls = [
        begin(""),
        Entry::Claim(port, gid("10.9.0.1")),
        Entry::RemovePort(now, port),
        Entry::Depth(port, 7),
        Entry::Frame(now, port, vec![0; 3]),
        Entry::Drained,
        Entry::State(vec![("rx_frames".to_owned(), 0)]),
    ];
    assert!(tape(&calls).contains("other counters and registers"), "and so far all was the same");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn what_a_switch_before_this_one_has_shifted_is_not_mistaken() {
    let folder = std::env::temp_dir().join(format!("adverb-switchd-{}-shifted", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("sw0.shifted");
    let line = "10.9.0.1 10.9.0.2 65553 0 0 0\n";
    std::fs::write(&file, line).unwrap();
    let open = |text: &str| Process::open(Config::parse(text).unwrap(), &folder);
    let cas = |server: u8| format!("[[program]]\nkind = 'cas_to_write'\nserver = '10.9.0.{server}'\n");
    for text in [String::new(), cas(3)] {
        let refused = open(&text).map(drop).unwrap_err().to_string();
        assert!(refused.contains("10.9.0.1 went through") && refused.contains("end them"), "{refused}");
    }
    // In place too, whoever has left them.
    for text in [cas(1), cas(3) + &cas(1), cas(1) + "mode = 'multiplex'"] {
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(&file, line).unwrap();
        let running = Running::of(open(&text).unwrap(), folder.clone());
        let mut via = Via::open(Place::Local(running.path.clone()), hello("10.9.0.2", 1, 1)).unwrap();
        let _server = Via::open(Place::Local(running.path.clone()), hello("10.9.0.1", 1, 1)).unwrap();
        send(&mut via, &packet("10.9.0.2", "10.9.0.1", 1, 5));
        while running.show()["counters"]["rx_frames"] == 0 {
            std::thread::yield_now();
        }
        assert_eq!(running.show()["counters"]["drop_shifted"], 1);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), line, "it is still so for the next one");
        // When its address has left it may have another life.
        drop(via);
        while running.show()["ports"].as_array().unwrap().len() != 1 {
            std::thread::yield_now();
        }
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "");
    }
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(&file, "a letter\n").unwrap();
    let refused = open(&cas(1)).map(drop).unwrap_err().to_string();
    assert!(refused.contains("no queue pair") && refused.contains("sw0.shifted"), "{refused}");
    std::fs::remove_dir_all(&folder).unwrap();
}

/// What a switch says to a line of JSON, spoken by hand: a byte that says "question", then the question; each
/// part of the answer begins with a byte that says "answer".
fn by_hand(path: &Path, question: &str) -> Value {
    let channel = Channel::connect(path, 10).unwrap();
    channel.send(&[b"\x05", question.as_bytes()].concat(), &[]).unwrap();
    let (mut answer, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
    while let Some((len, _)) = channel.receive(&mut buffer).unwrap() {
        assert_eq!(buffer[0], 6);
        answer.extend_from_slice(&buffer[1..len]);
    }
    serde_json::from_slice(&answer).unwrap()
}

#[test]
fn another_file_takes_the_place_of_one_that_runs() {
    let mut running = Running::recorded("reload", "trace = 16\n");
    let folder = running.folder.clone();
    let file = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let take = |path: &Path| Question::Reload { file: Some(path.to_owned()) };
    let mut one = Via::open(Place::Local(running.path.clone()), hello("10.9.0.1", 1, 1)).unwrap();
    let mut to_itself = |from: u32, count: u32| {
        for psn in from..from + count {
            send(&mut one, &packet("10.9.0.1", "10.9.0.1", 1, psn));
        }
        hear(&mut one, count as usize)
    };
    assert!(to_itself(0, 4).iter().all(|(_, class)| *class == 2));
    let said = by_hand(&running.path, r#"{"ask": "reload"}"#);
    assert!(said["error"].as_str().unwrap().contains("started without a file"), "{said}");
    let second = "[[program]]\nkind = 'ecn'\nevery = 2\n";
    let said = control::ask(&running.path, &take(&file("b.toml", second))).unwrap();
    assert_eq!(said["programs"], serde_json::json!([{ "kind": "ecn", "is": "new" }]));
    assert_eq!(to_itself(10, 3), [(10, 2), (11, 3), (12, 2)]);
    // Ecn has counted three of its port, and goes on behind another program.
    let trim = "[[program]]\nkind = 'trim'\nabove = 900000\n";
    let third = format!("{trim}{second}[[port]]\naddress = '10.9.0.1'\npcap = 'one.pcap'\n");
    let said = control::ask(&running.path, &take(&file("c.toml", &third))).unwrap();
    assert_eq!(said["programs"][1], serde_json::json!({ "kind": "ecn", "is": "kept" }));
    assert_eq!(
        (said["lines_new"][0].as_str(), said["ports_new"].as_array().map(Vec::len)),
        (Some("10.9.0.1"), Some(0))
    );
    assert_eq!(to_itself(20, 2), [(20, 3), (21, 2)]);
    // A bad file, or one that takes a new start, leaves all as it was.
    for (bad, why) in [
        (third.replace("above", "abov"), "abov"),
        (format!("name = 'other'\n{second}"), "name cannot change"),
        ("listen = '127.0.0.1:0'\ntoken = 'token'\n".to_owned(), "listen cannot change"),
        (format!("{second}[[port]]\naddress = '10.9.0.1'\ninterface = 'lo'\n"), "end the processes"),
        (format!("{second}[[port]]\naddress = '10.9.0.8'\ninterface = 'nowhere0'\n"), "nowhere0"),
        (third.replace("one.pcap", "no/folder/one.pcap"), "one.pcap"),
    ] {
        let said = control::ask(&running.path, &take(&file("bad.toml", &bad))).unwrap_err().to_string();
        assert!(said.contains(why), "{said}");
    }
    assert_eq!(to_itself(30, 2), [(30, 3), (31, 2)]);
    // Told something else, it goes on with the seven that it has counted.
    let said = control::ask(&running.path, &take(&file("c.toml", &third.replace("every = 2", "every = 3"))));
    assert_eq!(said.unwrap()["programs"][1], serde_json::json!({ "kind": "ecn", "is": "changed" }));
    assert_eq!(to_itself(35, 2), [(35, 2), (36, 3)]);
    let shown = running.show();
    assert_eq!(shown["programs"].as_array().unwrap().len(), 2);
    // The same once more, from the file as it is now, loses what a program that it no longer has knew.
    file("c.toml", "");
    let said = by_hand(&running.path, r#"{"ask": "reload"}"#);
    assert_eq!(said["programs"], serde_json::json!([]));
    assert!(to_itself(40, 4).iter().all(|(_, class)| *class == 2));
    running.stop();
    let lives = replayed(&folder.join("tape")).unwrap();
    assert_eq!((lives[0].reloads, lives[0].frames_out), (4, 17), "{lives:?}");
    // Another file at the same place of the recording gives something else.
    let said = with_another(&folder.join("tape"), |entry| match entry {
        Entry::Reload(_, text) if text.contains("every") => {
            *text = text.replace("every = 2", "every = 3");
            true
        }
        _ => false,
    });
    assert!(said.contains("life 1"), "{said}");
    let captured = std::fs::metadata(folder.join("one.pcap")).unwrap().len();
    assert!(captured > 1000, "frames are in the capture: {captured}");
}

#[test]
fn ports_come_and_go_in_a_switch_that_runs() {
    let running = Running::start("ports", "");
    let folder = running.folder.clone();
    let listener = UnixListener::bind(folder.join("guest")).unwrap();
    let socket = folder.join("guest").display().to_string();
    let add = |keys: &str| by_hand(&running.path, &format!(r#"{{"ask": "port-add", "port": {keys}}}"#));
    let remove = |address: &str| {
        by_hand(&running.path, &format!(r#"{{"ask": "port-remove", "address": "{address}"}}"#))
    };
    let cable = format!(r#"{{"address": "10.9.0.7", "also": ["fd00::7"], "qemu": "{socket}"}}"#);
    let said = add(&cable);
    assert_eq!(said["ports_new"], serde_json::json!(["10.9.0.7"]));
    let mut guest = Machine::accept(&listener);
    let mut one = Via::open(Place::Local(running.path.clone()), hello("10.9.0.1", 1, 1)).unwrap();
    let mac = guest.ask("10.9.0.7", "10.9.0.1");
    guest.send(mac, ETHERTYPE_IPV4, &frame(&packet("10.9.0.7", "10.9.0.1", 1, 5)));
    assert_eq!(hear(&mut one, 1), [(5, 2)]);
    for (keys, why) in [
        (cable.as_str(), "two entries for 10.9.0.7"),
        (r#"{"address": "10.9.0.1", "interface": "lo"}"#, "has the address 10.9.0.1 already"),
        (r#"{"address": "10.9.0.9", "interfaces": "lo"}"#, "interfaces"),
        (r#"{"address": "10.9.0.9", "faults": {"loss": 2}}"#, "are 0 to 1"),
        (r#"{"address": "0.0.0.0", "interface": "lo"}"#, "is not the address of a host"),
    ] {
        let said = add(keys);
        assert!(said["error"].as_str().unwrap().contains(why), "{said}");
    }
    // Faults of a port that a process has.
    assert_eq!(add(r#"{"address": "10.9.0.1", "faults": {"loss": 1}}"#)["lines_new"][0], "10.9.0.1");
    send(&mut one, &packet("10.9.0.1", "10.9.0.1", 1, 6));
    while running.show()["ports"][1]["rx_faults"]["lost"] != 1 {
        std::thread::yield_now();
    }
    assert_eq!(remove("10.9.0.1")["lines_new"][0], "10.9.0.1");
    send(&mut one, &packet("10.9.0.1", "10.9.0.1", 1, 7));
    assert_eq!(hear(&mut one, 1), [(7, 2)]);
    assert_eq!(remove("fd00::7")["ports_gone"], serde_json::json!(["10.9.0.7"]));
    assert!(remove("10.9.0.7")["error"].as_str().unwrap().contains("no [[port]] for 10.9.0.7"));
    send(&mut one, &packet("10.9.0.1", "10.9.0.7", 1, 8));
    while running.show()["counters"]["drop_no_route"] != 1 {
        std::thread::yield_now();
    }
    // The address is free for a process.
    Via::open(Place::Local(running.path.clone()), hello("10.9.0.7", 1, 1)).unwrap();
}

/// Tables and registers are read and written while a switch runs, and a recording has that.
#[test]
fn entries_of_programs_are_read_and_set() {
    let mut running = Running::recorded("entries", "[[program]]\nkind = 'ecn'\nevery = 3\n");
    let mut one = Via::open(Place::Local(running.path.clone()), hello("10.9.0.1", 1, 1)).unwrap();
    send(&mut one, &packet("10.9.0.1", "10.9.0.1", 1, 1));
    assert_eq!(hear(&mut one, 1), [(1, 2)]);
    let ask = |question: &str| by_hand(&running.path, question);
    assert_eq!(ask(r#"{"ask": "entries", "program": "ecn"}"#)["tables"][0], "seen");
    let seen = r#"{"ask": "entries", "program": "1", "table": "seen"}"#;
    assert_eq!(ask(seen)["entries"], serde_json::json!([[0, 1]]));
    let said = ask(r#"{"ask": "set-entry", "program": "ecn", "table": "seen", "key": 0, "value": 2}"#);
    assert_eq!(said, serde_json::json!({ "key": 0, "value": 2 }));
    send(&mut one, &packet("10.9.0.1", "10.9.0.1", 1, 2));
    assert_eq!(hear(&mut one, 1), [(2, 3)], "the third of its port");
    let one_entry = r#"{"ask": "entries", "program": "ecn", "table": "seen", "key": 5}"#;
    assert_eq!(ask(one_entry)["entries"], serde_json::json!([]));
    let said = ask(r#"{"ask": "set-entry", "program": "ecn", "table": "word", "key": 0}"#);
    assert_eq!(said["error"], "ecn has no table word; it has seen");
    running.stop();
    assert_eq!(replayed(&running.folder.join("tape")).unwrap()[0].controls, 2);
}

/// Between rounds of questions and frames a switch is what it was: what is no question is refused in words.
#[test]
fn what_is_no_question_is_refused_in_words() {
    let running = Running::start("words", "");
    for (asked, said) in [
        ("", "no question"),
        ("show", "no question"),
        (r#"{"ask": "sing"}"#, "unknown variant"),
        (r#"{"ask": "show", "loud": true}"#, "unknown field"),
        (r#"{"ask": "port-remove", "address": "here"}"#, "no question"),
    ] {
        let answer = by_hand(&running.path, asked);
        assert!(answer["error"].as_str().unwrap().contains(said), "{answer}");
    }
    assert_eq!(by_hand(&running.path, r#"{"ask": "show"}"#)["name"], "sw0");
    assert_eq!(
        by_hand(&running.path, r#"{"ask": "trace", "qp": null, "last": 5}"#)["events"],
        Value::Array(vec![])
    );
}
