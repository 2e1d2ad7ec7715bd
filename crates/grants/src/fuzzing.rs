//! The RPC's parsers as fuzz targets call them, from outside of TLS.

use crate::error::Refusal;
use crate::wire::{self, Answer, Ask, Issued, Known, RegionInfo, Request, Rotation, Secret};
use std::fmt::Debug;

/// A message's name, without what it carries.
fn name_of(side: &str, message: &impl Debug) -> String {
    let text = format!("{message:?}");
    let end = text.find(|c: char| !c.is_alphanumeric()).unwrap_or(text.len());
    format!("{side} {}", &text[..end])
}

fn encoded(message: &impl serde::Serialize) -> Vec<u8> {
    let mut bytes = Vec::new();
    wire::send(&mut bytes, message).expect("what was parsed, or made here, can be written");
    bytes
}

/// Reads the bytes as a request and as an answer; returns the names of what they are. What was read is
/// written and read again, as the same.
pub fn read(bytes: &[u8]) -> Vec<String> {
    let mut names = Vec::new();
    if let Ok(request) = wire::receive::<Request, _>(&mut &bytes[..], |_| ()) {
        let again = encoded(&request);
        let twice: Request = wire::receive(&mut &again[..], |_| ()).expect("what was written can be read");
        assert_eq!(format!("{twice:?}"), format!("{request:?}"));
        names.push(name_of("request", &request));
    }
    if let Ok(answer) = wire::receive::<Answer, _>(&mut &bytes[..], |_| ()) {
        let again = encoded(&answer);
        let twice: Answer = wire::receive(&mut &again[..], |_| ()).expect("what was written can be read");
        assert_eq!(format!("{twice:?}"), format!("{answer:?}"));
        names.push(name_of("answer", &answer));
    }
    names
}

/// One message of each kind, by the name that [`read`] gives it.
pub fn samples() -> Vec<(String, Vec<u8>)> {
    let address = std::net::IpAddr::from([10, 0, 0, 1]);
    let ask = Ask { region: "kv-index".into(), address, pid: 100, rights: 1, ttl_ms: 60_000 };
    let known = Known { lease: 7, epoch: 1, announced: 2 };
    let secret = || Secret::from(&[0x5a; 40][..]);
    let issued = || Issued { lease: 7, epoch: 1, in_force: true, left_ms: 1000, grant: secret() };
    let requests = [
        Request::Hello,
        Request::List,
        Request::Grant(ask),
        Request::Renew { lease: 7 },
        Request::Release { lease: 7 },
        Request::Rotate { region: "kv-index".into() },
        Request::Watch { held: vec![known], wait_ms: 1000 },
        Request::Call(secret()),
    ];
    let answers = [
        Answer::Hello { client: "app".into() },
        Answer::Regions(Vec::<RegionInfo>::new()),
        Answer::Issued(issued()),
        Answer::Released,
        Answer::Rotated(Rotation { epoch: 2, told: 1, untold: 0, waited_us: 50 }),
        Answer::Told(vec![issued()]),
        Answer::Called(secret()),
        Answer::Refused(Refusal::UnknownLease(7)),
    ];
    let requests = requests.iter().map(|message| (name_of("request", message), encoded(message)));
    let answers = answers.iter().map(|message| (name_of("answer", message), encoded(message)));
    requests.chain(answers).collect()
}
