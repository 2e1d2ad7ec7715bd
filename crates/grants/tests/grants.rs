//! Owners and clients on real sockets: who gets keys, who does not, and what happens when keys change.
#![allow(clippy::disallowed_methods, reason = "leases end by the clock")]

mod trial;

use adverb_grants::{
    AfterRefusal, Error, Held, Holder, Identity, MAX_CONNECTIONS_OF_CLIENT, MAX_NAME, Owner, Policy, Refusal,
    Server, Session, TELL_TIME, write_trial_certificates,
};
use adverb_rma::{Grant, Memory, Outcome, RegionKey, Rights, Rma, Settings, TransferError};
use std::net::IpAddr;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use trial::{Folder, identity};

const POLICY: &str = "
    [[client]]
    name = 'alice'
    regions = ['log', 'kv-*']
    rights = ['read', 'write']
    max_ttl_s = 600
    call = true
    [[client]]
    name = 'bob'
    regions = ['log']
    rights = ['read']
    [[client]]
    name = 'control'
    regions = ['*']
    rights = ['rekey', 'read']
";
const TTL: Duration = Duration::from_secs(60);

struct House {
    folder: Folder,
    number: u8,
    owner_nic: Arc<Rma>,
    memory: Memory,
    owner: Arc<Owner>,
    server: Server,
}

impl House {
    /// An owner with the regions `log` and `kv-data`, and certificates for its clients.
    fn new(number: u8) -> House {
        let folder = Folder::new(&format!("grants-{number}"));
        let address = IpAddr::from([127, 62, number, 1]);
        let holder = |name: &str| Holder { name: name.to_owned(), addresses: vec![address] };
        let holders: Vec<Holder> = ["owner", "alice", "bob", "control", "mallory"].map(holder).into();
        write_trial_certificates(&folder.0.join("certs"), &holders).unwrap();
        write_trial_certificates(&folder.0.join("other"), &[holder("alice"), holder("owner")]).unwrap();
        let owner_nic = Arc::new(nic(&folder.0, address));
        let memory = owner_nic.allocate(8192).unwrap();
        memory.write(0, b"in the log");
        memory.write(4096, b"a value");
        let both = Rights::READ | Rights::WRITE;
        let policy = Policy::parse(POLICY).unwrap();
        let echo = |client: &str, bytes: &[u8]| match bytes {
            b"no" => Err("not today".to_owned()),
            _ => Ok([client.as_bytes(), b": ", bytes].concat()),
        };
        let owner = Owner::new(address, policy, Some(Box::new(echo)));
        owner.add("log", memory.register(0..4096, Rights::READ).unwrap()).unwrap();
        owner.add("kv-data", memory.register(4096..8192, both).unwrap()).unwrap();
        let identity = identity(&folder.0.join("certs"), "owner");
        let server = Server::start((address, 0).into(), &identity, owner.clone()).unwrap();
        House { folder, number, owner_nic, memory, owner, server }
    }

    fn session(&self, client: &str) -> Session {
        self.try_session("certs", client, None).unwrap()
    }

    fn try_session(&self, authority: &str, client: &str, name: Option<&str>) -> Result<Session, Error> {
        let to = self.server.address().to_string();
        Session::connect(&to, name, &identity(&self.folder.0.join(authority), client))
    }

    fn nic(&self, host: u8) -> Rma {
        nic(&self.folder.0, IpAddr::from([127, 62, self.number, host]))
    }
}

/// With times that a busy host does not exceed: what fails here fails by its key.
fn nic(folder: &std::path::Path, address: IpAddr) -> Rma {
    let mut settings = Settings { state: Some(folder.to_owned()), ..Settings::new(address) };
    settings.nic.dispatch_timeout = adverb_wire::Duration::from_ms(2000);
    settings.nic.timeout = adverb_wire::Duration::from_ms(4000);
    Rma::open(settings).unwrap()
}

fn me(nic: &Rma) -> (IpAddr, u32) {
    (nic.address(), nic.pid())
}

fn read(nic: &Rma, grant: &Grant, into: &Memory, len: usize) -> Result<Vec<u8>, Outcome> {
    match nic.block_on(nic.read(grant, 0, into, 0..len)) {
        Ok(_) => Ok(into.to_vec(0..len)),
        Err(TransferError::Ended(report)) => match report.end {
            adverb_rma::End::Outcome(outcome) => Err(outcome),
            other => panic!("{other:?}"),
        },
        Err(error) => panic!("{error}"),
    }
}

/// Goes on with the next key, after a refusal. Whether that was told ahead: a client that a busy host gives
/// no processor for as long as the owner waits for it asks for it now.
fn to_another(held: &Held, number: u64) -> bool {
    match held.refused(number) {
        AfterRefusal::Another => true,
        AfterRefusal::Asked => {
            held.wait(number, Duration::from_secs(60)).unwrap();
            false
        }
    }
}

fn refusal<T: std::fmt::Debug>(result: Result<T, Error>) -> Refusal {
    result.unwrap_err().refusal().expect("the owner's words").clone()
}

#[test]
fn who_may_gets_keys_and_uses_them_and_who_may_not_is_told_why() {
    let house = House::new(1);
    let nic = house.nic(2);
    let near = nic.allocate(4096).unwrap();
    let alice = house.session("alice");
    assert_eq!(alice.client(), "alice");
    let seen: Vec<_> = alice.list().unwrap().into_iter().map(|r| (r.name, r.len, r.epoch)).collect();
    assert_eq!(seen, [("log".to_owned(), 4096, 0), ("kv-data".to_owned(), 4096, 0)]);

    let log = alice.grant("log", me(&nic), Rights::READ, TTL).unwrap();
    assert!(log.left <= TTL && log.left > TTL / 2);
    assert_eq!(log.grant.target(), house.owner_nic.address());
    assert_eq!(read(&nic, &log.grant, &near, 10).unwrap(), b"in the log");
    let both = alice.grant("kv-data", me(&nic), Rights::READ | Rights::WRITE, TTL).unwrap();
    near.write(0, b"another");
    nic.block_on(nic.write(&both.grant, 0, &near, 0..7)).unwrap();
    assert_eq!(house.memory.to_vec(4096..4103), b"another");

    // Somebody else's process number: a key, but none for this process.
    let other = alice.grant("log", (nic.address(), nic.pid() + 1), Rights::READ, TTL).unwrap();
    assert_eq!(read(&nic, &other.grant, &near, 10), Err(Outcome::RemoteAuthenticationFailure));

    let bob = house.session("bob");
    assert_eq!(bob.list().unwrap().len(), 1);
    let no = refusal(bob.grant("log", me(&nic), Rights::READ | Rights::WRITE, TTL));
    assert_eq!(no.to_string(), "client `bob` may not write `log`; the owner's policy file decides");
    // What is there, but not for bob, does not exist for him; just as what nobody has.
    for name in ["kv-data", "nothing"] {
        let no = refusal(bob.grant(name, me(&nic), Rights::READ, TTL));
        assert_eq!(no, Refusal::UnknownRegion(name.to_owned()));
        assert!(no.to_string().contains("`adverb region list` shows"));
    }
    assert!(matches!(refusal(bob.rotate("log")), Refusal::Denied { .. }));
    assert!(matches!(refusal(bob.call(b"hello")), Refusal::Denied { .. }));
    assert!(house.session("mallory").list().unwrap().is_empty());
    // Even alice may not write what nobody may.
    assert!(matches!(refusal(alice.grant("log", me(&nic), Rights::WRITE, TTL)), Refusal::Denied { .. }));
    assert!(matches!(refusal(alice.grant("log", me(&nic), Rights::empty(), TTL)), Refusal::Invalid(_)));
    let long = refusal(alice.grant("log", me(&nic), Rights::READ, Duration::from_secs(601)));
    assert!(
        long.to_string().contains("a lease of 601 s") && long.to_string().contains("at most 600 s"),
        "{long}"
    );
    // A lease is its client's alone.
    assert_eq!(refusal(bob.renew(log.lease)), Refusal::UnknownLease(log.lease));
    assert_eq!(refusal(bob.release(log.lease)), Refusal::UnknownLease(log.lease));

    assert_eq!(alice.call(b"hello").unwrap(), b"alice: hello");
    assert_eq!(refusal(alice.call(b"no")), Refusal::Application("not today".to_owned()));
    assert!(matches!(alice.call(&vec![0; 5 << 20]), Err(Error::TooLong(_))));
    assert_eq!(alice.call(b"still here").unwrap(), b"alice: still here");
}

#[test]
fn wrong_certificates_and_strangers_are_refused_clearly() {
    let house = House::new(2);
    let text = |authority, client, name| house.try_session(authority, client, name).unwrap_err().to_string();
    // The client trusts another CA than the owner's: it does not talk to that owner.
    let wrong = text("other", "alice", None);
    assert!(wrong.contains("the other side's certificate was not signed by the CA given"), "{wrong}");
    let wrong = text("certs", "alice", Some("somebody"));
    assert!(wrong.contains("certificate is for another name"), "{wrong}");

    // It trusts the owner, but shows a certificate of another CA's.
    let file = |authority: &str, name: &str| house.folder.0.join(authority).join(name);
    let (chain, key) = (file("other", "alice.pem"), file("other", "alice.key"));
    let foreign = Identity::load(&file("certs", "ca.pem"), &chain, &key).unwrap();
    let to = house.server.address().to_string();
    let wrong = Session::connect(&to, None, &foreign).unwrap_err().to_string();
    assert!(
        wrong.contains("refused this side's certificate") && wrong.contains("its CA has signed"),
        "{wrong}"
    );

    // Not TLS at all: no answer, and the owner goes on.
    use std::io::{Read, Write};
    let mut plain = std::net::TcpStream::connect(house.server.address()).unwrap();
    plain.write_all(&[0x5a; 200]).unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(answer.len() < 16, "an alert at most");
    assert!(house.session("alice").list().is_ok());

    let missing =
        Identity::load(&file("certs", "none.pem"), &chain, &key).map(|_| ()).unwrap_err().to_string();
    assert!(missing.contains("none.pem: no CA certificate there"), "{missing}");
    let swapped =
        Identity::load(&file("certs", "alice.key"), &chain, &key).map(|_| ()).unwrap_err().to_string();
    assert!(swapped.contains("no PEM certificate"), "{swapped}");
    let refused = Session::connect("127.62.2.9:1", None, &foreign).unwrap_err().to_string();
    assert!(refused.contains("127.62.2.9:1 cannot be reached") && refused.contains("is the owner running?"));

    let region = || house.memory.register(0..64, Rights::READ).unwrap();
    assert!(house.owner.add("log", region()).unwrap_err().to_string().contains("it is taken"));
    assert!(house.owner.add(&"n".repeat(MAX_NAME + 1), region()).is_err());
}

#[test]
fn an_expired_grant_is_refused_with_the_reason_and_its_key_is_soon_worthless() {
    const LEASE: Duration = Duration::from_millis(300);
    let house = House::new(3);
    let nic = house.nic(2);
    let near = nic.allocate(64).unwrap();
    let (alice, bob) = (house.session("alice"), house.session("bob"));
    let kept = bob.hold("log", me(&nic), Rights::READ, Duration::from_secs(2)).unwrap();
    // On a busy host a lease may run out before it is renewed, or used: then another.
    let mut late = 0;
    let (start, short, renewed) = loop {
        assert!(late < 100, "no lease was good");
        let asked = Instant::now();
        let short = alice.grant("log", me(&nic), Rights::READ, LEASE).unwrap();
        let start = Instant::now();
        if let Ok(renewed) = alice.renew(short.lease)
            && let Ok(bytes) = read(&nic, &renewed.grant, &near, 10)
        {
            assert_eq!(bytes, b"in the log");
            break (start, short, renewed);
        }
        assert!(asked.elapsed() >= LEASE, "it was refused before its time");
        late += 1;
    };

    // Until its region has another key; that others have in time.
    let mut others = 0;
    loop {
        let (grant, number) = kept.key().unwrap();
        match read(&nic, &grant, &near, 10) {
            Ok(bytes) => assert_eq!(bytes, b"in the log"),
            Err(outcome) => {
                assert_eq!(outcome, Outcome::RemoteAuthenticationFailure);
                to_another(&kept, number);
                others += 1;
            }
        }
        match read(&nic, &renewed.grant, &near, 10) {
            Ok(_) => assert!(start.elapsed() < Duration::from_secs(60), "its key goes on and on"),
            Err(outcome) => break assert_eq!(outcome, Outcome::RemoteAuthenticationFailure),
        }
    }
    assert!(start.elapsed() >= LEASE);
    assert!(others <= 1 + late, "{others}");
    let late = refusal(alice.renew(short.lease));
    assert!(matches!(late, Refusal::Expired { lease, .. } if lease == short.lease), "{late}");
    assert!(late.to_string().contains("ask for a new one"));
    assert!(matches!(refusal(alice.release(short.lease)), Refusal::Expired { .. }));
    // A lease that is kept outlives its time.
    while start.elapsed() < Duration::from_secs(4) {
        let (grant, number) = kept.key().unwrap();
        if read(&nic, &grant, &near, 10).is_err() {
            to_another(&kept, number);
        }
    }
    // And ends with its session.
    drop(bob);
    loop {
        match kept.key() {
            Ok(_) => assert!(start.elapsed() < Duration::from_secs(60)),
            Err(error) => break assert!(matches!(error.refusal(), Some(Refusal::Expired { .. })), "{error}"),
        }
    }
}

#[test]
fn rotation_told_ahead_fails_what_was_under_way_and_nothing_else() {
    let house = House::new(4);
    let nic = house.nic(2);
    let (near, aside) = (nic.allocate(64).unwrap(), nic.allocate(64).unwrap());
    let (alice, control) = (house.session("alice"), house.session("control"));
    let log = alice.hold("log", me(&nic), Rights::READ, TTL).unwrap();
    let data = alice.hold("kv-data", me(&nic), Rights::READ, TTL).unwrap();
    let (go, gone) = (mpsc::channel(), mpsc::channel());
    std::thread::scope(|scope| {
        let (turns, rotated) = (go.1, gone.0);
        scope.spawn(move || {
            for turn in turns {
                let rotation = control.rotate("log").unwrap();
                let is_told = (rotation.told, rotation.untold) == (1, 0);
                let has_waited = Duration::from_micros(rotation.waited_us) >= TELL_TIME;
                assert!(rotation.epoch == turn && (is_told || has_waited), "{rotation:?}");
                rotated.send(is_told).unwrap();
            }
        });
        let (go, rotated) = (go.0, gone.1);
        let (mut refusals, mut switched) = (0u64, None);
        let (mut asked, mut untold) = (0, 0);
        // The paper's figure 14: for how long a client that reads all the time gets nothing.
        let (mut last_good, mut usual, mut gaps) = (Instant::now(), Vec::new(), Vec::new());
        let mut refused_last = false;
        for turn in 1..=20u64 {
            // Reads before, during and after.
            let (mut before, mut after) = (0, 0);
            while after < 20 {
                let (grant, number) = log.key().unwrap();
                match read(&nic, &grant, &near, 10) {
                    Ok(bytes) => {
                        assert_eq!(bytes, b"in the log");
                        let now = Instant::now();
                        (if refused_last { &mut gaps } else { &mut usual }).push(now - last_good);
                        (last_good, refused_last) = (now, false);
                    }
                    Err(outcome) => {
                        assert_eq!(outcome, Outcome::RemoteAuthenticationFailure);
                        refused_last = true;
                        assert_ne!(switched, Some(number), "the same key was refused twice");
                        asked += u64::from(!to_another(&log, number));
                        switched = Some(number);
                        refusals += 1;
                    }
                }
                // Another region does not notice.
                let (grant, _) = data.key().unwrap();
                assert_eq!(read(&nic, &grant, &aside, 7).unwrap(), b"a value");
                before += 1;
                if before == 20 {
                    go.send(turn).unwrap();
                }
                if after > 0 {
                    after += 1;
                } else if let Ok(is_told) = rotated.try_recv() {
                    (after, untold) = (1, untold + u64::from(!is_told));
                }
            }
        }
        assert!(asked <= untold, "{asked} keys were asked for, and all but {untold} told ahead");
        // One read is under way at a time, so one at most meets each rotation.
        assert!(refusals <= 20, "{refusals}");
        let median = |times: &mut Vec<Duration>| {
            times.sort_unstable();
            times.get(times.len() / 2).copied()
        };
        let (usual, gaps) = (median(&mut usual), median(&mut gaps));
        println!(
            "20 rotations, {refusals} reads refused; from one read to the next {usual:?}, past \
             a refused one {gaps:?} (medians)"
        );
    });
    assert!(house.session("bob").list().unwrap()[0].epoch >= 20);
}

#[test]
fn a_key_that_changes_unannounced_is_asked_for_after_one_refusal() {
    let house = House::new(5);
    let nic = house.nic(2);
    let near = nic.allocate(64).unwrap();
    let alice = house.session("alice");
    let log = alice.hold("log", me(&nic), Rights::READ, TTL).unwrap();
    // By a third party with the right, past the owner. Regions of this house give nobody that right, so it is
    // made anew.
    let region = house.memory.register(0..64, Rights::READ | Rights::REKEY).unwrap();
    house.owner.add("shared", region).unwrap();
    let control = house.session("control");
    let held = control.hold("shared", me(&nic), Rights::READ, TTL).unwrap();
    let rekey = control.grant("shared", me(&nic), Rights::REKEY, TTL).unwrap();
    nic.block_on(nic.rekey(&rekey.grant, &RegionKey::new([7; 16]))).unwrap();
    let (grant, number) = held.key().unwrap();
    assert_eq!(read(&nic, &grant, &near, 10), Err(Outcome::RemoteAuthenticationFailure));
    assert_eq!(held.refused(number), AfterRefusal::Asked);
    held.wait(number, Duration::from_secs(60)).unwrap();
    let (grant, later) = held.key().unwrap();
    assert_ne!(number, later);
    assert_eq!(read(&nic, &grant, &near, 10).unwrap(), b"in the log");
    // No other region noticed.
    assert_eq!(read(&nic, &log.key().unwrap().0, &near, 10).unwrap(), b"in the log");
}

#[test]
fn an_owner_that_is_gone_is_noticed_and_nothing_shows_a_key() {
    let house = House::new(6);
    let nic = house.nic(2);
    let alice = house.session("alice");
    let held = alice.hold("log", me(&nic), Rights::READ, TTL).unwrap();
    let leased = alice.grant("log", me(&nic), Rights::READ, TTL).unwrap();
    let shown = format!("{held:?} {leased:?} {alice:?}");
    assert!(shown.contains("keys hidden"), "{shown}");
    let key = leased.grant.key(adverb_rma::Op::Read).unwrap().expose();
    assert!(
        !shown.contains(&format!("{key:?}")) && !shown.contains(&format!("{:02x}{:02x}", key[0], key[1]))
    );
    assert_eq!(alice.lost_within(Duration::ZERO), None);
    let House { folder, server, .. } = &house;
    assert!(folder.0.exists() && server.address().port() != 0);
    drop(house);
    assert!(alice.lost_within(Duration::from_secs(60)).is_some());
    assert!(matches!(alice.list(), Err(Error::Lost(_))));
}

#[test]
fn who_says_nothing_locks_nobody_out() {
    use std::io::Write;
    let house = House::new(7);
    let alice = house.session("alice");
    // More than there are places. Each has begun a handshake, and keeps silent.
    let silent: Vec<std::net::TcpStream> = (0..600)
        .map(|_| {
            let mut tcp = std::net::TcpStream::connect(house.server.address()).unwrap();
            // It may have lost its place already.
            let _ = tcp.write_all(&[22]);
            tcp
        })
        .collect();
    assert_eq!(house.session("bob").list().unwrap().len(), 1);
    assert_eq!(alice.list().unwrap().len(), 2, "who was there stays");
    drop(silent);
}

#[test]
fn one_client_leaves_room_for_the_others() {
    let house = House::new(8);
    let mut sessions: Vec<Session> = (0..MAX_CONNECTIONS_OF_CLIENT).map(|_| house.session("bob")).collect();
    let full = refusal(house.try_session("certs", "bob", None));
    let what = "connections of this client".to_owned();
    assert_eq!(full, Refusal::Full { what, limit: MAX_CONNECTIONS_OF_CLIENT as u64 });
    assert_eq!(house.session("alice").list().unwrap().len(), 2);
    // When one has left there is a place, as soon as the owner has heard of it.
    drop(sessions.pop());
    let start = Instant::now();
    while let Err(error) = house.try_session("certs", "bob", None) {
        assert!(start.elapsed() < Duration::from_secs(60), "{error}");
    }
}
