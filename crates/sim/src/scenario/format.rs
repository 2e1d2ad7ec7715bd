//! The file format: tables and keys as they are written.

use core::fmt;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;

/// A scenario's file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Seed of everything random; 1 if absent.
    pub seed: Option<u64>,
    /// Packets carry bytes.
    #[serde(default)]
    pub payload: bool,
    /// Virtual time to stop at, such as `"10ms"`; absent for when all flows have ended.
    pub end: Option<String>,
    /// How often queue depths are sampled, such as `"10us"`.
    pub sample: Option<String>,
    /// Hosts, switches, cables.
    pub topology: TopologyTable,
    /// What switches do.
    #[serde(default)]
    pub switch: SwitchTable,
    /// How queue pairs are set up.
    #[serde(default)]
    pub transport: TransportTable,
    /// What NICs cost.
    #[serde(default)]
    pub hardware: HardwareTable,
    /// What goes wrong.
    #[serde(default)]
    pub faults: FaultTable,
    /// Programs, beside flows or instead of them.
    pub programs: Option<super::programs::ProgramsTable>,
    /// Who sends what; several may go on at once.
    #[serde(default, rename = "workload", deserialize_with = "one_or_many")]
    pub workloads: Vec<WorkloadTable>,
}

/// One `[workload]` or several `[[workload]]`.
fn one_or_many<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<WorkloadTable>, D::Error> {
    struct OneOrMany;
    impl<'de> Visitor<'de> for OneOrMany {
        type Value = Vec<WorkloadTable>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a table [workload], or several [[workload]]")
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
            Ok(vec![WorkloadTable::deserialize(MapAccessDeserializer::new(map))?])
        }

        fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Self::Value, A::Error> {
            Vec::deserialize(SeqAccessDeserializer::new(seq))
        }
    }
    from.deserialize_any(OneOrMany)
}

/// `[topology]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct TopologyTable {
    /// `two-hosts`, `star`, `dumbbell`, `leaf-spine`, `fat-tree`, `cables`.
    pub kind: String,
    /// Rate of cables, such as `"100G"`.
    pub rate: Option<String>,
    /// Delay of cables, such as `"1us"`.
    pub delay: Option<String>,
    /// Rate of cables between switches, if it is another.
    pub trunk_rate: Option<String>,
    /// Delay of cables between switches, if it is another.
    pub trunk_delay: Option<String>,
    /// `star`, `cables`: hosts. `leaf-spine`: hosts of each leaf.
    pub hosts: Option<u32>,
    /// `cables`: switches.
    pub switches: Option<u32>,
    /// `dumbbell`: hosts at either side.
    pub left: Option<u32>,
    /// See `left`.
    pub right: Option<u32>,
    /// `leaf-spine`.
    pub leaves: Option<u32>,
    /// `leaf-spine`.
    pub spines: Option<u32>,
    /// `fat-tree`: ports of a switch.
    pub k: Option<u32>,
    /// `cables`: each with its ends.
    pub cables: Option<Vec<CableEntry>>,
}

/// A cable: ends are `"host 3"` or `"switch 0"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CableEntry {
    /// One end.
    pub from: String,
    /// The other.
    pub to: String,
    /// Its rate, if it is not the topology's.
    pub rate: Option<String>,
    /// Its delay, if it is not the topology's.
    pub delay: Option<String>,
}

/// `[switch]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchTable {
    /// `shared-buffer` (the default) or `input-queued`.
    pub discipline: Option<String>,
    /// Bytes: of the switch, or of each input port.
    pub buffer: Option<String>,
    /// `shared-buffer`: a queue may take this times what is free.
    pub alpha: Option<f64>,
    /// Traffic classes, 1 to 8.
    pub classes: Option<u8>,
    /// `ecmp` (the default) or `spray`.
    pub balance: Option<String>,
    /// Time through the switch.
    pub latency: Option<String>,
    /// Priority flow control.
    pub pfc: Option<PfcTable>,
    /// Marking.
    pub ecn: Option<RedTable>,
    /// The file of the programs that a switch runs, as `adverb switch run` reads it.
    pub program: Option<String>,
    /// Which switch runs them: where their server is, or the only one, if absent.
    #[serde(rename = "program-at")]
    pub program_at: Option<u32>,
}

/// `[switch.pfc]`: sizes are bytes, or packets of the path MTU, such as `"15 packets"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PfcTable {
    /// Stop above this; of an input port's own buffer, that less the headroom if absent.
    pub xoff: Option<String>,
    /// Go on at or below this; two packets below xoff if absent.
    pub xon: Option<String>,
    /// Buffer for what comes until the other end has stopped: the last part of an input port's own buffer, or
    /// of a shared one; a link's worth of round trip if absent.
    pub headroom: Option<String>,
    /// Classes that it holds for; all if absent.
    pub classes: Option<Vec<u8>>,
}

/// `[switch.ecn]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RedTable {
    /// No mark up to this.
    pub kmin: String,
    /// Always above this.
    pub kmax: String,
    /// Chance at `kmax`.
    pub pmax: f64,
}

/// `[transport]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct TransportTable {
    /// `rc` (the default): queue pairs; `star`, the same with StaR; `1rma`; `both`.
    pub kind: Option<String>,
    /// StaR's parameters.
    pub star: Option<super::star::StarTable>,
    /// 1RMA's parameters; the paper's if absent.
    pub one_rma: Option<OneRmaTable>,
    /// Flows between the same two hosts share a queue pair.
    #[serde(default)]
    pub share_qp: bool,
    /// 256, 512, 1024, 2048 or 4096.
    pub mtu: Option<u32>,
    /// Packets that a queue pair may have unacknowledged; without limit if absent.
    pub window: Option<u32>,
    /// Packets for each acknowledgement; 1 if absent.
    pub ack_every: Option<u32>,
    /// Local ACK timeout: 4.096 us * 2^n, n from 1 to 31, 0 for none; 7 if absent.
    pub timeout: Option<u8>,
    /// Local ACK timeout of plain RC as a time, such as `"320us"`, instead.
    pub rto: Option<String>,
    /// Transport retries, 0 to 7.
    pub retries: Option<u8>,
    /// Retries do not run out; otherwise a flow whose retries do fails.
    #[serde(default)]
    pub retry_forever: bool,
    /// Frames that a queue pair sends before the next one's turn; 1 if absent.
    pub quantum: Option<u32>,
    /// WQEs that a fetch of a cross-channel queue brings, 1 to 64; 4 and then 16, or what the hardware does,
    /// if absent.
    pub prefetch: Option<u8>,
    /// WQEs that programs write must name their place and their queue pair.
    #[serde(default)]
    pub wqe_checks: bool,
    /// What an error completion does to WAITs: `fail` (the default) or `release`.
    pub wait_on_error: Option<String>,
    /// `fixed` (the default), `halving`, `dcqcn`, `timely`, `tcp`, `dctcp`, `swift` or `hpcc`.
    pub congestion: Option<String>,
    /// DCQCN's parameters; the paper's if absent.
    pub dcqcn: Option<DcqcnTable>,
    /// TIMELY's parameters; the paper's if absent.
    pub timely: Option<TimelyTable>,
    /// The parameters of TCP's window.
    pub tcp: Option<TcpTable>,
    /// DCTCP's parameters.
    pub dctcp: Option<super::control::DctcpTable>,
    /// Swift's.
    pub swift: Option<super::control::SwiftTable>,
    /// HPCC's.
    pub hpcc: Option<super::control::HpccTable>,
    /// Packets may be marked by ECN.
    #[serde(default)]
    pub ecn: bool,
    /// Traffic class of flows.
    pub class: Option<u8>,
    /// `go-back-n` (the default) or `irn`.
    pub recovery: Option<String>,
    /// IRN's parameters; the paper's if absent.
    pub irn: Option<IrnTable>,
    /// Hosts with another recovery.
    #[serde(default)]
    pub of: Vec<super::mixed::TransportOf>,
}

/// `[transport.dcqcn]`: what is absent is as in the paper ([`adverb_nic::DcqcnConfig`]).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct DcqcnTable {
    /// Weight of the newest notification in alpha.
    pub g: Option<f64>,
    /// Additive step.
    pub rate_additive: Option<String>,
    /// Hyper step.
    pub rate_hyper: Option<String>,
    /// Floor.
    pub rate_min: Option<String>,
    /// Alpha decays when no notification came for this long.
    pub alpha_interval: Option<String>,
    /// Timer of rate increase.
    pub increase_interval: Option<String>,
    /// Byte counter of rate increase.
    pub increase_bytes: Option<String>,
    /// Cycles of fast recovery.
    pub fast_recovery: Option<u32>,
    /// Least time between notifications of a queue pair.
    pub cnp_interval: Option<String>,
}

/// `[transport.timely]`: what is absent is as in the paper ([`adverb_nic::TimelyConfig`]).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct TimelyTable {
    /// Weight of the newest difference.
    pub ewma: Option<f64>,
    /// Multiplicative decrease.
    pub beta: Option<f64>,
    /// Below this round-trip time the rate only rises.
    pub t_low: Option<String>,
    /// Above this it only falls.
    pub t_high: Option<String>,
    /// What a gradient is measured against.
    pub min_rtt: Option<String>,
    /// Additive step.
    pub delta: Option<String>,
    /// Samples without a rise after which steps are five times as large.
    pub hai_after: Option<u32>,
    /// Bytes of a segment, whose completion is a sample.
    pub segment: Option<String>,
    /// Floor.
    pub rate_min: Option<String>,
}

/// `[transport.tcp]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct TcpTable {
    /// Initial window, packets; 4 if absent.
    pub initial: Option<u32>,
    /// `false`: additive from the initial window on, and slow start after timeouts only.
    pub slow_start: Option<bool>,
}

/// `[transport.irn]`: what is absent is as in the paper's default scenario
/// ([`adverb_nic::IrnConfig::paper`]).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct IrnTable {
    /// `selective`, `no-sack` or `go-back-n`: the factor analysis of the paper's section 4.3.
    pub scheme: Option<String>,
    /// Beyond the paper, as on real hosts: retransmissions that are lost too are found by what left after
    /// them and arrived.
    pub redetect: Option<bool>,
    /// Beyond the paper, as on real hosts: a NACK names a run of packets.
    pub runs: Option<bool>,
    /// Beyond the paper, as on real hosts: timeouts in a row double.
    pub backoff: Option<bool>,
    /// BDP flow control: packets in flight; 0 for none. Simulated bitmaps are as large as it takes.
    pub bdp_packets: Option<u32>,
    /// Timeout while at most `few-packets` are in flight.
    pub rto_low: Option<String>,
    /// Timeout while more are.
    pub rto_high: Option<String>,
    /// `paper` (the default): those two; `measured`, as on real hosts: by the measured round trip, between
    /// the two, with tail probes before them.
    pub timers: Option<String>,
    /// Whether measured timers have tail probes; they do.
    pub tail_probes: Option<bool>,
    /// The paper's N.
    pub few_packets: Option<u32>,
    /// NACKs without progress before recovery begins.
    pub nack_threshold: Option<u32>,
    /// Time from finding a packet lost until it can be sent again.
    pub retransmit_delay: Option<String>,
    /// `set-up` (the default): connection set-up tells each end whether the other one offers IRN; `hello`:
    /// they find out as on real hosts, and speak plain RC until then.
    pub agreement: Option<String>,
    /// `wire` (the default): the headers that IRN adds take their time on links; `free`: they take none.
    pub headers: Option<String>,
}

/// `[transport.one-rma]`: what is absent is as in the paper ([`adverb_nic::one_rma::OneRmaConfig`]).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct OneRmaTable {
    /// Command slots of each host.
    pub slots: Option<u32>,
    /// Solicitation window.
    pub window: Option<String>,
    /// Payload of one message at most.
    pub piece: Option<String>,
    /// Bytes of an operation at most.
    pub op_size: Option<String>,
    /// Peers' operations in progress at once.
    pub inbound: Option<u32>,
    /// How long an operation may wait for the window.
    pub dispatch_timeout: Option<String>,
    /// How long a request may be unanswered.
    pub timeout: Option<String>,
    /// Round trip of the idle network: of the NACK threshold, and of congestion control.
    pub rtt: Option<String>,
    /// Bytes that wait to be served, above which requests are NACKed; `off` for never.
    pub nack_threshold: Option<String>,
    /// Further attempts of an operation that fails.
    pub retries: Option<u8>,
    /// What an operation takes of the software's processor.
    pub command_cost: Option<String>,
    /// Transfers of a host at once; one more fails.
    pub transfers: Option<u32>,
    /// Algorithm 1.
    pub control: Option<OneRmaControlTable>,
    /// What happens to regions on the way.
    #[serde(default)]
    pub events: Vec<RegionEventEntry>,
}

/// `[transport.one-rma.control]`: what is absent is [`adverb_nic::one_rma::congestion::CongestionConfig`]'s.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct OneRmaControlTable {
    /// No control: this many operations at once to a peer, unpaced.
    pub fixed: Option<u32>,
    /// Operations added per round trip.
    pub increase: Option<f64>,
    /// Weight of the excess in a decrease.
    pub beta: Option<f64>,
    /// What a decrease by delay leaves at least.
    pub least_factor: Option<f64>,
    /// What a failure leaves.
    pub failure_factor: Option<f64>,
    /// Issue delay above which the local window shrinks.
    pub local_target: Option<String>,
    /// Remote delay above which a remote window shrinks.
    pub remote_target: Option<String>,
    /// Smallest window, in operations.
    pub window_min: Option<f64>,
    /// Largest.
    pub window_max: Option<f64>,
    /// First.
    pub window_start: Option<f64>,
    /// Local congestion has a window of its own; true if absent.
    pub split: Option<bool>,
}

/// An entry of `[[transport.one-rma.events]]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegionEventEntry {
    /// When.
    pub at: String,
    /// Whose region.
    pub host: u32,
    /// `rekey`, `driver` or `withdraw`.
    pub what: String,
    /// `driver`: for how long the region is gone.
    #[serde(rename = "for")]
    pub length: Option<String>,
}

/// `[hardware]`: a profile, and keys that override it; all absent is neutral.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HardwareTable {
    /// A card by its name; see [`crate::hardware::profiles`].
    pub profile: Option<String>,
    /// Hosts with another card, or other keys.
    #[serde(default)]
    pub of: Vec<HardwareOf>,
    /// See [`crate::hardware::profile`].
    #[serde(flatten)]
    pub keys: BTreeMap<String, toml::Value>,
}

/// An entry of `[[hardware.of]]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HardwareOf {
    /// Which hosts.
    pub hosts: Vec<u32>,
    /// Their card; that of all hosts if absent.
    pub profile: Option<String>,
    /// Keys that override it.
    #[serde(flatten)]
    pub keys: BTreeMap<String, toml::Value>,
}

/// `[faults]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultTable {
    /// Rules for single packets, one a line; see [`crate::fabric::faults`].
    #[serde(default)]
    pub script: String,
    /// Chances of links.
    #[serde(default)]
    pub link: Vec<LinkFaultEntry>,
    /// Failures of cables.
    #[serde(default)]
    pub outage: Vec<OutageEntry>,
    /// Restarts of the switch that runs programs.
    #[serde(default)]
    pub switch: Vec<SwitchFaultEntry>,
}

/// `[[faults.switch]]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchFaultEntry {
    /// When it goes down and forgets everything.
    pub at: String,
    /// For how long; no time if absent.
    #[serde(rename = "for")]
    pub length: Option<String>,
}

/// `[[faults.link]]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct LinkFaultEntry {
    /// Links; all if absent.
    pub links: Option<Vec<u32>>,
    /// Chance for each packet.
    #[serde(default)]
    pub loss: f64,
    /// Mean length of the rows in which packets are lost; 1, each by itself, if absent.
    pub burst: Option<f64>,
    /// Chance for each bit.
    #[serde(default)]
    pub bit_error: f64,
    /// Chance for each packet.
    #[serde(default)]
    pub duplicate: f64,
    /// Chance for each packet.
    #[serde(default)]
    pub reorder: f64,
    /// How late a reordered packet may be.
    pub reorder_by: Option<String>,
    /// How late any packet may be.
    pub jitter: Option<String>,
}

/// `[[faults.outage]]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutageEntry {
    /// Cable.
    pub cable: u32,
    /// When it fails.
    pub at: String,
    /// For how long; for ever if absent.
    #[serde(rename = "for")]
    pub length: Option<String>,
}

/// `[workload]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkloadTable {
    /// `poisson`, `permutation`, `incast`, `all-to-all`, `closed-loop`, `list`, `steady`, `repeat`,
    /// `lookups`, `connections`.
    pub kind: String,
    /// What its flows are called in results; its kind if absent.
    pub name: Option<String>,
    /// When it starts; `connections`: first calls begin at random before it.
    pub start: Option<String>,
    /// `write` (the default), `send` or `read`: the bytes of a READ go the same way, but the destination asks
    /// for them.
    pub op: Option<String>,
    /// Recovery of its connections, if not the transport's: `go-back-n` or `irn`.
    pub recovery: Option<String>,
    /// Traffic class of its flows, if not the transport's.
    pub class: Option<u8>,
    /// Where hosts have both NICs: `rc` (the default) or `1rma`.
    pub via: Option<String>,
    /// Bytes of each flow; `incast`: of all together; `closed-loop`: of a request.
    pub bytes: Option<String>,
    /// `poisson`: share of each host's rate.
    pub load: Option<f64>,
    /// `poisson`: what the load counts: `payload` (the default), or `link`, headers and framing of full
    /// packets too.
    #[serde(rename = "load-of")]
    pub load_of: Option<String>,
    /// `poisson`: how many.
    pub flows: Option<u32>,
    /// `poisson`: `heavy-tailed`, `websearch`, `hadoop`, `uniform LOW HIGH`, `fixed BYTES`, or `file NAME`.
    pub sizes: Option<String>,
    /// `incast`: how many senders.
    pub senders: Option<u32>,
    /// `incast`: the host that they send to; a random one if absent.
    pub victim: Option<u32>,
    /// `closed-loop`, `connections`: bytes of a response.
    pub response: Option<String>,
    /// `closed-loop`: time between a response and the next request.
    pub think: Option<String>,
    /// `closed-loop`: requests of each pair.
    pub rounds: Option<u32>,
    /// `closed-loop`: pairs of client and server. `poisson`, `steady`, `repeat`: source and destination.
    pub pairs: Option<Vec<(u32, u32)>>,
    /// `repeat`: flows of each pair at once. `connections`: READs or WRITEs at once on all of them together,
    /// each on one that is drawn; one on each if absent.
    pub outstanding: Option<u32>,
    /// `repeat`, `connections`: no flow, or call, starts after it. `steady`, `lookups`, and `poisson` without
    /// `flows`: how long flows arrive.
    pub until: Option<String>,
    /// `lookups`: bytes of an index entry.
    pub index: Option<String>,
    /// `lookups`: hosts that ask; `connections`: the ends that are not the server's.
    pub clients: Option<Vec<u32>>,
    /// `connections`: the one end of all.
    pub server: Option<u32>,
    /// `connections`: how many.
    pub connections: Option<u32>,
    /// `connections`: `rpc` (the default), `barrier`, `read` or `write`.
    pub pattern: Option<String>,
    /// `connections`: messages from the client in each call; 1 if absent.
    pub requests: Option<u32>,
    /// `connections`, `read` and `write`: who asks, `client` (the default) or `server`.
    pub by: Option<String>,
    /// `connections`: they take turns.
    pub group: Option<super::star::GroupTable>,
    /// `connections`: those of a second server.
    pub others: Option<super::star::OthersTable>,
    /// `connections`: some come, or leave.
    pub steps: Option<Vec<super::star::StepTable>>,
    /// `connections`: the lab measures from this time on.
    pub measured: Option<String>,
    /// `lookups`: hosts that have everything.
    pub servers: Option<Vec<u32>>,
    /// `list`: the flows.
    pub list: Option<Vec<FlowEntry>>,
}

/// An entry of a list of flows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowEntry {
    /// From this host.
    pub src: u32,
    /// To this host.
    pub dst: u32,
    /// Bytes.
    pub bytes: String,
    /// When; at once if absent.
    pub start: Option<String>,
}
