//! The connection manager between processes: who listens, who connects, through shared memory and over UDP,
//! while the listener sleeps, while others are stopped or killed, and under loss.

mod common;

use adverb_io::Settings;
use adverb_io::cm::{Bind, Binding};
use adverb_nic::cm::{
    CmError, CmEvent, Connect, ConnectionId, Offer, PortSpace, Reason, Reply, Resolve, Resolved, Service,
    What,
};
use adverb_nic::{QpType, SendOp};
use adverb_wire::cm::Private;
use adverb_wire::{Gid, Key, Psn, QpNumber};
use common::{Endpoint, Helper, Remote, folder, local, role, say};
use std::net::IpAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

const PORT: u16 = 7174;
/// Of another listener.
const ELSEWHERE: u16 = 7180;
const PSN: u32 = 77;

/// The helper process: see the roles below. Does nothing when run as a test of its own.
#[test]
fn helper() {
    let Some(role) = role() else { return };
    match role[0].as_str() {
        "serve" => serve(&role[1], PORT),
        "serve elsewhere" => serve(&role[1], ELSEWHERE),
        "idle" => idle(&role[1]),
        other => panic!("no role {other}"),
    }
}

/// A process with its connection manager.
struct Node {
    endpoint: Endpoint,
    events: Receiver<CmEvent>,
    own: IpAddr,
}

impl Node {
    fn open(settings: &str) -> Node {
        let endpoint = Endpoint::with(Settings::parse(settings).unwrap(), QpType::Rc);
        let (tell, events) = channel();
        endpoint.host.on_cm_event(Box::new(move |event| {
            // Nobody hears when the test is over.
            let _ = tell.send(event);
        }));
        let own = endpoint.host.device().address;
        Node { endpoint, events, own }
    }

    fn bind(&self, space: PortSpace, port: u16) -> Result<Binding, CmError> {
        let bind = Bind { space, port, address: self.own, reuse: false, af_only: false };
        self.endpoint.host.cm_bind(&bind)
    }

    /// What this process's queue pair has to offer. Its private data is where its memory is.
    fn offer(&self) -> (Offer, Vec<u8>) {
        let remote = self.endpoint.remote();
        let psn = Psn::new(PSN);
        let offer = Offer { qpn: remote.qpn, psn, responder_resources: 16, ..Offer::default() };
        let mut private = remote.rkey.to_be_bytes().to_vec();
        private.extend(remote.addr.to_be_bytes());
        (Offer { initiator_depth: 16, rnr_retry: 7, ..offer }, private)
    }

    fn connect(&self, to: &str, port: u16, cookie: u64) -> ConnectionId {
        self.connect_pair(to, port, cookie, self.offer())
    }

    fn connect_pair(
        &self,
        to: &str,
        port: u16,
        cookie: u64,
        (offer, private): (Offer, Vec<u8>),
    ) -> ConnectionId {
        let binding = self.bind(PortSpace::Tcp, 0).unwrap();
        let connect = Connect {
            service: Service { space: PortSpace::Tcp, port },
            dst: Gid::from(to.parse::<IpAddr>().unwrap()),
            src: Gid::from(self.own),
            src_port: binding.service.port,
            offer,
            retry_count: 7,
            mtu: 5,
            ack_timeout: 19,
            traffic_class: 0,
            private: &private,
            cookie,
        };
        self.endpoint.host.cm_connect(&connect).unwrap()
    }

    /// The next event; only sleeps meanwhile.
    fn next(&self) -> CmEvent {
        match self.events.recv_timeout(Duration::from_secs(60)) {
            Ok(event) => event,
            Err(error) => {
                panic!("{error}\n{}", self.endpoint.host.counters_text())
            }
        }
    }

    /// A write of 4096 bytes to the peer, over the connection.
    fn write(&self, remote: &Remote, seed: u64) {
        self.endpoint.fill(0, 4096, seed);
        self.endpoint.run(SendOp::Write(remote.addr, Key(remote.rkey)), 0, 4096);
    }
}

/// What private data says of the peer's memory.
fn remote(gid: Gid, offer: &Offer, private: &[u8]) -> Remote {
    let rkey = u32::from_be_bytes(private[..4].try_into().unwrap());
    let addr = u64::from_be_bytes(private[4..12].try_into().unwrap());
    Remote { gid, qpn: offer.qpn, rkey, addr }
}

/// Listens, then only sleeps until something comes, and takes one connection after another.
fn serve(settings: &str, port: u16) {
    let node = Node::open(settings);
    let host = node.endpoint.host.clone();
    let binding = node.bind(PortSpace::Tcp, port).unwrap();
    let listener = host.cm_listen(&binding, 0, 5).unwrap();
    let datagrams = node.bind(PortSpace::Udp, port).unwrap();
    host.cm_listen(&datagrams, 0, 6).unwrap();
    std::thread::spawn(move || {
        while common::listen().is_some() {}
        let counters = host.counters_text().replace('\n', ";");
        host.close();
        say(&counters);
        std::process::exit(0);
    });
    say("listening");
    let host = &node.endpoint.host;
    let mut connections = 0;
    loop {
        let Ok(CmEvent { id, cookie, what }) = node.events.recv() else { return };
        match what {
            What::Request(of, request) => {
                assert_eq!((of, cookie), (listener, 5));
                host.cm_taken(id).unwrap();
                let peer = remote(request.from, &request.offer, &request.private.0);
                if connections > 0 {
                    node.endpoint.connect_anew(&peer);
                } else {
                    node.endpoint.connect(&peer);
                }
                connections += 1;
                let (offer, private) = node.offer();
                host.cm_accept(id, &offer, &private).unwrap();
            }
            What::Established => say("established"),
            What::Disconnected => {
                host.cm_destroy(id).unwrap();
                say("disconnected");
            }
            What::DatagramRequest(_, request) => {
                assert_eq!((&request.private.0[..4], cookie), (&b"who?"[..], 6));
                let answer = Resolved { qpn: QpNumber::new(9), qkey: 0x0123_4567, private: b"me" };
                host.cm_answer(id, &answer).unwrap();
            }
            What::Rejected(reason, _) => say(&format!("rejected {}", reason.0)),
            other => panic!("{other:?}"),
        }
    }
}

/// Has the address too, and does nothing.
fn idle(settings: &str) {
    let endpoint = Endpoint::open(settings);
    say("here");
    common::listen();
    say(&endpoint.host.counters_text().replace('\n', ";"));
}

fn at(address: &str, folder: &std::path::Path, more: &str) -> String {
    format!("address={address},directory={}{more}", folder.display())
}

fn start(name: &str, settings: &str) -> Helper {
    let mut helper = Helper::start(&[name, settings]);
    helper.hear();
    helper
}

/// Connects, writes, disconnects: everything that is told, in its order.
fn a_connection(node: &Node, server: &mut Helper, (to, port): (&str, u16), anew: bool) {
    let host = &node.endpoint.host;
    let (id, reply) = loop {
        let id = node.connect(to, port, 11);
        match node.next() {
            CmEvent { cookie: 11, what: What::Reply(reply), .. } => break (id, reply),
            // The peer's time to wait for late packets of the connection before may end a little later.
            CmEvent { what: What::Rejected(Reason::STALE, _), .. } if anew => host.cm_destroy(id).unwrap(),
            other => panic!("{other:?}"),
        }
    };
    replied(node, server, to, (id, &reply), anew);
}

/// The rest of it, from the reply on.
fn replied(node: &Node, server: &mut Helper, to: &str, (id, reply): (ConnectionId, &Reply), anew: bool) {
    let host = &node.endpoint.host;
    let peer = remote(Gid::from(to.parse::<IpAddr>().unwrap()), &reply.offer, &reply.private.0);
    match anew {
        true => node.endpoint.connect_anew(&peer),
        false => node.endpoint.connect(&peer),
    }
    host.cm_establish(id).unwrap();
    assert_eq!(server.hear(), "established");
    node.write(&peer, 3);
    host.cm_disconnect(id).unwrap();
    assert_eq!(node.next().what, What::Disconnected);
    assert_eq!(server.hear(), "disconnected");
    assert_eq!(node.next().what, What::TimewaitExit);
    host.cm_destroy(id).unwrap();
    assert_eq!(host.cm_destroy(id), Err(CmError::NoSuchObject));
}

#[test]
fn processes_connect_through_shared_memory_and_over_udp() {
    let folder = folder("cm");
    let (one, two) = (local(80, 1), local(80, 2));
    for (from, to, more) in [(&one, &one, ""), (&one, &one, ",path=udp"), (&one, &two, "")] {
        let mut server = start("serve", &at(to, &folder, more));
        let node = Node::open(&at(from, &folder, more));
        a_connection(&node, &mut server, (to, PORT), false);
        a_connection(&node, &mut server, (to, PORT), true);
        // Nobody listens there.
        let (mut offer, private) = node.offer();
        // Not the queue pair of a connection that the peer may still remember.
        offer.qpn = QpNumber::new(offer.qpn.get() ^ 1);
        let id = node.connect_pair(to, PORT + 1, 12, (offer, private));
        let refused =
            CmEvent { id, cookie: 12, what: What::Rejected(Reason::INVALID_SERVICE, Private::default()) };
        assert_eq!(node.next(), refused);
        let resolve = Resolve {
            service: Service { space: PortSpace::Udp, port: PORT },
            dst: Gid::from(to.parse::<IpAddr>().unwrap()),
            src: Gid::from(node.own),
            src_port: 1,
            private: b"who?",
            cookie: 13,
        };
        node.endpoint.host.cm_resolve(&resolve).unwrap();
        let told = node.next().what;
        let What::Resolved(qpn, qkey, private) = told else { panic!("{told:?}") };
        assert_eq!((qpn.get(), qkey, &private.0[..3]), (9, 0x0123_4567, &b"me\0"[..]));
        if from == to {
            assert_eq!(node.bind(PortSpace::Tcp, PORT).err(), Some(CmError::InUse), "one port space");
        }
        let said = server.last_words();
        assert!(said.contains("cm_established 2;") && said.contains("cm_repeats 0;"), "{said}");
        node.endpoint.host.close();
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// Of three processes of an address, one listens, one is stopped: every connection comes up without a repeat.
#[test]
fn a_stopped_process_costs_no_other_one_a_connection() {
    let folder = folder("cm-stop");
    let (one, two) = (local(81, 1), local(81, 2));
    let idlers = [start("idle", &at(&two, &folder, "")), start("idle", &at(&two, &folder, ""))];
    let mut server = start("serve", &at(&two, &folder, ""));
    let node = Node::open(&at(&one, &folder, ""));
    for (turn, idler) in idlers.iter().enumerate() {
        idler.stop();
        a_connection(&node, &mut server, (&two, PORT), turn > 0);
        idler.signal(libc::SIGCONT);
    }
    assert_eq!(node.endpoint.counter("cm_repeats"), 0);
    server.end();
    idlers.into_iter().for_each(Helper::end);
    std::fs::remove_dir_all(folder).unwrap();
}

/// A listener that is stopped is waited for: its clients ask it again and hear nothing, until it goes on and
/// takes each of them once. Others of its address take connections meanwhile. (For how long it is waited for:
/// `nobody_listens_or_answers` of the manager's tests, in virtual time.)
#[test]
fn a_stopped_listener_takes_its_requests_when_it_goes_on() {
    let folder = folder("cm-paused");
    let [one, two, three, four] = [1, 2, 3, 4].map(|host| local(84, host));
    // Through its ring; through its socket; from another address.
    let routes = [(&one, &one, ""), (&two, &two, ",path=udp"), (&three, &four, "")];
    let mut all = routes.map(|(from, to, more)| {
        let server = start("serve", &at(to, &folder, more));
        let other = start("serve elsewhere", &at(to, &folder, more));
        (Node::open(&at(from, &folder, more)), server, other)
    });
    all.iter().for_each(|(_, server, _)| server.stop());
    let ids: Vec<_> =
        all.iter().zip(routes).map(|((node, ..), (_, to, _))| node.connect(to, PORT, 1)).collect();
    for ((node, _, other), (_, to, _)) in all.iter_mut().zip(routes) {
        a_connection(node, other, (to, ELSEWHERE), false);
    }
    for (node, ..) in &all {
        while node.endpoint.counter("cm_repeats") == 0 {
            let heard = node.events.recv_timeout(Duration::from_millis(100));
            assert_eq!(heard, Err(RecvTimeoutError::Timeout), "of a listener that is stopped");
        }
    }
    all.iter().for_each(|(_, server, _)| server.signal(libc::SIGCONT));
    for (((node, mut server, other), (_, to, _)), id) in all.into_iter().zip(routes).zip(ids) {
        let told = node.next();
        let CmEvent { cookie: 1, what: What::Reply(reply), .. } = told else { panic!("{told:?}") };
        replied(&node, &mut server, to, (id, &reply), true);
        let said = server.last_words();
        assert!(said.contains("cm_requests 1;") && said.contains("cm_established 1;"), "{said}");
        assert!(!said.contains("cm_duplicates 0;"), "the repeat came too: {said}");
        other.end();
        node.endpoint.host.close();
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// Who is killed answers no more; the others of its address do, and its port is free.
#[test]
fn the_dead_are_answered_for() {
    let folder = folder("cm-dead");
    let one = local(82, 1);
    let mut server = start("serve", &at(&one, &folder, ""));
    let node = Node::open(&at(&one, &folder, ""));
    let host = node.endpoint.host.clone();
    let id = node.connect(&one, PORT, 1);
    let told = node.next();
    let CmEvent { what: What::Reply(_), .. } = told else { panic!("{told:?}") };
    host.cm_establish(id).unwrap();
    assert_eq!(server.hear(), "established");
    server.kill();
    host.cm_disconnect(id).unwrap();
    assert_eq!(node.next().what, What::Disconnected);
    node.connect(&one, PORT, 2);
    let mut told = node.next();
    // On a busy host the first one's rest may be over by then.
    if told.what == What::TimewaitExit {
        told = node.next();
    }
    let CmEvent { cookie: 2, what: What::Rejected(reason, _), .. } = told else { panic!("{told:?}") };
    assert_eq!(reason, Reason::INVALID_SERVICE);
    let binding = node.bind(PortSpace::Tcp, PORT).unwrap();
    let listener = host.cm_listen(&binding, 0, 0).unwrap();
    host.cm_unlisten(&binding, listener).unwrap();
    host.cm_unbind(binding).unwrap();
    host.close();
    assert_eq!(node.bind(PortSpace::Tcp, 0).err(), Some(CmError::Closed));
    assert_eq!(host.cm_destroy(id), Err(CmError::Closed));
    std::fs::remove_dir_all(folder).unwrap();
}

/// A process that ends tells its peers.
#[test]
fn who_ends_disconnects() {
    let folder = folder("cm-end");
    let (one, two) = (local(83, 1), local(83, 2));
    let mut server = start("serve", &at(&two, &folder, ""));
    let node = Node::open(&at(&one, &folder, ""));
    let id = node.connect(&two, PORT, 1);
    let told = node.next();
    let CmEvent { what: What::Reply(_), .. } = told else { panic!("{told:?}") };
    node.endpoint.host.cm_establish(id).unwrap();
    assert_eq!(server.hear(), "established");
    server.end();
    assert_eq!(node.next().what, What::Disconnected);
    std::fs::remove_dir_all(folder).unwrap();
}
